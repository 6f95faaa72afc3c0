//! The pods of a run: one for the run, and one after it where there are hooks.

use k8s_openapi::api::core::v1::{Container, HostAlias, LocalObjectReference, PodDNSConfig, PodSpec, PodTemplateSpec};
use sympozium_api::labels::component;
use sympozium_api::names::ImageRef;
use sympozium_api::run_plan::{Part, Role, Start};

use super::metadata::RenderContext;
use super::{RenderError, container, identities, security, volumes};
use crate::plan::PackTexts;

/// No server answers there: a run has no DNS, and a program that tries it fails at once.
const NO_NAME_SERVER: &str = "127.0.0.1";

/// The pod with agent, bridge, skills and the hooks before them.
///
/// The order of its init containers is the order in which they start. Skills are native sidecars, so that hooks and the
/// agent find them running; the kubelet ends them after agent and bridge.
pub fn run_pod(run: &RenderContext<'_>, texts: &[PackTexts<'_>]) -> Result<PodTemplateSpec, RenderError> {
    let parts: Vec<&Part> = (run.plan.parts.iter()).filter(|part| !part.role.is_post_run()).collect();
    let mut first = own_init_containers(run, &parts)?;
    for part in &parts {
        if matches!(part.role, Role::Skill { .. } | Role::Sandbox) {
            first.push(container::into_sidecar(container::render_part(run, part)?));
        }
    }
    for part in &parts {
        if matches!(part.role, Role::PreRun { .. }) {
            first.push(container::render_part(run, part)?);
        }
    }
    let mut containers = Vec::new();
    for part in &parts {
        if matches!(part.role, Role::Agent | Role::Bridge) {
            containers.push(container::render_part(run, part)?);
        }
    }
    template(run, component::AGENT_RUN, &parts, first, containers, texts)
}

/// The pod with the hooks after the agent, one after the other: all but the last are init containers.
pub fn after_run_pod(run: &RenderContext<'_>, texts: &[PackTexts<'_>]) -> Result<PodTemplateSpec, RenderError> {
    let parts: Vec<&Part> = (run.plan.parts.iter()).filter(|part| part.role.is_post_run()).collect();
    let mut first = own_init_containers(run, &parts)?;
    for part in &parts {
        first.push(container::render_part(run, part)?);
    }
    let last = first.pop().into_iter().collect();
    template(run, component::POST_RUN, &parts, first, last, texts)
}

/// The init containers of our own, which come first.
fn own_init_containers(run: &RenderContext<'_>, parts: &[&Part]) -> Result<Vec<Container>, RenderError> {
    let mut own = vec![container::check_network(run)?];
    if let Some(image) = injected_executor(parts) {
        own.push(container::copy_executor(run, image));
    }
    Ok(own)
}

/// The image of the injected executor, if a part uses it: a plan names only one.
fn injected_executor<'p>(parts: &[&'p Part]) -> Option<&'p ImageRef> {
    parts.iter().find_map(|part| match &part.start {
        Start::Injected { executor } => Some(executor),
        Start::Image { .. } => None,
    })
}

fn template(
    run: &RenderContext<'_>,
    component: &'static str,
    parts: &[&Part],
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    texts: &[PackTexts<'_>],
) -> Result<PodTemplateSpec, RenderError> {
    let plan = run.plan;
    let injected = injected_executor(parts).is_some();
    let mut volumes = volumes::render_volumes(run, parts, texts)?;
    if injected {
        volumes.push(volumes::executor_volume());
    }
    let access = |wanted: fn(&sympozium_api::skill_pack::HostAccess) -> bool| {
        let mut all = parts.iter();
        all.find(|part| {
            let access = part.host_access.as_ref();
            access.is_some_and(|access| access.enabled && wanted(access))
        })
    };
    let host_network = access(|access| access.host_network);
    let host_pid = access(|access| access.host_pid);
    // User namespaces are known to work only for the default runtime of the nodes: another one may not support them.
    let host_users = match &plan.isolation.runtime_class {
        Some(_) => run.settings.host_users.filter(|host_users| *host_users),
        None => run.settings.host_users,
    };
    // Kubernetes accepts no such pod; the user must choose one of the two.
    if host_users == Some(false)
        && let Some(part) = host_network.or(host_pid)
    {
        return Err(RenderError::HostAccessInUserNamespace { part: part.name.clone() });
    }
    let gateway = &run.settings.gateway;
    let placement = &plan.placement;
    let secrets = placement.image_pull_secrets.iter();
    let secrets: Vec<_> =
        secrets.map(|secret| LocalObjectReference { name: secret.name.as_str().to_owned() }).collect();
    let spec = PodSpec {
        restart_policy: Some("Never".to_owned()),
        service_account_name: Some(run.names.with_suffix(identities::POD_SUFFIX)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        share_process_namespace: Some(false),
        host_users,
        host_network: host_network.map(|_| true),
        host_pid: host_pid.map(|_| true),
        runtime_class_name: (plan.isolation.runtime_class.as_ref()).map(|class| class.as_str().to_owned()),
        termination_grace_period_seconds: Some(seconds(plan.deadlines.grace_seconds)),
        security_context: Some(security::pod_context(&plan.isolation.seccomp)),
        dns_policy: Some("None".to_owned()),
        dns_config: Some(PodDNSConfig {
            nameservers: Some(vec![NO_NAME_SERVER.to_owned()]),
            ..PodDNSConfig::default()
        }),
        host_aliases: Some(vec![HostAlias { ip: gateway.ip.to_string(), hostnames: Some(vec![gateway.name.clone()]) }]),
        node_selector: (!placement.node_selector.is_empty()).then(|| placement.node_selector.clone()),
        image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
        init_containers: Some(init_containers),
        containers,
        volumes: Some(volumes),
        ..PodSpec::default()
    };
    let annotations = volumes::gvisor_annotations(run, parts, injected);
    Ok(PodTemplateSpec { metadata: Some(run.pod_metadata(component, annotations)), spec: Some(spec) })
}

/// Seconds in the type of the Kubernetes API.
pub fn seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
