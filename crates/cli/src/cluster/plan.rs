//! The plan of a run as it is stored in the cluster.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use sympozium_api::run_plan::RunIdentity;
use sympozium_api::{AgentRun, RunPlan};
use sympozium_plan::render::key;
use sympozium_plan::render::names::Names;

use super::connection::Connection;
use super::refused::CallError;
use super::view;

/// The suffix of the name of the plan's ConfigMap.
const PLAN: &str = "plan";

/// A stored plan, or why it cannot be used.
#[derive(Debug)]
pub enum Stored {
    /// The plan with the digest that the run's status names.
    Plan(Box<RunPlan>),
    /// The run is not planned yet, or was denied.
    NotPlanned,
    /// Its ConfigMap does not exist any more.
    Gone,
    /// Its ConfigMap has another plan, or one that cannot be parsed.
    Wrong(String),
    /// The request failed.
    Unreadable(CallError),
}

impl Stored {
    /// The plan, if it was read.
    pub fn readable(&self) -> Option<&RunPlan> {
        match self {
            Self::Plan(plan) => Some(plan),
            _ => None,
        }
    }
}

/// Reads the plan of a run and verifies it against the digest in the run's status.
pub async fn stored(connection: &Connection, run: &AgentRun) -> Stored {
    let status = view::status(run);
    let Some(digest) = status.plan_digest else {
        return Stored::NotPlanned;
    };
    let api = connection.all::<ConfigMap>();
    let name = names(run).of(PLAN);
    let map = match connection.attempt(api.get_opt(&name)).await {
        Ok(Some(map)) => map,
        Ok(None) => return Stored::Gone,
        Err(error) => return Stored::Unreadable(error),
    };
    let Some(text) = map.data.as_ref().and_then(|it| it.get(key::PLAN)) else {
        return Stored::Wrong(format!("ConfigMap {name} has no {}", key::PLAN));
    };
    match RunPlan::read_expected(text.as_bytes(), &digest) {
        Ok(plan) => Stored::Plan(Box::new(plan)),
        Err(error) => Stored::Wrong(format!("ConfigMap {name}: {error}")),
    }
}

/// The names of the objects of a run.
pub fn names(run: &AgentRun) -> Names {
    // Names depend on name and UID alone.
    Names::new(&RunIdentity {
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
