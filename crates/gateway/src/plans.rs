//! The runs that may reach something, and what: from their plans, until they are over.

mod directory;
mod facts;
mod reach;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sympozium_api::RunPlan;
use sympozium_api::run_plan::GatewayCredential;
use sympozium_plan::host::InvalidHost;
use tokio::sync::watch;

use crate::events::{Reason, Who};
use crate::run_api::RunState;
use crate::settings::{MAX_ENDED_RUNS, MAX_RULES, MAX_RUNS};

pub use directory::{Loaded, load_directory};
pub use facts::RunFacts;
pub(crate) use reach::is_this_machine;
pub use reach::{Permission, Rules, Scope};

/// All runs that are known.
#[derive(Debug, Default)]
pub struct Plans {
    runs: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    active: HashMap<String, Arc<Run>>,
    /// Those that are over, oldest first: none of them comes back.
    ended: VecDeque<String>,
}

/// A run whose plan is known.
#[derive(Debug)]
pub struct Run {
    uid: String,
    grants: HashMap<String, Grant>,
    over: watch::Sender<bool>,
    pub(crate) usage: Usage,
    /// For the run API. Absent where only the credentials of a run are known.
    facts: Option<Arc<RunFacts>>,
    pub(crate) state: RunState,
}

/// What one credential of a run opens.
#[derive(Debug)]
pub struct Grant {
    /// Who holds it, for events.
    pub who: Who,
    /// What it opens.
    pub rules: Rules,
    pub(crate) usage: Usage,
}

/// What is in use, and was.
#[derive(Debug, Default)]
pub struct Usage {
    pub(crate) connections: AtomicUsize,
    pub(crate) bytes: AtomicU64,
}

/// One credential of a run that is not over.
#[derive(Debug, Clone)]
pub struct Holder {
    pub(crate) run: Arc<Run>,
    name: String,
}

/// Why a run cannot be added.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Runs do not come back.
    #[error("run {0} is over")]
    Over(String),
    /// A plan is made once.
    #[error("run {0} is known with another plan")]
    Changed(String),
    /// No room.
    #[error("{MAX_RUNS} runs are known already")]
    TooMany,
    /// Not a plan that was ever stored.
    #[error("the plan of run {0} has no digest")]
    NoDigest(String),
    /// Two credentials of one name.
    #[error("the plan has credential `{0}` twice")]
    Twice(String),
    /// Too much.
    #[error("credential `{0}` has more than {MAX_RULES} destinations")]
    TooManyRules(String),
    /// Not a host.
    #[error("credential `{credential}`: destination `{host}`")]
    Destination {
        /// Of which credential.
        credential: String,
        /// As written.
        host: String,
        /// Why.
        #[source]
        error: InvalidHost,
    },
}

impl Plans {
    /// Takes a run's plan into account. The same plan again changes nothing.
    ///
    /// # Errors
    ///
    /// When the run is over or known with another plan, or the plan cannot be understood.
    pub fn add(&self, plan: &RunPlan) -> Result<(), Unusable> {
        let uid = plan.run.uid.as_str();
        let facts = RunFacts::of(plan).map_err(|_| Unusable::NoDigest(uid.to_owned()))?;
        self.insert(uid, &plan.credentials, Some(facts))
    }

    /// As [`Self::add`], with the only thing that counts of a plan for the way out. The run API does not know such a run.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_credentials(&self, uid: &str, credentials: &[GatewayCredential]) -> Result<(), Unusable> {
        self.insert(uid, credentials, None)
    }

    fn insert(&self, uid: &str, credentials: &[GatewayCredential], facts: Option<RunFacts>) -> Result<(), Unusable> {
        let mut grants = HashMap::new();
        for credential in credentials {
            let who =
                Who { run: uid.to_owned(), credential: credential.name.clone(), part: Some(credential.part.0.clone()) };
            let grant = Grant { who, rules: Rules::of(credential)?, usage: Usage::default() };
            if grants.insert(credential.name.clone(), grant).is_some() {
                return Err(Unusable::Twice(credential.name.clone()));
            }
        }
        let mut runs = self.lock();
        if runs.ended.iter().any(|ended| ended == uid) {
            return Err(Unusable::Over(uid.to_owned()));
        }
        if let Some(known) = runs.active.get(uid) {
            let same = known.facts.as_deref() == facts.as_ref()
                && known.grants.len() == grants.len()
                && grants.iter().all(|(name, grant)| {
                    let known = known.grants.get(name);
                    known.is_some_and(|it| it.rules == grant.rules && it.who == grant.who)
                });
            return if same { Ok(()) } else { Err(Unusable::Changed(uid.to_owned())) };
        }
        if runs.active.len() == MAX_RUNS {
            return Err(Unusable::TooMany);
        }
        let run = Run {
            uid: uid.to_owned(),
            grants,
            over: watch::Sender::new(false),
            usage: Usage::default(),
            facts: facts.map(Arc::new),
            state: RunState::default(),
        };
        runs.active.insert(uid.to_owned(), Arc::new(run));
        Ok(())
    }

    /// The run is over: nothing of it is let through any more, and what is open is cut. Whether it was active.
    pub fn end(&self, uid: &str) -> bool {
        let mut runs = self.lock();
        let run = runs.active.remove(uid);
        if !runs.ended.iter().any(|ended| ended == uid) {
            if runs.ended.len() == MAX_ENDED_RUNS {
                runs.ended.pop_front();
            }
            runs.ended.push_back(uid.to_owned());
        }
        drop(runs);
        run.is_some_and(|run| !run.over.send_replace(true))
    }

    /// The run has reported its end, here or at another gateway: it asks for nothing any more.
    pub fn reported_end(&self, uid: &str) {
        let run = self.lock().active.get(uid).map(Arc::clone);
        if let Some(run) = run {
            run.state.set_ended();
        }
    }

    /// The UIDs of the runs that are not over.
    pub fn active(&self) -> Vec<String> {
        self.lock().active.keys().cloned().collect()
    }

    /// What a credential opens.
    ///
    /// # Errors
    ///
    /// When the run is not known or over, or its plan has no such credential.
    pub fn holder(&self, run: &str, credential: &str) -> Result<Holder, Reason> {
        let runs = self.lock();
        let Some(found) = runs.active.get(run) else {
            return Err(if runs.ended.iter().any(|ended| ended == run) { Reason::RunOver } else { Reason::RunUnknown });
        };
        if !found.grants.contains_key(credential) {
            return Err(Reason::CredentialNotPlanned);
        }
        Ok(Holder { run: Arc::clone(found), name: credential.to_owned() })
    }

    /// The run of this UID, for the run API.
    ///
    /// # Errors
    ///
    /// When it is not known with its plan, or over.
    pub(crate) fn run(&self, uid: &str) -> Result<Arc<Run>, Reason> {
        let runs = self.lock();
        match runs.active.get(uid) {
            Some(run) if run.facts.is_some() => Ok(Arc::clone(run)),
            None if runs.ended.iter().any(|ended| ended == uid) => Err(Reason::RunOver),
            _ => Err(Reason::RunUnknown),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        // A panic elsewhere leaves the map whole.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder {
    /// What it opens.
    pub fn grant(&self) -> &Grant {
        match self.run.grants.get(&self.name) {
            Some(grant) => grant,
            None => {
                unreachable!("a holder is made of a grant that is there, and grants do not change")
            }
        }
    }

    /// Ready when the run is over.
    pub async fn over(&self) {
        self.run.over().await;
    }

    /// Whether the run is over.
    pub fn is_over(&self) -> bool {
        self.run.is_over()
    }
}

impl Run {
    /// Its UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Its namespace; empty where only its credentials are known.
    pub fn namespace(&self) -> &str {
        let facts = self.facts.as_ref();
        facts.map_or("", |it| it.run.namespace.as_str())
    }

    /// What its plan says, where it is known.
    pub fn facts(&self) -> Option<&Arc<RunFacts>> {
        self.facts.as_ref()
    }

    /// Ready when the run is over.
    pub async fn over(&self) {
        let mut over = self.over.subscribe();
        // The sender lives as long as the run.
        let _ = over.wait_for(|over| *over).await;
    }

    /// Whether the run is over.
    pub fn is_over(&self) -> bool {
        *self.over.borrow()
    }
}

impl Usage {
    /// Counts one more connection, unless there are `most`.
    pub(crate) fn enter(&self, most: usize) -> bool {
        let more = |count: usize| (count < most).then_some(count + 1);
        let order = Ordering::Relaxed;
        self.connections.fetch_update(order, order, more).is_ok()
    }

    pub(crate) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts bytes; whether they are still within `most`.
    pub(crate) fn add(&self, bytes: u64, most: u64) -> bool {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        before.saturating_add(bytes) <= most
    }
}

#[cfg(test)]
mod tests;
