//! The loop around a reconciler: when an object is reconciled, how many concurrently, and how soon again after an
//! error.
//!
//! An object is reconciled when a watch event concerns it or its requeue time has come, and never twice concurrently. A
//! failed attempt is retried after a backoff that doubles from [`MIN_BACKOFF`] to [`MAX_BACKOFF`], with jitter; a
//! success resets it. A panic fails only that attempt.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use kube::Resource;
use kube::runtime::controller::{self, Action, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle};

use crate::context::Context;
use crate::fair_queue::FairQueue;
use crate::random::with_jitter;

pub const MIN_BACKOFF: Duration = Duration::from_millis(200);
pub const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Bounds one reconcile. Every request has its own timeout; this one is for unforeseen hangs, which would occupy a slot
/// of the loop for ever.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// A task that is aborted when its waiter is dropped: a loop that was shut down must not write any more.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        self.0.poll_unpin(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Objects to reconcile; namespaces take turns. Clones feed the same loop.
pub struct Queue<K: Resource<DynamicType = ()>> {
    inner: Arc<Mutex<Inner<K>>>,
    changed: Arc<Notify>,
}

struct Inner<K: Resource<DynamicType = ()>> {
    waiting: FairQueue<ObjectRef<K>>,
    /// Objects that were handed to the loop and are not started yet.
    handed_out: HashSet<ObjectRef<K>>,
}

pub struct QueueReceiver<K: Resource<DynamicType = ()>> {
    queue: Queue<K>,
}

impl<K: Resource<DynamicType = ()>> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), changed: Arc::clone(&self.changed) }
    }
}

pub fn queue<K: Resource<DynamicType = ()>>() -> (Queue<K>, QueueReceiver<K>) {
    let inner = Inner { waiting: FairQueue::default(), handed_out: HashSet::new() };
    let queue = Queue { inner: Arc::new(Mutex::new(inner)), changed: Arc::default() };
    let wanted = QueueReceiver { queue: queue.clone() };
    (queue, wanted)
}

impl<K: Resource<DynamicType = ()>> Queue<K> {
    /// Enqueues an object. One that is queued already is not queued twice.
    pub fn add(&self, object: ObjectRef<K>) {
        let mut inner = self.inner.lock();
        if inner.handed_out.contains(&object) {
            return;
        }
        let namespace = object.namespace.clone();
        // Objects without a namespace take turns as one more namespace.
        inner.waiting.push(namespace.as_deref().unwrap_or(""), object);
        drop(inner);
        self.changed.notify_one();
    }

    /// To be called when the object's reconcile starts, or when the object is gone.
    fn remove(&self, object: &ObjectRef<K>) {
        let mut inner = self.inner.lock();
        inner.handed_out.remove(object);
        inner.waiting.remove(object);
        drop(inner);
        self.changed.notify_one();
    }

    pub fn len(&self) -> usize {
        let inner = self.inner.lock();
        inner.waiting.len() + inner.handed_out.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Resource<DynamicType = ()>> QueueReceiver<K> {
    /// The next object, as soon as fewer than `most` are handed to the loop and not started. The loop keeps no order
    /// between namespaces: only objects that it has not received yet take turns.
    async fn next(&self, most: usize) -> ObjectRef<K> {
        loop {
            if let Some(object) = self.try_next(most) {
                return object;
            }
            self.queue.changed.notified().await;
        }
    }

    fn try_next(&self, most: usize) -> Option<ObjectRef<K>> {
        let mut inner = self.queue.inner.lock();
        if inner.handed_out.len() >= most {
            return None;
        }
        let object = inner.waiting.pop()?;
        inner.handed_out.insert(object.clone());
        Some(object)
    }
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError<E: std::error::Error + 'static> {
    #[error(transparent)]
    Error(#[from] E),
    #[error("the reconcile timed out")]
    TimedOut,
    #[error("the reconcile panicked: {0}")]
    Panic(String),
}

/// Reconciles objects until `stop` is set; then finishes the reconciles in progress.
pub async fn run_loop<K, F, E>(
    kind: &'static str,
    context: Arc<Context>,
    store: Store<K>,
    wanted: QueueReceiver<K>,
    stop: watch::Receiver<bool>,
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> F + Send + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    ObjectRef<K>: Hash + Eq,
    F: Future<Output = Result<Action, E>> + Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    // Before the first list is complete an object may look absent: a run would fail because its pod is missing.
    let mut stopped = stop.clone();
    tokio::select! {
        _ = stopped.wait_for(|stop| *stop) => return,
        ready = context.caches.wait_until_ready() => if !ready { return },
    }
    let attempts = Arc::new(Failures::default());
    let metrics = Arc::clone(&context.metrics);
    let concurrency = context.settings.concurrency;
    let again = wanted.queue.clone();
    let looked_at = {
        let queue = wanted.queue.clone();
        let newest = store.clone();
        let metrics = Arc::clone(&metrics);
        move |object: Arc<K>, context: Arc<Context>| {
            // Before the object is read: an event that arrives from now on must requeue it.
            let reference = ObjectRef::from_obj(object.as_ref());
            queue.remove(&reference);
            let object = newest.get(&reference).unwrap_or(object);
            metrics.count_reconcile(kind);
            let limited = tokio::time::timeout(RECONCILE_TIMEOUT, reconcile(object, context));
            // In a task of its own: one reconcile does not block the others, and a panic ends only that task.
            let task = AbortOnDrop(tokio::spawn(limited));
            task.map(|ended| match ended {
                Ok(Ok(outcome)) => outcome.map_err(ReconcileError::Error),
                Ok(Err(_elapsed)) => Err(ReconcileError::TimedOut),
                Err(panic) => Err(ReconcileError::Panic(panic.to_string())),
            })
            .boxed()
        }
    };
    let policy = {
        let attempts = Arc::clone(&attempts);
        let metrics = Arc::clone(&metrics);
        move |object: Arc<K>, error: &ReconcileError<E>, _: Arc<Context>| {
            let object = ObjectRef::from_obj(object.as_ref());
            let (attempt, pause) = attempts.record(object.clone());
            metrics.count_failure(kind);
            let error = sympozium_program::error_chain(error);
            tracing::warn!(kind, %object, attempt, ?pause, error, "the reconcile failed; it is retried");
            Action::requeue(pause)
        }
    };
    let config = controller::Config::default().concurrency(concurrency);
    let there = store.clone();
    // Each object that is being reconciled may have another reconcile queued; twice the concurrency keeps the others
    // busy.
    let most = 2 * usize::from(concurrency).max(1);
    let queue = stream_until(wanted, most, stop).map(Ok::<_, std::convert::Infallible>);
    let outcomes = applier(looked_at, policy, context, store, queue, config);
    outcomes
        .for_each(|outcome| {
            match outcome {
                Ok((object, _)) => attempts.forget(&object),
                Err(controller::Error::ObjectNotFound(object)) => {
                    // The object was deleted before its turn.
                    let mut gone = ObjectRef::<K>::new(&object.name);
                    gone.namespace = object.namespace;
                    again.remove(&gone);
                    attempts.forget(&gone);
                    // Unless it was created again in the meantime.
                    if there.get(&gone).is_some() {
                        again.add(gone);
                    }
                }
                // The error policy has logged it.
                Err(controller::Error::ReconcilerFailed(..)) => {}
                Err(error) => tracing::error!(kind, %error, "the reconcile loop failed"),
            }
            std::future::ready(())
        })
        .await;
}

fn stream_until<K: Resource<DynamicType = ()> + 'static>(
    wanted: QueueReceiver<K>,
    most: usize,
    mut stop: watch::Receiver<bool>,
) -> impl Stream<Item = ObjectRef<K>> {
    let stopped = async move {
        // A dropped sender means stop as well.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    stream::unfold(wanted, move |wanted| async move {
        let object = wanted.next(most).await;
        Some((object, wanted))
    })
    .take_until(stopped)
}

/// Failures of each object since its last success.
struct Failures<K: Resource<DynamicType = ()>> {
    counts: Mutex<HashMap<ObjectRef<K>, u32>>,
}

impl<K: Resource<DynamicType = ()>> Default for Failures<K> {
    fn default() -> Self {
        Self { counts: Mutex::default() }
    }
}

impl<K: Resource<DynamicType = ()>> Failures<K> {
    fn record(&self, object: ObjectRef<K>) -> (u32, Duration) {
        let mut counts = self.counts.lock();
        let count = counts.entry(object).or_default();
        *count = count.saturating_add(1);
        (*count, with_jitter(backoff(*count)))
    }

    fn forget(&self, object: &ObjectRef<K>) {
        self.counts.lock().remove(object);
    }
}

/// The backoff after a number of failures in a row.
fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    MIN_BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sympozium_api::AgentRun;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let milliseconds = |attempts| backoff(attempts).as_millis();
        let first: Vec<_> = (1..=4).map(milliseconds).collect();
        assert_eq!(first, [200, 400, 800, 1_600]);
        assert_eq!(backoff(9), Duration::from_millis(51_200));
        assert_eq!(backoff(10), MAX_BACKOFF);
        assert_eq!(backoff(u32::MAX), MAX_BACKOFF);
    }

    #[test]
    fn a_success_forgets_failures() {
        let attempts = Failures::<AgentRun>::default();
        let object = || ObjectRef::new("run").within("team");
        assert_eq!(attempts.record(object()).0, 1);
        assert_eq!(attempts.record(object()).0, 2);
        attempts.forget(&object());
        assert_eq!(attempts.record(object()).0, 1);
    }

    #[test]
    fn an_object_waits_once() {
        let (queue, wanted) = queue::<AgentRun>();
        for _ in 0..3 {
            queue.add(ObjectRef::new("run").within("team"));
        }
        queue.add(ObjectRef::new("other").within("team"));
        assert_eq!(queue.len(), 2);
        let first = wanted.try_next(9).expect("one waits");
        // It has not started: its reconcile will see the new state.
        queue.add(first.clone());
        assert!(wanted.try_next(9).is_some());
        assert_eq!(wanted.try_next(9), None);
        queue.remove(&first);
        queue.add(first.clone());
        assert_eq!(wanted.try_next(9), Some(first));
    }

    #[test]
    fn one_of_another_namespace_is_looked_at_before_thousands_that_came_earlier() {
        let (queue, wanted) = queue::<AgentRun>();
        for number in 0..5000 {
            queue.add(ObjectRef::new(&number.to_string()).within("greedy"));
        }
        // The loop takes a few at a time, however many are queued.
        let handed: Vec<_> = std::iter::from_fn(|| wanted.try_next(4)).collect();
        assert_eq!(handed.len(), 4);
        queue.add(ObjectRef::new("single").within("modest"));
        for object in handed {
            queue.remove(&object);
        }
        let next = std::iter::from_fn(|| wanted.try_next(4));
        let next: Vec<_> = next.map(|next| next.name).collect();
        assert!(next[..2].contains(&"single".to_owned()), "{next:?}");
    }
}
