//! The run, its model and its skill texts.

use serde::Serialize;
use sympozium_api::agent_run::RunMode;
use sympozium_api::run_plan::{ModelPlan, Role, RunPlan, SkillPlan, SkillSource, Start, Workload};

use super::tools::digest_value;

/// The run that is explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunInfo {
    /// The namespace of the run.
    pub namespace: String,
    /// The name of the run.
    pub name: String,
    /// The UID of the run, which is part of the names of its objects.
    pub uid: String,
    /// `Agent` or `SympoziumInstance`.
    pub agent_kind: String,
    /// The name of the agent.
    pub agent: String,
    /// Whether the run ends with its task.
    pub mode: RunMode,
    /// The kind of its workload: `Job` or `Sandbox`.
    pub workload: &'static str,
    /// The warm pool that a running Sandbox is claimed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<String>,
    /// The run that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The digest of task and system prompt.
    pub task_digest: String,
    /// The objects that the plan was made from.
    pub made_from: Vec<ObjectInfo>,
}

/// An object that a plan was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectInfo {
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The digest of its spec.
    pub digest: String,
}

/// The model of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    /// The provider that serves it.
    pub provider: String,
    /// The provider's name for it.
    pub model: String,
    /// The only address that requests go to; absent when the bridge answers itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Whether requests to that address are encrypted; true when the bridge answers itself.
    pub is_encrypted: bool,
    /// The digest of all settings of requests.
    pub settings_digest: String,
    /// Where the model key is, and which part reads it.
    pub keys: Vec<ModelKeyInfo>,
    /// Names of headers of every request.
    pub headers: Vec<String>,
    /// A Secret with further headers, which only the bridge reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers_secret: Option<String>,
    /// The ConfigMap with the turns of a scripted model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
}

/// A key of the model's provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelKeyInfo {
    /// The name of the Secret.
    pub secret: String,
    /// The key in the Secret, which is also the variable.
    pub key: String,
    /// The part that reads it.
    pub read_by: String,
}

/// A skill text that the agent reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillInfo {
    /// The pack that it is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// The skill's name in the pack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skill: Option<String>,
    /// The ConfigMap that it is from, with its contents at the start of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<String>,
    /// The digest of text and files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The directory where the agent reads it.
    pub directory: String,
    /// The skill's description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The only tools that are for it; all tools of the run when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// Files beside the text.
    pub files: Vec<String>,
    /// Those files that the pack's sidecar can execute.
    pub programs: Vec<String>,
}

/// What runs commands in a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Executor {
    /// One of our programs.
    Ours,
    /// Our executor, injected into the image: commands are confined, and their isolation is reported.
    Injected,
    /// The entrypoint of the image: nothing is attested beyond the pod's spec.
    Image,
}

impl Executor {
    /// The word in comparisons.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Injected => "injected",
            Self::Image => "image",
        }
    }
}

pub fn run_info(plan: &RunPlan) -> RunInfo {
    let run = &plan.run;
    let (workload, warm_pool) = match &plan.workload {
        Workload::Job => ("Job", None),
        Workload::Sandbox { warm_pool } => ("Sandbox", warm_pool.as_ref()),
    };
    RunInfo {
        namespace: run.namespace.to_string(),
        name: run.name.to_string(),
        uid: run.uid.to_string(),
        agent_kind: run.agent_kind.clone(),
        agent: run.agent.to_string(),
        mode: plan.task.mode,
        workload,
        warm_pool: warm_pool.map(ToString::to_string),
        parent: run.parent.as_ref().map(|parent| parent.run_name.to_string()),
        task_digest: digest_value(&serde_json::to_value(&plan.task).unwrap_or_default()),
        made_from: plan
            .resolved
            .iter()
            .map(|object| ObjectInfo {
                kind: object.kind.clone(),
                namespace: object.namespace.to_string(),
                name: object.name.to_string(),
                digest: object.digest.to_string(),
            })
            .collect(),
    }
}

pub fn plan_digest(plan: &RunPlan) -> String {
    // A plan was read from JSON, or can be written as JSON.
    let mut value = serde_json::to_value(plan).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("resolved");
    }
    if let Some(run) = value.get_mut("run").and_then(serde_json::Value::as_object_mut) {
        run.remove("uid");
    }
    digest_value(&value)
}

pub fn model_info(plan: &RunPlan) -> ModelInfo {
    let ModelPlan { provider, model, endpoint, headers, headers_secret, keys, script, .. } = &plan.model;
    ModelInfo {
        provider: provider.clone(),
        model: model.clone(),
        endpoint: endpoint.as_ref().map(|endpoint| {
            let scheme = if endpoint.encrypted { "https" } else { "http" };
            // Users put keys into the query.
            let path = match endpoint.path.split_once('?') {
                Some((path, _)) => format!("{path}?…"),
                None => endpoint.path.clone(),
            };
            format!("{scheme}://{}:{}{path}", endpoint.host, endpoint.port)
        }),
        is_encrypted: endpoint.as_ref().is_none_or(|endpoint| endpoint.encrypted),
        settings_digest: digest_value(&serde_json::to_value(&plan.model).unwrap_or_default()),
        keys: keys
            .iter()
            .map(|key| ModelKeyInfo {
                secret: key.secret.to_string(),
                key: key.variable.to_string(),
                read_by: bridge_name(plan),
            })
            .collect(),
        headers: headers.keys().cloned().collect(),
        headers_secret: headers_secret.as_ref().map(ToString::to_string),
        script: script.as_ref().map(ToString::to_string),
    }
}

/// The bridge's name. A plan without a bridge has no model either, so the default name will do.
pub fn bridge_name(plan: &RunPlan) -> String {
    let bridge = plan.parts.iter().find(|part| part.role == Role::Bridge);
    bridge.map_or_else(|| "ipc-bridge".to_owned(), |part| part.name.to_string())
}

pub fn skill_infos(plan: &RunPlan) -> Vec<SkillInfo> {
    plan.skills.iter().map(skill_info).collect()
}

fn skill_info(skill: &SkillPlan) -> SkillInfo {
    let (pack, name, digest, config_map) = match &skill.source {
        SkillSource::Pack { pack, skill, digest, .. } => {
            (Some(pack.clone()), Some(skill.clone()), Some(digest.to_string()), None)
        }
        SkillSource::ConfigMap { config_map } => (None, None, None, Some(config_map.clone())),
    };
    let allowed = skill.allowed_tools.as_ref();
    SkillInfo {
        pack,
        skill: name,
        config_map,
        digest,
        directory: skill.directory.clone(),
        description: skill.description.clone(),
        allowed_tools: allowed.map(|all| all.iter().map(ToString::to_string).collect()),
        files: skill.files.iter().map(|file| file.path.to_string()).collect(),
        programs: skill.files.iter().filter(|file| file.executable).map(|file| file.path.to_string()).collect(),
    }
}

pub fn executor_kind(role: &Role, start: &Start) -> Executor {
    match (role, start) {
        (_, Start::Injected { .. }) => Executor::Injected,
        (Role::Agent | Role::Bridge | Role::Sandbox, _) => Executor::Ours,
        (_, Start::Image { .. }) => Executor::Image,
    }
}
