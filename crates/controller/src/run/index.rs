//! Runs that are not torn down, by their UID: an event must not cause a scan over thousands of finished runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Once};

use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;
use tokio::sync::Notify;

use super::resolve::is_active;
use super::stored::StoredRun;
use crate::caches::is_torn_down;
use crate::fair_queue::FairQueue;

#[derive(Debug)]
pub struct RunIndex {
    inner: Mutex<Inner>,
    seeded: Once,
    /// How many runs may be active at the same time.
    capacity: usize,
    /// Is notified when other runs than before may have their turn.
    turns_changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    runs: HashMap<String, TrackedRun>,
    /// The active runs among them.
    active: Active,
    /// Runs that were given a slot; the cache may not show yet that they have started.
    reserved: HashSet<String>,
    /// Runs that wait for a slot in the cluster; namespaces take turns.
    queued: FairQueue<String>,
    /// Runs that wait until fewer runs of their tree are active.
    waiting_for_tree: HashSet<String>,
    /// Runs whose Job this process has created; the cache may not have it yet.
    with_job: HashSet<String>,
    /// Objects that this process has deleted, by run: kind and name.
    deleted: HashMap<String, HashSet<(String, String)>>,
    /// Objects that this process has created and not recorded in the status yet, by run: kind, name and UID.
    created: HashMap<String, HashMap<(String, String), String>>,
}

impl Inner {
    /// Stores the state of a run and returns the previous one. Only this and [`Self::remove`] change [`Self::runs`], so
    /// that [`Self::active`] stays consistent.
    fn insert(&mut self, uid: String, known: TrackedRun) -> Option<TrackedRun> {
        match known.state {
            RunState::Active => self.active.insert(&uid, known.namespace.clone()),
            RunState::Waiting | RunState::Terminal => self.active.remove(&uid),
        }
        self.runs.insert(uid, known)
    }

    fn remove(&mut self, uid: &str) -> Option<TrackedRun> {
        self.active.remove(uid);
        self.runs.remove(uid)
    }

    /// The runs that wait for the cluster and have their turn, with so many slots in total.
    fn runnable(&self, capacity: usize) -> Vec<String> {
        let free = capacity.saturating_sub(self.active.runs.len());
        let has = |namespace: &str| self.active.counts.get(namespace).copied().unwrap_or(0);
        self.queued.peek_next(free, has)
    }
}

/// Active runs, counted incrementally: every queued run asks now and then, and must not cause a scan over all runs.
#[derive(Debug, Default)]
struct Active {
    /// UID to namespace.
    runs: HashMap<String, String>,
    /// Number of active runs per namespace, without zeros.
    counts: HashMap<String, usize>,
}

impl Active {
    fn insert(&mut self, uid: &str, namespace: String) {
        self.remove(uid);
        *self.counts.entry(namespace.clone()).or_default() += 1;
        self.runs.insert(uid.to_owned(), namespace);
    }

    fn remove(&mut self, uid: &str) {
        let Some(namespace) = self.runs.remove(uid) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&namespace) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&namespace);
            }
        }
    }
}

#[derive(Debug)]
struct TrackedRun {
    namespace: String,
    reference: ObjectRef<AgentRun>,
    state: RunState,
}

impl TrackedRun {
    fn new(run: &StoredRun, state: RunState) -> Self {
        Self { namespace: run.namespace().to_owned(), reference: run.reference(), state }
    }
}

/// Where a run is, as far as other runs are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    /// Not started.
    Waiting,
    /// Started, and the phase is not terminal.
    Active,
    /// The phase is terminal, and not all objects are gone.
    Terminal,
}

/// What an update of a run changes for other runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunChange {
    /// It is torn down, and was not before.
    pub torn_down: bool,
    /// It was active and is not any more: a slot is free.
    pub freed_slot: bool,
}

/// Why a run has to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// The limit of the cluster is reached.
    ClusterFull(String),
    /// The limit of its tree is reached.
    TreeFull(String),
    /// It is deleted, or not in the cache yet: the watch requeues it if it still exists.
    NotCached,
}

impl RunIndex {
    /// An empty index for `capacity` active runs, shared by the weights of their namespaces.
    pub fn new(capacity: usize, weights: BTreeMap<String, u16>) -> Self {
        let inner = Inner { queued: FairQueue::with_weights(weights), ..Inner::default() };
        Self { inner: Mutex::new(inner), seeded: Once::new(), capacity, turns_changed: Notify::new() }
    }

    /// Updates the index for a run that the watch delivered.
    pub fn track(&self, run: &StoredRun) -> RunChange {
        let uid = run.uid();
        if is_torn_down(run) {
            return self.forget(uid);
        }
        let phase = run.status.as_ref().and_then(|status| status.phase);
        let mut inner = self.inner.lock();
        let state = if phase.is_some_and(Phase::is_terminal) {
            inner.reserved.remove(uid);
            RunState::Terminal
        } else if is_active(run) || inner.reserved.contains(uid) {
            RunState::Active
        } else {
            RunState::Waiting
        };
        if state != RunState::Waiting || run.metadata.deletion_timestamp.is_some() {
            self.leave_queue(&mut inner, uid);
        }
        let before = inner.insert(uid.to_owned(), TrackedRun::new(run, state));
        RunChange {
            torn_down: false,
            freed_slot: state != RunState::Active && before.is_some_and(|before| before.state == RunState::Active),
        }
    }

    /// Removes a run that is deleted or torn down.
    pub fn forget(&self, uid: &str) -> RunChange {
        let mut inner = self.inner.lock();
        inner.with_job.remove(uid);
        inner.deleted.remove(uid);
        inner.created.remove(uid);
        inner.reserved.remove(uid);
        inner.waiting_for_tree.remove(uid);
        self.leave_queue(&mut inner, uid);
        let known = inner.remove(uid);
        let freed_slot = known.as_ref().is_some_and(|known| known.state == RunState::Active);
        if freed_slot {
            // A reconciler that deletes a run does not requeue others itself.
            self.turns_changed.notify_one();
        }
        RunChange { freed_slot, torn_down: known.is_some() }
    }

    /// Adds every existing run, once: after a start, runs are reconciled before the watch events of all of them are
    /// dispatched.
    pub fn seed(&self, all: impl FnOnce() -> Vec<Arc<AgentRun>>) {
        self.seeded.call_once(|| {
            for run in all().into_iter().filter_map(StoredRun::new) {
                self.track(&run);
            }
        });
    }

    /// Gives a run a slot, unless `judge` returns why its tree has to wait (it gets the active runs), or it is not the
    /// turn of its namespace. Atomic: of several runs that are reconciled concurrently each must count the others.
    ///
    /// A free slot goes to the namespace with the fewest for its weight. So a run may have to wait although there is a
    /// free slot: the run whose turn it is has been requeued.
    pub fn reserve(
        &self,
        run: &StoredRun,
        judge: impl FnOnce(&[&ObjectRef<AgentRun>]) -> Option<String>,
    ) -> Result<(), WaitReason> {
        let uid = run.uid();
        let mut inner = self.inner.lock();
        if inner.active.runs.contains_key(uid) {
            return Ok(());
        }
        // A reconcile that began before the run was deleted must not insert it again: deletion is handled once, and the
        // run would keep its slot for ever.
        if !inner.runs.contains_key(uid) {
            return Err(WaitReason::NotCached);
        }
        let active = inner.active.runs.keys();
        let active = active.filter_map(|uid| inner.runs.get(uid));
        let active: Vec<_> = active.map(|run| &run.reference).collect();
        if let Some(why) = judge(&active) {
            inner.waiting_for_tree.insert(uid.to_owned());
            self.leave_queue(&mut inner, uid);
            return Err(WaitReason::TreeFull(why));
        }
        inner.queued.push(run.namespace(), uid.to_owned());
        if !inner.runnable(self.capacity).iter().any(|runnable| runnable == uid) {
            let capacity = self.capacity;
            let why = format!("the run waits: {capacity} runs are active, which is the limit; namespaces take turns");
            return Err(WaitReason::ClusterFull(why));
        }
        inner.queued.take(&uid.to_owned());
        inner.reserved.insert(uid.to_owned());
        inner.insert(uid.to_owned(), TrackedRun::new(run, RunState::Active));
        Ok(())
    }

    /// Takes back the slot of a run that cannot start now, or its place in the queue.
    pub fn release_slot(&self, uid: &str) {
        let mut inner = self.inner.lock();
        if inner.reserved.remove(uid)
            && let Some(known) = inner.remove(uid)
        {
            let known = TrackedRun { state: RunState::Waiting, ..known };
            inner.insert(uid.to_owned(), known);
            self.turns_changed.notify_one();
        }
        self.leave_queue(&mut inner, uid);
    }

    /// Waits until other runs than before may have their turn.
    pub async fn wait_turns_changed(&self) {
        self.turns_changed.notified().await;
    }

    /// Number of runs that wait for a slot, of the cluster or of their tree.
    pub fn queued(&self) -> usize {
        let inner = self.inner.lock();
        inner.queued.len() + inner.waiting_for_tree.len()
    }

    fn leave_queue(&self, inner: &mut Inner, uid: &str) {
        if inner.queued.remove(&uid.to_owned()) {
            self.turns_changed.notify_one();
        }
    }

    pub fn find(&self, uid: &str) -> Option<ObjectRef<AgentRun>> {
        self.inner.lock().runs.get(uid).map(|run| run.reference.clone())
    }

    /// Runs that have started and whose phase is not terminal.
    pub fn active(&self) -> Vec<ObjectRef<AgentRun>> {
        self.with_state(RunState::Active)
    }

    /// Runs that have not started.
    pub fn waiting(&self) -> Vec<ObjectRef<AgentRun>> {
        self.with_state(RunState::Waiting)
    }

    /// Runs whose phase is not terminal.
    pub fn unfinished(&self) -> Vec<ObjectRef<AgentRun>> {
        let mut all = self.active();
        all.extend(self.waiting());
        all
    }

    fn with_state(&self, state: RunState) -> Vec<ObjectRef<AgentRun>> {
        let inner = self.inner.lock();
        let those = inner.runs.values().filter(|run| run.state == state);
        those.map(|run| run.reference.clone()).collect()
    }

    /// The runs to requeue after a slot has become free: of those that wait for the cluster as many as there are free
    /// slots, and all that wait for their tree. A run that still has to wait enters its queue again.
    pub fn take_runnable(&self) -> Vec<ObjectRef<AgentRun>> {
        let mut inner = self.inner.lock();
        let mut turns = std::mem::take(&mut inner.waiting_for_tree);
        turns.extend(inner.runnable(self.capacity));
        let known = turns.iter().filter_map(|uid| inner.runs.get(uid));
        known.map(|run| run.reference.clone()).collect()
    }

    pub fn mark_job_created(&self, uid: &str) {
        self.inner.lock().with_job.insert(uid.to_owned());
    }

    /// Whether this process has created the run's Job.
    pub fn has_job(&self, uid: &str) -> bool {
        self.inner.lock().with_job.contains(uid)
    }

    /// Remembers the UID of an object that this process has created for the run.
    pub fn mark_created(&self, uid: &str, kind: &str, name: &str, object: &str) {
        let mut inner = self.inner.lock();
        let created = inner.created.entry(uid.to_owned()).or_default();
        created.insert((kind.to_owned(), name.to_owned()), object.to_owned());
    }

    /// The UID of an object of the run that this process has created.
    pub fn created_uid(&self, uid: &str, kind: &str, name: &str) -> Option<String> {
        let inner = self.inner.lock();
        let created = inner.created.get(uid)?;
        created.get(&(kind.to_owned(), name.to_owned())).cloned()
    }

    /// To be called when the UIDs of the run's objects are in its status.
    pub fn forget_created(&self, uid: &str) {
        self.inner.lock().created.remove(uid);
    }

    pub fn mark_deleted(&self, uid: &str, kind: &str, name: &str) {
        let mut inner = self.inner.lock();
        let removed = inner.deleted.entry(uid.to_owned()).or_default();
        removed.insert((kind.to_owned(), name.to_owned()));
    }

    /// Whether this process has deleted that object of the run.
    pub fn is_deleted(&self, uid: &str, kind: &str, name: &str) -> bool {
        let inner = self.inner.lock();
        let removed = inner.deleted.get(uid);
        removed.is_some_and(|removed| removed.contains(&(kind.to_owned(), name.to_owned())))
    }

    /// To be called when a deleted object still exists: it is to be deleted again.
    pub fn forget_deleted(&self, uid: &str, kind: &str, name: &str) {
        if let Some(removed) = self.inner.lock().deleted.get_mut(uid) {
            removed.remove(&(kind.to_owned(), name.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests;
