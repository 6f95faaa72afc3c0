//! Plans of active runs, in memory and as they are stored.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use parking_lot::Mutex;
use sympozium_api::RunPlan;
use sympozium_api::names::{RunName, Uid};
use sympozium_api::run_plan::RunIdentity;
use sympozium_plan::render::{key, names::object_name};

use super::error::{Error, is_not_found};
use super::retry::retry;
use super::stored::StoredRun;
use crate::context::Context;

/// The word in the name of the plan's ConfigMap.
pub const PLAN_NAME: &str = "plan";

/// Plans of active runs, by the run's UID.
#[derive(Debug, Default)]
pub struct Plans {
    plans: Mutex<HashMap<String, Arc<RunPlan>>>,
}

impl Plans {
    /// Remembers a plan that was just stored.
    pub fn insert(&self, plan: RunPlan) -> Arc<RunPlan> {
        let plan = Arc::new(plan);
        let uid = plan.run.uid.as_str().to_owned();
        self.plans.lock().insert(uid, Arc::clone(&plan));
        plan
    }

    pub fn forget(&self, uid: &str) {
        self.plans.lock().remove(uid);
    }

    /// The plan of a run: only the one with the digest in the run's status.
    ///
    /// # Errors
    ///
    /// When the plan is gone or was changed, or the API server does not answer.
    pub async fn load(&self, run: &StoredRun, context: &Context) -> Result<Arc<RunPlan>, Error> {
        let known = self.plans.lock().get(run.uid()).cloned();
        if let Some(plan) = known {
            return Ok(plan);
        }
        let digest = run.status.as_ref().and_then(|status| status.plan_digest.as_ref());
        let digest = digest.ok_or(Error::PlanChanged)?;
        let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), run.namespace());
        let name = object_name(&run_identity(run), PLAN_NAME);
        let stored = match retry(|| api.get(&name)).await {
            Ok(stored) => stored,
            Err(error) if is_not_found(&error) => return Err(Error::PlanChanged),
            Err(error) => return Err(Error::api("read", "ConfigMap", name)(error)),
        };
        let text = stored.data.as_ref().and_then(|data| data.get(key::PLAN));
        let bytes = text.map(String::as_bytes).ok_or(Error::PlanChanged)?;
        if RunPlan::digest_of(bytes) != *digest {
            return Err(Error::PlanChanged);
        }
        let plan = RunPlan::read(bytes).map_err(|_| Error::PlanChanged)?;
        if plan.run.uid.as_str() != run.uid() {
            return Err(Error::PlanChanged);
        }
        Ok(self.insert(plan))
    }
}

/// The identity of a run, with the fields that object names are derived from.
pub fn run_identity(run: &StoredRun) -> RunIdentity {
    RunIdentity {
        namespace: run.namespace().into(),
        name: RunName::new(run.name()),
        uid: Uid::new(run.uid()),
        agent_kind: String::new(),
        agent: Default::default(),
        agent_id: String::new(),
        session_key: String::new(),
        parent: None,
    }
}
