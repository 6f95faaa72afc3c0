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

/// What the plan's object is called at its end.
const PLAN: &str = "plan";

/// A stored plan, or why there is none to read.
#[derive(Debug)]
pub enum Stored {
    /// It is the one that the run's status names.
    Plan(Box<RunPlan>),
    /// The run is not planned, or was denied.
    NotPlanned,
    /// It is not there any more.
    Gone,
    /// It is there, and is another one, or cannot be understood.
    Wrong(String),
    /// It cannot be had.
    Unreadable(CallError),
}

impl Stored {
    /// The plan, where it could be read.
    pub fn readable(&self) -> Option<&RunPlan> {
        match self {
            Self::Plan(plan) => Some(plan),
            _ => None,
        }
    }
}

/// The plan of a run, held against the digest in its status.
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

/// What the objects of a run are called.
pub fn names(run: &AgentRun) -> Names {
    // Names are made of name and UID alone.
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
