//! Checks of rendered objects.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, SeccompProfile, Volume};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::json;
use sympozium_api::RunPlan;
use sympozium_api::rbac::RbacRule;
use sympozium_api::run_plan::{Part, Role, Start, VolumeSource};

use crate::render::{CreationStep, RenderSettings, Rendered};

pub fn templates(rendered: &Rendered) -> impl Iterator<Item = (CreationStep, &PodTemplateSpec)> {
    let items = rendered.objects.iter();
    items.filter_map(|item| Some((item.step, item.object.pod_template()?)))
}

pub fn pods(rendered: &Rendered) -> impl Iterator<Item = (PodSpec, CreationStep)> {
    templates(rendered).map(|(stage, template)| (template.spec.clone().unwrap_or_default(), stage))
}

pub fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

pub fn volumes(spec: &PodSpec) -> impl Iterator<Item = &Volume> {
    spec.volumes.iter().flatten()
}

pub fn is_label_value(value: &str) -> bool {
    let inner = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let ends = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    value.len() <= 63 && value.chars().all(inner) && ends(value.chars().next()) && ends(value.chars().last())
}

/// The security context of the pod, which only the access to the node of its parts loosens.
pub fn check_pod_confined(plan: &RunPlan, spec: &PodSpec) {
    let in_pod = |part: &&Part| containers(spec).any(|container| container.name == part.name.0);
    let access = || plan.parts.iter().filter(in_pod).filter_map(|part| part.host_access.as_ref());
    let network = access().any(|access| access.host_network);
    let processes = access().any(|access| access.host_pid);
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(spec.enable_service_links, Some(false));
    assert_eq!(spec.share_process_namespace, Some(false));
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    assert_eq!(spec.dns_policy.as_deref(), Some("None"));
    assert_eq!(
        (spec.host_network, spec.host_pid, spec.host_ipc),
        (network.then_some(true), processes.then_some(true), None)
    );
    assert!(
        spec.service_account_name.as_ref().is_some_and(|service_account_name| service_account_name.ends_with("-pod"))
    );
    assert!(spec.termination_grace_period_seconds.is_some_and(|seconds| seconds <= 30));
    let security = spec.security_context.clone().unwrap_or_default();
    assert_eq!((security.run_as_non_root, security.run_as_user), (Some(true), Some(1000)));
    assert_eq!((security.run_as_group, security.fs_group), (Some(1000), Some(1000)));
    same_filter(plan, security.seccomp_profile.as_ref());
}

fn same_filter(plan: &RunPlan, made: Option<&SeccompProfile>) {
    let planned = serde_json::to_value(&plan.isolation.seccomp).expect("a filter");
    assert_eq!(serde_json::to_value(made).expect("a filter"), planned);
    assert_ne!(planned["type"], "Unconfined");
}

pub fn check_container_confined(plan: &RunPlan, container: &Container) {
    let name = &container.name;
    let part = plan.parts.iter().find(|part| part.name.0 == *name);
    let access = part.and_then(|part| part.host_access.clone());
    let root = access.as_ref().is_some_and(|access| access.run_as_root);
    let privileged = access.is_some_and(|access| access.privileged);
    let security = container.security_context.clone().unwrap_or_default();
    assert_eq!(
        (security.run_as_non_root, security.run_as_user),
        (Some(!root), Some(if root { 0 } else { 1000 })),
        "{name}"
    );
    assert_eq!(security.allow_privilege_escalation, Some(privileged), "{name}");
    assert_eq!(
        (security.read_only_root_filesystem, security.privileged),
        (Some(true), privileged.then_some(true)),
        "{name}"
    );
    let capabilities = security.capabilities.unwrap_or_default();
    assert_eq!((capabilities.add, capabilities.drop), (None, (!privileged).then(|| vec!["ALL".to_owned()])), "{name}");
    same_filter(plan, security.seccomp_profile.as_ref());
    let resources = container.resources.clone().unwrap_or_default();
    for amounts in [resources.requests, resources.limits] {
        let set: Vec<String> = amounts.unwrap_or_default().into_keys().collect();
        assert_eq!(set, ["cpu", "memory"], "{name}");
    }
    assert!(container.env_from.is_none() && container.ports.is_none() && container.lifecycle.is_none(), "{name}");
    let mut variables = BTreeSet::new();
    for variable in container.env.iter().flatten() {
        assert!(variables.insert(&variable.name), "{name}: {}", variable.name);
    }
    let mut places = BTreeSet::new();
    for mount in container.volume_mounts.iter().flatten() {
        assert!(places.insert(&mount.mount_path), "{name}: {}", mount.mount_path);
        assert!(mount.mount_propagation.is_none() && mount.sub_path_expr.is_none());
    }
}

pub fn same_mounts(part: &Part, container: &Container) {
    type MountFields<'s> = (&'s str, &'s str, bool, Option<&'s str>);
    let mut planned: Vec<MountFields<'_>> = part
        .mounts
        .iter()
        .map(|mount| {
            let sub_path = mount.sub_path.as_deref();
            (mount.volume.0.as_str(), mount.path.as_str(), mount.read_only, sub_path)
        })
        .collect();
    if matches!(part.start, Start::Injected { .. }) {
        planned.push(("executor", "/opt/sympozium/bin", true, None));
    }
    let mounts = container.volume_mounts.iter().flatten();
    let mounts = mounts.map(|mount| {
        let read_only = mount.read_only == Some(true);
        (mount.name.as_str(), mount.mount_path.as_str(), read_only, mount.sub_path.as_deref())
    });
    assert_eq!(mounts.collect::<Vec<_>>(), planned, "{}", part.name);
}

pub fn same_resources(part: &Part, container: &Container) {
    let made = serde_json::to_value(&container.resources).expect("amounts");
    let planned = &part.amounts;
    let expected = json!({
        "requests": { "cpu": planned.cpu_request.text(), "memory": planned.memory_request.text() },
        "limits": { "cpu": planned.cpu_limit.text(), "memory": planned.memory_limit.text() },
    });
    assert_eq!(made, expected, "{}", part.name);
}

/// The command is that of the plan; the bridge also gets the digest of the plan and the address of the gateway.
pub fn same_start(plan: &RunPlan, rendered: &Rendered, part: &Part, container: &Container) {
    let (command, mut args) = match &part.start {
        Start::Image { command, args } if !part.is_attested() => (command.clone(), args.clone()),
        _ => (vec!["/opt/sympozium/bin/skill-sidecar".to_owned()], executor(plan, part)),
    };
    if part.role == Role::Bridge {
        let gateway = RenderSettings::default().gateway;
        args.push(format!("--plan-digest={}", rendered.digest));
        args.push(format!("--gateway={}:{}", gateway.name, gateway.port));
        args.push(platform(plan));
    }
    let made = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
    assert_eq!(made(&container.command), command, "{}", part.name);
    assert_eq!(made(&container.args), args, "{}", part.name);
}

/// Every option of the executor, from the plan: nothing is left to the image.
fn executor(plan: &RunPlan, part: &Part) -> Vec<String> {
    let isolation = &plan.isolation;
    let floor: Vec<&str> = isolation.floor.iter().map(|floor| floor.as_str()).collect();
    let floor = if floor.is_empty() { "none".to_owned() } else { floor.join(",") };
    let gvisor = isolation.kernel.as_ref().is_some_and(|kernel| kernel.gvisor);
    let mut args = vec![
        "ipc".to_owned(),
        "--injected".to_owned(),
        "--authenticated".to_owned(),
        format!("--pack={}", part.role.pack().expect("a pack")),
        format!("--profile={}", if gvisor { "gvisor" } else { "auto" }),
        format!("--minimum-isolation={floor}"),
        platform(plan),
    ];
    let fixed = [
        "--ipc-dir=/ipc",
        "--workspace=/workspace",
        "--hidden=/run/sympozium",
        "--max-timeout=120",
        "--claim-lease=150",
        "--max-concurrent=16",
        "--log-level=info",
        "--log-format=json",
    ];
    args.extend(fixed.map(str::to_owned));
    let writable = part.mounts.iter().filter(|mount| !mount.read_only);
    let writable = writable.filter(|mount| mount.path.as_str() != "/ipc");
    args.extend(writable.map(|mount| format!("--writable={}", mount.path.as_str().replace('$', "$$"))));
    args
}

fn platform(plan: &RunPlan) -> String {
    let other_kernel = (plan.isolation.kernel.as_ref()).is_some_and(|kernel| !kernel.gvisor);
    let kernel = if other_kernel { ",kernel" } else { "" };
    format!("--platform-holds=filesystem,network,memory,cpu{kernel}")
}

/// As in the plan, followed by those for the gateway, where the plan lets the part reach anything.
pub fn same_variables(plan: &RunPlan, part: &Part, container: &Container) {
    let planned = serde_json::to_value(&part.env).expect("variables");
    let planned = planned.as_array().expect("a list");
    let made = serde_json::to_value(&container.env).expect("variables");
    let made = made.as_array().cloned().unwrap_or_default();
    assert_eq!(made[..planned.len()], planned[..], "{}", part.name);
    let more: Vec<&str> = made[planned.len()..].iter().filter_map(|variable| variable["name"].as_str()).collect();
    let reaches = part.role != Role::Bridge && plan.credentials.iter().any(|credential| credential.part == part.name);
    let expected = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy"];
    assert_eq!(more, if reaches { &expected[..] } else { &[] }, "{}", part.name);
    let sees_input = part.mounts.iter().any(|mount| {
        let volume = plan.volume(&mount.volume).expect("a volume");
        matches!(&volume.source, VolumeSource::Input { .. })
    });
    assert!(sees_input || !reaches, "{}", part.name);
}

pub fn variables_from_secrets(container: &Container) -> BTreeSet<String> {
    let variables = container.env.iter().flatten();
    let variables = variables.filter_map(|variable| variable.value_from.as_ref()?.secret_key_ref.as_ref());
    variables.map(|variable| variable.name.clone()).collect()
}

pub fn rule(rule: &RbacRule) -> PolicyRule {
    serde_json::from_value(serde_json::to_value(rule).expect("a rule")).expect("a rule")
}
