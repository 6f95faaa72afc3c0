//! One watch per kind: each adds its store, its future and its part of readiness in one step.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, future};
use kube::runtime::reflector::{Store, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use super::WatchEvent;

/// What happened to a watched object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Applied,
    Deleted,
}

/// The watches that were added.
pub struct Registry {
    client: Client,
    events: mpsc::UnboundedSender<WatchEvent>,
    /// How many watches have not completed their first list.
    unlisted: Arc<watch::Sender<usize>>,
    watches: Vec<BoxFuture<'static, ()>>,
}

impl Registry {
    pub fn new(client: &Client, events: mpsc::UnboundedSender<WatchEvent>) -> Self {
        Self { client: client.clone(), events, unlisted: Arc::new(watch::Sender::new(0)), watches: Vec::new() }
    }

    /// Adds the watch of a kind. Objects are trimmed before they are stored; `to_event` makes an event of each change
    /// that matters to a reconciler.
    pub fn add<K>(
        &mut self,
        config: watcher::Config,
        trim: fn(&mut K),
        mut to_event: impl FnMut(Arc<K>, Change) -> Option<WatchEvent> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let events = self.events.clone();
        let mut announce = move |object: Arc<K>, change: Change| {
            if let Some(event) = to_event(object, change) {
                // Without a receiver this process is ending.
                let _ = events.send(event);
            }
        };
        let (reader, writer) = store();
        let api: Api<K> = Api::all(self.client.clone());
        let changes = watcher(api, config).default_backoff().modify(trim).reflect(writer);
        // The store replaces its content when a list is complete: objects that are announced earlier would not be found
        // in it. Objects that are missing from the new list were deleted while the watch was interrupted.
        let mut listed: Vec<K> = Vec::new();
        let (known, mut before) = (reader.clone(), Vec::new());
        self.unlisted.send_modify(|count| *count += 1);
        let mut unlisted = Some(Arc::clone(&self.unlisted));
        let announced = changes.map_ok(move |event| match event {
            watcher::Event::Apply(object) => announce(Arc::new(object), Change::Applied),
            watcher::Event::Delete(object) => announce(Arc::new(object), Change::Deleted),
            watcher::Event::Init => {
                listed.clear();
                before = known.state();
            }
            watcher::Event::InitApply(object) => listed.push(object),
            watcher::Event::InitDone => {
                let existing: HashSet<_> = listed.iter().map(|object| object.meta().uid.clone()).collect();
                for object in std::mem::take(&mut before) {
                    if !existing.contains(&object.meta().uid) {
                        announce(object, Change::Deleted);
                    }
                }
                for object in std::mem::take(&mut listed) {
                    announce(Arc::new(object), Change::Applied);
                }
                // Only for the first list.
                if let Some(unlisted) = unlisted.take() {
                    unlisted.send_modify(|count| *count -= 1);
                }
            }
        });
        let watch = announced.for_each(|outcome| {
            if let Err(error) = outcome {
                tracing::warn!(kind = %K::kind(&()), %error, "the watch was interrupted; it is started again");
            }
            future::ready(())
        });
        self.watches.push(watch.boxed());
        reader
    }

    /// How many of the watches have not completed their first list. The channel closes when a watch ends before that.
    pub fn unlisted(&self) -> watch::Receiver<usize> {
        self.unlisted.subscribe()
    }

    /// Watches for as long as the future is polled.
    pub fn watch(self) -> impl Future<Output = ()> + Send + use<> {
        join_all(self.watches).map(drop)
    }
}
