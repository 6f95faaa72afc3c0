//! The plan of a run as it is stored in the cluster.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use sympozium_api::run_plan::RunIdentity;
use sympozium_api::{AgentRun, RunPlan};
use sympozium_plan::render::key;
use sympozium_plan::render::names::ObjectNames;

use super::call_error::CallError;
use super::connection::Connection;
use super::view;

/// The suffix of the name of the plan's ConfigMap.
const PLAN_SUFFIX: &str = "plan";

/// A stored plan, or why it cannot be used.
#[derive(Debug)]
pub enum StoredPlan {
    /// The plan with the digest that the run's status names.
    Plan(Box<RunPlan>),
    /// The run is not planned yet, or was denied.
    NotPlanned,
    /// Its ConfigMap does not exist any more.
    Deleted,
    /// Its ConfigMap has another plan, or one that cannot be parsed.
    Mismatch(String),
    /// The request failed.
    Unreadable(CallError),
}

impl StoredPlan {
    /// The plan, if it was read.
    pub fn as_plan(&self) -> Option<&RunPlan> {
        match self {
            Self::Plan(plan) => Some(plan),
            _ => None,
        }
    }
}

/// Reads the plan of a run and verifies it against the digest in the run's status.
pub async fn read_stored_plan(connection: &Connection, run: &AgentRun) -> StoredPlan {
    let status = view::status(run);
    let Some(digest) = status.plan_digest else {
        return StoredPlan::NotPlanned;
    };
    let api = connection.api::<ConfigMap>();
    let name = object_names(run).with_suffix(PLAN_SUFFIX);
    let map = match connection.try_call(api.get_opt(&name)).await {
        Ok(Some(map)) => map,
        Ok(None) => return StoredPlan::Deleted,
        Err(error) => return StoredPlan::Unreadable(error),
    };
    let Some(text) = map.data.as_ref().and_then(|it| it.get(key::PLAN)) else {
        return StoredPlan::Mismatch(format!("ConfigMap {name} has no {}", key::PLAN));
    };
    match RunPlan::read_verified(text.as_bytes(), &digest) {
        Ok(plan) => StoredPlan::Plan(Box::new(plan)),
        Err(error) => StoredPlan::Mismatch(format!("ConfigMap {name}: {error}")),
    }
}

/// The names of the objects of a run.
pub fn object_names(run: &AgentRun) -> ObjectNames {
    // Names depend on name and UID alone.
    ObjectNames::new(&RunIdentity {
        namespace: run.namespace().unwrap_or_default().as_str().into(),
        name: run.name_any().as_str().into(),
        uid: run.uid().unwrap_or_default().as_str().into(),
        agent_kind: String::new(),
        agent: "".into(),
        agent_id: String::new(),
        session_key: String::new(),
        parent: None,
    })
}
