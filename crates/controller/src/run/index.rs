//! Runs that are not settled, found by their UID: thousands of finished ones are not looked through for each event.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;
use tokio::sync::Notify;

use super::resolve::is_active;
use crate::fair::FairQueue;
use crate::world::is_settled;

/// Runs that are not settled.
#[derive(Debug)]
pub struct Index {
    inner: Mutex<Inner>,
    known: Once,
    /// Runs that may go on at a time.
    capacity: usize,
    /// It may be the turn of another than before.
    turns_changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    runs: HashMap<String, Known>,
    /// Of those, the active ones.
    active: Active,
    /// Those that have their turn; the watch may not have shown that they begin.
    reserved: HashSet<String>,
    /// Those that wait until fewer go on in the cluster; namespaces take turns.
    queued: FairQueue<String>,
    /// Those that wait until fewer of their tree go on.
    held_back: HashSet<String>,
    /// Those whose Job this process has made; the watch may not have shown it yet.
    made: HashSet<String>,
    /// What this process has removed, by run: kind and name.
    removed: HashMap<String, HashSet<(String, String)>>,
    /// What this process has created and not written down yet, by run: kind and name, and the UID.
    created: HashMap<String, HashMap<(String, String), String>>,
}

impl Inner {
    /// Takes note of where a run stands, and gives back what was known of it. This and [`Self::remove`] alone change
    /// [`Self::runs`], so that [`Self::active`] follows.
    fn insert(&mut self, uid: String, known: Known) -> Option<Known> {
        let namespace = known.reference.namespace.clone().unwrap_or_default();
        match known.standing {
            Standing::Active => self.active.insert(&uid, namespace),
            Standing::Waiting | Standing::Over => self.active.remove(&uid),
        }
        self.runs.insert(uid, known)
    }

    fn remove(&mut self, uid: &str) -> Option<Known> {
        self.active.remove(uid);
        self.runs.remove(uid)
    }

    /// Those that wait for the cluster and whose turn it is, of so many that may go on.
    fn turns(&self, capacity: usize) -> Vec<String> {
        let free = capacity.saturating_sub(self.active.runs.len());
        let has = |namespace: &str| self.active.counts.get(namespace).copied().unwrap_or(0);
        self.queued.turns(free, has)
    }
}

/// Active runs, counted as they come and go: every queued run asks now and then, and must not go through all runs each time.
#[derive(Debug, Default)]
struct Active {
    /// By UID, the namespace of each.
    runs: HashMap<String, String>,
    /// How many there are of each namespace that has one.
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
struct Known {
    reference: ObjectRef<AgentRun>,
    standing: Standing,
}

/// Where a run stands among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It has not begun.
    Waiting,
    /// It has begun and is not over.
    Active,
    /// It is over, and not everything of it is gone.
    Over,
}

/// What a sight of a run changes for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sighted {
    /// It is settled, and was not before.
    pub has_settled: bool,
    /// It went on before, and does not any more: there is room for another.
    pub made_room: bool,
}

/// Why a run has to wait for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// As many as may go on in the cluster.
    OfCluster(String),
    /// As many as may go on of its tree.
    OfTree(String),
    /// It is gone, or the watch has not shown it: the watch wakes it, if it is still there.
    Unseen,
}

impl Index {
    /// Of no run, of which so many may go on at a time, shared by the weights of their namespaces.
    pub fn new(capacity: usize, weights: BTreeMap<String, u16>) -> Self {
        let inner = Inner { queued: FairQueue::with_weights(weights), ..Inner::default() };
        Self { inner: Mutex::new(inner), known: Once::new(), capacity, turns_changed: Notify::new() }
    }

    /// Takes note of a run that was seen.
    pub fn see(&self, run: &AgentRun) -> Sighted {
        let uid = run.uid().unwrap_or_default();
        if is_settled(run) {
            return self.forget(&uid);
        }
        let phase = run.status.as_ref().and_then(|it| it.phase);
        let mut inner = self.lock();
        let standing = if phase.is_some_and(Phase::is_terminal) {
            inner.reserved.remove(&uid);
            Standing::Over
        } else if is_active(run) || inner.reserved.contains(&uid) {
            Standing::Active
        } else {
            Standing::Waiting
        };
        if standing != Standing::Waiting || run.metadata.deletion_timestamp.is_some() {
            self.leave_queue(&mut inner, &uid);
        }
        let known = Known { reference: ObjectRef::from_obj(run), standing };
        let before = inner.insert(uid, known);
        Sighted {
            has_settled: false,
            made_room: standing != Standing::Active && before.is_some_and(|it| it.standing == Standing::Active),
        }
    }

    /// A run is gone, or settled.
    pub fn forget(&self, uid: &str) -> Sighted {
        let mut inner = self.lock();
        inner.made.remove(uid);
        inner.removed.remove(uid);
        inner.created.remove(uid);
        inner.reserved.remove(uid);
        inner.held_back.remove(uid);
        self.leave_queue(&mut inner, uid);
        let known = inner.remove(uid);
        let made_room = (known.as_ref()).is_some_and(|it| it.standing == Standing::Active);
        if made_room {
            // A reconciler forgets the run that it deletes, and wakes no others itself.
            self.turns_changed.notify_one();
        }
        Sighted { made_room, has_settled: known.is_some() }
    }

    /// Takes note of every run that there is, once: when a controller begins, runs are looked at before all of them are told of.
    pub fn know(&self, all: impl FnOnce() -> Vec<Arc<AgentRun>>) {
        self.known.call_once(|| {
            for run in all() {
                self.see(&run);
            }
        });
    }

    /// Gives a run its turn, unless `judge` says why its tree has to wait, from those that have theirs, or it is not the turn of its
    /// namespace. In one step: of several that are looked at at once each must count the others.
    ///
    /// A free place goes to the namespace that has fewest for its weight, so one that is asked about while others wait may be told to wait although
    /// there is room: whose turn it is has been woken.
    pub fn reserve(
        &self,
        run: &AgentRun,
        judge: impl FnOnce(&[&ObjectRef<AgentRun>]) -> Option<String>,
    ) -> Result<(), Turn> {
        let uid = run.uid().unwrap_or_default();
        let mut inner = self.lock();
        if inner.active.runs.contains_key(&uid) {
            return Ok(());
        }
        // A reconcile that began before the run was deleted must not put it back: it is forgotten once, and would keep its place
        // for ever.
        if !inner.runs.contains_key(&uid) {
            return Err(Turn::Unseen);
        }
        let active = inner.active.runs.keys();
        let active = active.filter_map(|uid| inner.runs.get(uid));
        let active: Vec<_> = active.map(|it| &it.reference).collect();
        if let Some(why) = judge(&active) {
            inner.held_back.insert(uid.clone());
            self.leave_queue(&mut inner, &uid);
            return Err(Turn::OfTree(why));
        }
        let known = Known { reference: ObjectRef::from_obj(run), standing: Standing::Active };
        let namespace = known.reference.namespace.as_deref().unwrap_or_default();
        inner.queued.push(namespace, uid.clone());
        if !inner.turns(self.capacity).contains(&uid) {
            let most = self.capacity;
            let why = format!("{most} runs are going on, and no more may; namespaces take turns");
            return Err(Turn::OfCluster(why));
        }
        inner.queued.serve(&uid);
        inner.reserved.insert(uid.clone());
        inner.insert(uid, known);
        Ok(())
    }

    /// A run that had its turn, or waits for it, cannot begin now.
    pub fn give_back(&self, uid: &str) {
        let mut inner = self.lock();
        if inner.reserved.remove(uid)
            && let Some(known) = inner.remove(uid)
        {
            let known = Known { standing: Standing::Waiting, ..known };
            inner.insert(uid.to_owned(), known);
            self.turns_changed.notify_one();
        }
        self.leave_queue(&mut inner, uid);
    }

    /// Comes back when it may be the turn of others than before.
    pub async fn turns_changed(&self) {
        self.turns_changed.notified().await;
    }

    /// How many wait for their turn, of the cluster or of their tree.
    pub fn queued(&self) -> usize {
        let inner = self.lock();
        inner.queued.len() + inner.held_back.len()
    }

    fn leave_queue(&self, inner: &mut Inner, uid: &str) {
        if inner.queued.remove(&uid.to_owned()) {
            self.turns_changed.notify_one();
        }
    }

    /// The run of this UID.
    pub fn find(&self, uid: &str) -> Option<ObjectRef<AgentRun>> {
        self.lock().runs.get(uid).map(|it| it.reference.clone())
    }

    /// Every run that has begun and is not over.
    pub fn active(&self) -> Vec<ObjectRef<AgentRun>> {
        self.standing(Standing::Active)
    }

    /// Every run that has not begun.
    pub fn waiting(&self) -> Vec<ObjectRef<AgentRun>> {
        self.standing(Standing::Waiting)
    }

    /// Every run that is not over.
    pub fn unfinished(&self) -> Vec<ObjectRef<AgentRun>> {
        let mut all = self.active();
        all.extend(self.waiting());
        all
    }

    fn standing(&self, standing: Standing) -> Vec<ObjectRef<AgentRun>> {
        let inner = self.lock();
        let those = inner.runs.values().filter(|it| it.standing == standing);
        those.map(|it| it.reference.clone()).collect()
    }

    /// Those whose turn it may be now: of those that wait for the cluster as many as there is room for, and all that wait for their
    /// tree. Who still has to wait says so again.
    pub fn take_turns(&self) -> Vec<ObjectRef<AgentRun>> {
        let mut inner = self.lock();
        let mut turns = std::mem::take(&mut inner.held_back);
        turns.extend(inner.turns(self.capacity));
        let known = turns.iter().filter_map(|uid| inner.runs.get(uid));
        known.map(|it| it.reference.clone()).collect()
    }

    /// This process has made the run's Job.
    pub fn note_made(&self, uid: &str) {
        self.lock().made.insert(uid.to_owned());
    }

    /// Whether it has.
    pub fn is_made(&self, uid: &str) -> bool {
        self.lock().made.contains(uid)
    }

    /// This process has created an object of the run, and the API server gave it this UID.
    pub fn note_created(&self, uid: &str, kind: &str, name: &str, object: &str) {
        let mut inner = self.lock();
        let created = inner.created.entry(uid.to_owned()).or_default();
        created.insert((kind.to_owned(), name.to_owned()), object.to_owned());
    }

    /// The UID of an object of the run that this process has created.
    pub fn created(&self, uid: &str, kind: &str, name: &str) -> Option<String> {
        let inner = self.lock();
        let created = inner.created.get(uid)?;
        created.get(&(kind.to_owned(), name.to_owned())).cloned()
    }

    /// The UIDs of the run's objects are written down.
    pub fn forget_created(&self, uid: &str) {
        self.lock().created.remove(uid);
    }

    /// This process has removed an object of the run.
    pub fn note_removed(&self, uid: &str, kind: &str, name: &str) {
        let mut inner = self.lock();
        let removed = inner.removed.entry(uid.to_owned()).or_default();
        removed.insert((kind.to_owned(), name.to_owned()));
    }

    /// Whether it has.
    pub fn is_removed(&self, uid: &str, kind: &str, name: &str) -> bool {
        let inner = self.lock();
        let removed = inner.removed.get(uid);
        removed.is_some_and(|it| it.contains(&(kind.to_owned(), name.to_owned())))
    }

    /// An object that was removed is there all the same: it is to be removed again.
    pub fn forget_removed(&self, uid: &str, kind: &str, name: &str) {
        if let Some(removed) = self.lock().removed.get_mut(uid) {
            removed.remove(&(kind.to_owned(), name.to_owned()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves the maps whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
