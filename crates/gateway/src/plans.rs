//! The active runs and what they may reach, from their plans.

mod directory;
mod facts;
mod reach;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::GatewayCredential;
use sympozium_plan::host::InvalidHost;
use tokio::sync::watch;

use crate::events::{Reason, Requester};
use crate::run_api::RunState;
use crate::settings::{MAX_ENDED_RUNS, MAX_RULES, MAX_RUNS};

pub use directory::{LoadResult, load_directory};
pub use facts::RunFacts;
pub(crate) use reach::is_localhost;
pub use reach::{AddressScope, AllowList, AllowedTarget};

#[derive(Debug, Default)]
pub struct Plans {
    runs: Mutex<RunTable>,
}

#[derive(Debug, Default)]
struct RunTable {
    active: HashMap<String, Arc<Run>>,
    /// Ended runs, oldest first. They cannot be added again.
    ended: VecDeque<String>,
}

/// A run whose plan is known.
#[derive(Debug)]
pub struct Run {
    uid: String,
    credentials: HashMap<String, PlannedCredential>,
    ended: watch::Sender<bool>,
    pub(crate) usage: Usage,
    /// For the run API. `None` if only the credentials of the run are known.
    facts: Option<Arc<RunFacts>>,
    pub(crate) state: RunState,
}

/// What one credential of a run allows.
#[derive(Debug)]
pub struct PlannedCredential {
    /// For events.
    pub requester: Requester,
    pub allow_list: AllowList,
    pub(crate) usage: Usage,
}

/// Open connections and transferred bytes.
#[derive(Debug, Default)]
pub struct Usage {
    pub(crate) connections: AtomicUsize,
    pub(crate) bytes: AtomicU64,
}

/// A credential of an active run.
#[derive(Debug, Clone)]
pub struct CredentialHandle {
    pub(crate) run: Arc<Run>,
    name: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An ended run cannot be added again.
    #[error("run {0} is over")]
    Ended(String),
    /// A plan never changes.
    #[error("run {0} is known with another plan")]
    Changed(String),
    #[error("{MAX_RUNS} runs are known already")]
    TooMany,
    /// The plan cannot be serialised. Stored plans always can.
    #[error("the plan of run {0} has no digest")]
    NoDigest(String),
    #[error("the plan has credential `{0}` twice")]
    DuplicateCredential(String),
    #[error("credential `{0}` has more than {MAX_RULES} destinations")]
    TooManyRules(String),
    #[error("credential `{credential}`: destination `{host}`")]
    Destination {
        credential: String,
        /// As written in the plan.
        host: String,
        #[source]
        error: InvalidHost,
    },
}

impl Plans {
    /// Adds a run with its plan. Adding the same plan again changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the run has ended or has another plan, or if the plan is not valid.
    pub fn add(&self, plan: &RunPlan) -> Result<(), PlanError> {
        let uid = plan.run.uid.as_str();
        let facts = RunFacts::from_plan(plan).map_err(|_| PlanError::NoDigest(uid.to_owned()))?;
        self.insert(uid, &plan.credentials, Some(facts))
    }

    /// Like [`Self::add`], but with the credentials only, which are enough for egress. The run API does not know such a
    /// run.
    ///
    /// # Errors
    ///
    /// As [`Self::add`].
    pub fn add_credentials(&self, uid: &str, credentials: &[GatewayCredential]) -> Result<(), PlanError> {
        self.insert(uid, credentials, None)
    }

    fn insert(&self, uid: &str, credentials: &[GatewayCredential], facts: Option<RunFacts>) -> Result<(), PlanError> {
        let mut grants = HashMap::new();
        for credential in credentials {
            let who = Requester {
                run: uid.to_owned(),
                credential: credential.name.clone(),
                part: Some(credential.part.0.clone()),
            };
            let grant = PlannedCredential {
                requester: who,
                allow_list: AllowList::from_credential(credential)?,
                usage: Usage::default(),
            };
            if grants.insert(credential.name.clone(), grant).is_some() {
                return Err(PlanError::DuplicateCredential(credential.name.clone()));
            }
        }
        let mut runs = self.runs.lock();
        if runs.ended.iter().any(|ended| ended == uid) {
            return Err(PlanError::Ended(uid.to_owned()));
        }
        if let Some(known) = runs.active.get(uid) {
            let same = known.facts.as_deref() == facts.as_ref()
                && known.credentials.len() == grants.len()
                && grants.iter().all(|(name, grant)| {
                    let known = known.credentials.get(name);
                    known.is_some_and(|credential| {
                        credential.allow_list == grant.allow_list && credential.requester == grant.requester
                    })
                });
            return if same { Ok(()) } else { Err(PlanError::Changed(uid.to_owned())) };
        }
        if runs.active.len() == MAX_RUNS {
            return Err(PlanError::TooMany);
        }
        let run = Run {
            uid: uid.to_owned(),
            credentials: grants,
            ended: watch::Sender::new(false),
            usage: Usage::default(),
            facts: facts.map(Arc::new),
            state: RunState::default(),
        };
        runs.active.insert(uid.to_owned(), Arc::new(run));
        Ok(())
    }

    /// Ends a run: it may not reach anything any more, and its open connections are cut. Returns whether it was active.
    pub fn end(&self, uid: &str) -> bool {
        let mut runs = self.runs.lock();
        let run = runs.active.remove(uid);
        if !runs.ended.iter().any(|ended| ended == uid) {
            if runs.ended.len() == MAX_ENDED_RUNS {
                runs.ended.pop_front();
            }
            runs.ended.push_back(uid.to_owned());
        }
        drop(runs);
        run.is_some_and(|run| !run.ended.send_replace(true))
    }

    /// Called when the run has reported its end, here or at another gateway: it sends no further requests.
    pub fn set_reported_end(&self, uid: &str) {
        let run = self.runs.lock().active.get(uid).map(Arc::clone);
        if let Some(run) = run {
            run.state.set_ended();
        }
    }

    /// The UIDs of the active runs.
    pub fn active_uids(&self) -> Vec<String> {
        self.runs.lock().active.keys().cloned().collect()
    }

    /// Finds a credential.
    ///
    /// # Errors
    ///
    /// Returns an error if the run is unknown or has ended, or if its plan has no such credential.
    pub fn find_credential(&self, run: &str, credential: &str) -> Result<CredentialHandle, Reason> {
        let runs = self.runs.lock();
        let Some(found) = runs.active.get(run) else {
            return Err(if runs.ended.iter().any(|ended| ended == run) { Reason::RunOver } else { Reason::RunUnknown });
        };
        if !found.credentials.contains_key(credential) {
            return Err(Reason::CredentialNotPlanned);
        }
        Ok(CredentialHandle { run: Arc::clone(found), name: credential.to_owned() })
    }

    /// Finds a run by its UID, for the run API.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not known with its plan, or has ended.
    pub(crate) fn find_run(&self, uid: &str) -> Result<Arc<Run>, Reason> {
        let runs = self.runs.lock();
        match runs.active.get(uid) {
            Some(run) if run.facts.is_some() => Ok(Arc::clone(run)),
            None if runs.ended.iter().any(|ended| ended == uid) => Err(Reason::RunOver),
            _ => Err(Reason::RunUnknown),
        }
    }
}

impl CredentialHandle {
    pub fn planned(&self) -> &PlannedCredential {
        match self.run.credentials.get(&self.name) {
            Some(grant) => grant,
            None => {
                unreachable!("a holder is made of a grant that is there, and grants do not change")
            }
        }
    }

    /// Waits until the run has ended.
    pub async fn wait_end(&self) {
        self.run.wait_end().await;
    }

    pub fn has_ended(&self) -> bool {
        self.run.has_ended()
    }
}

impl Run {
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Empty if only its credentials are known.
    pub fn namespace(&self) -> &str {
        let facts = self.facts.as_ref();
        facts.map_or("", |facts| facts.run.namespace.as_str())
    }

    /// `None` if only its credentials are known.
    pub fn facts(&self) -> Option<&Arc<RunFacts>> {
        self.facts.as_ref()
    }

    /// Waits until the run has ended.
    pub async fn wait_end(&self) {
        let mut over = self.ended.subscribe();
        // The sender lives as long as the run.
        let _ = over.wait_for(|over| *over).await;
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }
}

impl Usage {
    /// Counts one more connection, unless there are `most`.
    pub(crate) fn acquire_connection(&self, most: usize) -> bool {
        let more = |count: usize| (count < most).then_some(count + 1);
        let order = Ordering::Relaxed;
        self.connections.fetch_update(order, order, more).is_ok()
    }

    pub(crate) fn release_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts bytes. Returns whether they are still within `most`.
    pub(crate) fn add_bytes(&self, bytes: u64, most: u64) -> bool {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        before.saturating_add(bytes) <= most
    }
}

#[cfg(test)]
mod tests;
