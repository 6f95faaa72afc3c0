//! Refuses plans that need what one machine does not have, before anything starts, with what to do instead.

use anyhow::anyhow;
use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::agent_run::RunMode;
use sympozium_api::names::ObjectName;
use sympozium_api::open::Volume;
use sympozium_api::run_plan::{Role, VolumeSource, Workload};
use sympozium_api::sandbox::SeccompProfileType;
use sympozium_api::text::quote;

use crate::failure::Failure;

const CLUSTER_HINT: &str = "run it in a cluster (`sympozium render` prints the objects), or leave out what needs one";
/// Fields of the run that a variable may refer to here.
pub const SUPPORTED_FIELDS: &[&str] = &["metadata.name", "metadata.namespace", "metadata.uid"];

/// What is not supported, and a hint.
type Obstacle = (String, &'static str);

/// Refuses a plan that cannot be realised on one machine. The error lists everything that it needs and that is missing.
pub fn check(plan: &RunPlan) -> Result<(), Failure> {
    let mut reasons = Vec::new();
    check_run(plan, &mut reasons);
    check_parts(plan, &mut reasons);
    check_volumes(plan, &mut reasons);
    let Some((_, hint)) = reasons.first() else {
        return Ok(());
    };
    let hint = *hint;
    let all: Vec<String> = reasons.into_iter().map(|(reason, _)| reason).collect();
    let error = anyhow!("this run is not for one machine: {}", all.join("; "));
    Err(Failure::new(error, hint))
}

fn check_run(plan: &RunPlan, reasons: &mut Vec<Obstacle>) {
    for identity in &plan.identities {
        let owner = match &identity.pack {
            Some(pack) => format!("pack {}", quote(pack)),
            None => "a hook".to_owned(),
        };
        reasons.push((format!("{owner} has permissions at a Kubernetes API (`rbac`, `clusterRBAC`)"), CLUSTER_HINT));
    }
    if plan.task.mode == RunMode::Server {
        reasons.push((
            "it is in server mode, and no client could reach it".to_owned(),
            "set `mode: task`, or run it in a cluster",
        ));
    }
    if plan.workload != Workload::Job {
        reasons.push((
            "it asks for a Sandbox of agent-sandbox".to_owned(),
            "set `agentSandbox.enabled: false`, or run it in a cluster",
        ));
    }
    if plan.isolation.seccomp.type_ != SeccompProfileType::RuntimeDefault {
        reasons.push((
            "it asks for a filter of system calls that is a file of a node".to_owned(),
            "use `seccompProfile: {type: RuntimeDefault}`, or run it in a cluster",
        ));
    }
    let host = plan.model.endpoint.as_ref().map(|it| it.host.as_str());
    if let Some(host) = host.filter(|it| is_cluster_host(it)) {
        reasons.push((
            format!("its model answers at {}, which is in a cluster", quote(host)),
            "name another address with --base-url, such as http://127.0.0.1:11434/v1, or another model with --model",
        ));
    }
}

fn is_cluster_host(host: &str) -> bool {
    host.ends_with(".svc") || host.ends_with(".cluster.local")
}

fn check_parts(plan: &RunPlan, reasons: &mut Vec<Obstacle>) {
    for part in &plan.parts {
        let owner = describe_owner(&part.role);
        if part.host_access.is_some() {
            reasons.push((format!("{owner} has access to the node (`hostAccess`)"), CLUSTER_HINT));
        }
        let sources = part.env.iter().filter_map(|it| Some((it, it.value_from.as_ref()?)));
        for (variable, source) in sources {
            let field = source.field_ref.as_ref().map(|it| it.field_path.as_str());
            let is_known = field.is_none_or(|it| SUPPORTED_FIELDS.contains(&it));
            if source.resource_field_ref.is_some() || !is_known {
                reasons.push((
                    format!("variable {} of {owner} is about its pod", quote(variable.name.as_str())),
                    "give it a `value`; of fields there are metadata.name, metadata.namespace and metadata.uid",
                ));
            }
        }
    }
}

fn describe_owner(role: &Role) -> String {
    match role {
        Role::Agent => "the agent".to_owned(),
        Role::Bridge => "the bridge".to_owned(),
        Role::Sandbox => "the sandbox".to_owned(),
        Role::Skill { pack } => format!("pack {}", quote(pack.as_str())),
        Role::PreRun { hook } | Role::PostRun { hook, .. } => {
            format!("hook {}", quote(hook.as_str()))
        }
    }
}

fn check_volumes(plan: &RunPlan, reasons: &mut Vec<Obstacle>) {
    for volume in &plan.volumes {
        match &volume.source {
            VolumeSource::Host { path } => reasons.push((
                format!("{} of the node is mounted", quote(path.as_str())),
                "give the run the directory with --workspace, or run it in a cluster",
            )),
            VolumeSource::Declared { volume } => {
                reasons.extend(check_declared(volume));
            }
            VolumeSource::Scratch { .. }
            | VolumeSource::Kept { .. }
            | VolumeSource::Texts { .. }
            | VolumeSource::Input { .. }
            | VolumeSource::Token { .. }
            | VolumeSource::Secret { .. }
            | VolumeSource::ConfigMap { .. } => {}
        }
    }
}

fn check_declared(volume: &Volume) -> Option<Obstacle> {
    let name = quote(volume.name.as_str());
    let kinds: Vec<&str> = volume.source.keys().map(String::as_str).collect();
    match kinds.as_slice() {
        // Without a source it is empty, as in a pod.
        [] | ["emptyDir" | "configMap" | "secret"] => None,
        ["persistentVolumeClaim"] => {
            let claim = volume.source.get("persistentVolumeClaim");
            let claim = claim.and_then(|it| it.get("claimName")).and_then(Value::as_str);
            let is_name = claim.is_some_and(|it| ObjectName::from(it).check().is_ok());
            (!is_name).then(|| {
                let reason = format!("volume {name} is a claim without a name");
                (reason, "set `persistentVolumeClaim.claimName`: here it is a directory that stays after the run")
            })
        }
        kinds => {
            let kinds: Vec<String> = kinds.iter().map(|it| quote(it)).collect();
            Some((
                format!("volume {name} is of kind {}", kinds.join(", ")),
                "use emptyDir, configMap, secret or persistentVolumeClaim, or give the run a directory with --workspace",
            ))
        }
    }
}
