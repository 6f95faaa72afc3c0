//! Runs that are not settled, found by their UID: thousands of finished ones are not looked through for each event.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;

use super::resolve::is_active;
use crate::world::is_settled;

/// Runs that are not settled.
#[derive(Debug)]
pub struct Index {
    inner: Mutex<Inner>,
    known: Once,
}

impl Default for Index {
    fn default() -> Self {
        Self { inner: Mutex::default(), known: Once::new() }
    }
}

#[derive(Debug, Default)]
struct Inner {
    runs: HashMap<String, Known>,
    /// Those that have their turn; the watch may not have shown that they begin.
    reserved: HashSet<String>,
    /// Those that wait until fewer go on in the cluster, the first of them first.
    queued: VecDeque<String>,
    /// Those that wait until fewer of their tree go on.
    held_back: HashSet<String>,
    /// Those whose Job this process has made; the watch may not have shown it yet.
    made: HashSet<String>,
    /// What this process has removed, by run: kind and name.
    removed: HashMap<String, HashSet<(String, String)>>,
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
}

impl Index {
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
        let known = Known { reference: ObjectRef::from_obj(run), standing };
        let before = inner.runs.insert(uid, known);
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
        inner.reserved.remove(uid);
        inner.held_back.remove(uid);
        let known = inner.runs.remove(uid);
        Sighted {
            made_room: (known.as_ref()).is_some_and(|it| it.standing == Standing::Active),
            has_settled: known.is_some(),
        }
    }

    /// Takes note of every run that there is, once: when a controller begins, runs are looked at before all of them are told of.
    pub fn know(&self, all: impl FnOnce() -> Vec<Arc<AgentRun>>) {
        self.known.call_once(|| {
            for run in all() {
                self.see(&run);
            }
        });
    }

    /// Gives a run its turn, unless `judge` says why not, from those that have theirs. In one step: of several that are looked at
    /// at once each must count the others.
    pub fn reserve(
        &self,
        run: &AgentRun,
        judge: impl FnOnce(&[&ObjectRef<AgentRun>]) -> Option<Turn>,
    ) -> Result<(), Turn> {
        let uid = run.uid().unwrap_or_default();
        let mut inner = self.lock();
        let others = inner.runs.iter().filter(|(other, _)| **other != uid);
        let active = others.filter(|(_, it)| it.standing == Standing::Active);
        let active: Vec<_> = active.map(|(_, it)| &it.reference).collect();
        if let Some(turn) = judge(&active) {
            match &turn {
                Turn::OfCluster(_) if !inner.queued.contains(&uid) => inner.queued.push_back(uid),
                Turn::OfCluster(_) => {}
                Turn::OfTree(_) => drop(inner.held_back.insert(uid)),
            }
            return Err(turn);
        }
        inner.reserved.insert(uid.clone());
        let known = Known { reference: ObjectRef::from_obj(run), standing: Standing::Active };
        inner.runs.insert(uid, known);
        Ok(())
    }

    /// A run that had its turn cannot begin now.
    pub fn give_back(&self, uid: &str) {
        let mut inner = self.lock();
        if inner.reserved.remove(uid)
            && let Some(known) = inner.runs.get_mut(uid)
        {
            known.standing = Standing::Waiting;
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

    /// Those whose turn it may be now that one more has ended: the first of those that wait for the cluster, and all that wait for
    /// their tree. Who still has to wait says so again.
    pub fn take_turns(&self) -> Vec<ObjectRef<AgentRun>> {
        let mut inner = self.lock();
        let mut turns = std::mem::take(&mut inner.held_back);
        while let Some(first) = inner.queued.pop_front() {
            // One that went, or began by another way, waits for nothing.
            let known = inner.runs.get(&first);
            if known.is_some_and(|it| it.standing == Standing::Waiting) {
                turns.insert(first);
                break;
            }
        }
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
