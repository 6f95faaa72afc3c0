//! The containers of a pod: those of the plan's parts, and two init containers of our own before them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapKeySelector, Container, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector,
    ResourceRequirements, SecretKeySelector, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sympozium_api::environment;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::ImageRef;
use sympozium_api::run_plan::container::CHECK_NETWORK;
use sympozium_api::run_plan::{Mount, Part, ResourcesPlan, Role, Start, paths};
use sympozium_api::sandbox::ImagePullPolicy;

use super::RenderError;
use super::check;
use super::executor::{ExecutorProfile, ExecutorSettings, executor_arguments, platform_argument};
use super::inputs::{self, key};
use super::metadata::RenderContext;
use super::security;
use super::volumes::EXECUTOR;

/// The container that provides the executor for images that have none.
const COPY_EXECUTOR: &str = "copy-executor";
/// Containers that are in no plan. No part may have such a name.
pub const RESERVED_NAMES: &[&str] = &[CHECK_NETWORK, COPY_EXECUTOR];

/// CPU request and limit of such a container.
pub const INIT_CPU: (&str, &str) = ("10m", "100m");
/// Memory request and limit of such a container.
pub const INIT_MEMORY: (&str, &str) = ("16Mi", "64Mi");

/// The directory of the executor, in its own image and in those that it is injected into.
const EXECUTOR_DIRECTORY: &str = "/opt/sympozium/bin";
const EXECUTOR_FILE: &str = "/opt/sympozium/bin/skill-sidecar";
/// Where the copy is written.
const EXECUTOR_COPY: &str = "/executor";

/// Hosts that are not reached through the gateway: the API server, and the pod itself.
const NO_PROXY: &str = "$(KUBERNETES_SERVICE_HOST),127.0.0.1,localhost";

/// The container of a part.
pub fn render_part(run: &RenderContext<'_>, part: &Part) -> Result<Container, RenderError> {
    let (command, mut args) = match &part.start {
        Start::Image { command, args } if !part.is_attested() => (escape_all(command), escape_all(args)),
        Start::Image { .. } | Start::Injected { .. } => {
            let args = executor_arguments(run.plan, part, &executor_settings(run));
            (vec![EXECUTOR_FILE.to_owned()], escape_all(&args))
        }
    };
    if part.role == Role::Bridge {
        let gateway = &run.settings.gateway;
        // A ConfigMap can be deleted and created again; arguments of a pod cannot change.
        args.push(format!("--plan-digest={}", run.digest));
        args.push(format!("--gateway={}:{}", gateway.name, gateway.port));
        args.push(platform_argument(&executor_settings(run).platform));
        if run.settings.certificates.is_some() {
            args.push(format!("--certificates={}/{}", paths::INPUT, key::CERTIFICATES));
        }
    }
    let mut mounts: Vec<VolumeMount> = part.mounts.iter().map(render_mount).collect();
    if matches!(part.start, Start::Injected { .. }) {
        mounts.push(VolumeMount {
            name: EXECUTOR.to_owned(),
            mount_path: EXECUTOR_DIRECTORY.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
    let mut env: Vec<EnvVar> = part.env.iter().map(render_variable).collect();
    if inputs::has_proxy(run.plan, part) {
        env.extend(proxy_variables(&inputs::input_name(run, part)?));
    }
    let policy = part.image_pull_policy.map(pull_policy);
    Ok(Container {
        name: part.name.0.clone(),
        image: Some(part.image.as_str().to_owned()),
        image_pull_policy: policy.map(str::to_owned),
        command: non_empty(command),
        args: non_empty(args),
        env: non_empty(env),
        volume_mounts: non_empty(mounts),
        resources: Some(render_resources(&part.amounts)),
        security_context: Some(security::container_context(&run.plan.isolation.seccomp, part.host_access.as_ref())),
        ..Container::default()
    })
}

/// The profile of the executors of a pod, and the guarantees that the cluster provides around them: mounts and limits
/// are in the pod that is rendered here, the network is checked before anything starts, a kernel comes from a handler
/// that the operator lists. Only the kubelet decides how many processes a pod may have, and nothing in a pod shows it.
fn executor_settings(run: &RenderContext<'_>) -> ExecutorSettings {
    let mut platform = vec![Guarantee::Filesystem, Guarantee::Network, Guarantee::Memory, Guarantee::Cpu];
    if run.settings.pod_pids_limit {
        platform.push(Guarantee::Pids);
    }
    let kernel = run.plan.isolation.kernel.as_ref();
    let profile = match kernel {
        Some(kernel) if kernel.gvisor => ExecutorProfile::Gvisor,
        Some(_) => {
            platform.push(Guarantee::Kernel);
            ExecutorProfile::Detected
        }
        None => ExecutorProfile::Detected,
    };
    ExecutorSettings { profile, platform }
}

/// Waits until the gateway answers and its canary does not: a NetworkPolicy that is not enforced looks like any other.
/// Where the plan's isolation floor has no network, it only logs that and lets the run start.
pub fn check_network(run: &RenderContext<'_>) -> Result<Container, RenderError> {
    let bridge = check::find_part(run.plan, &Role::Bridge, "bridge")?;
    let gateway = &run.settings.gateway;
    let address = |port| std::net::SocketAddr::new(gateway.ip, port);
    let mut args = vec![
        CHECK_NETWORK.to_owned(),
        format!("--gateway={}", address(gateway.port)),
        format!("--canary={}", address(gateway.canary_port)),
    ];
    if run.plan.isolation.floor.contains(&Guarantee::Network) {
        args.push("--required".to_owned());
    }
    let image = bridge.image.as_str();
    let mut container = init_container(run, CHECK_NETWORK, image, bridge.image_pull_policy);
    container.args = Some(args);
    Ok(container)
}

/// Copies the executor to the volume of skills without one.
pub fn copy_executor(run: &RenderContext<'_>, image: &ImageRef) -> Container {
    let mut container = init_container(run, COPY_EXECUTOR, image.as_str(), None);
    container.command = Some(vec!["cp".to_owned(), EXECUTOR_FILE.to_owned(), EXECUTOR_COPY.to_owned()]);
    container.volume_mounts = Some(vec![VolumeMount {
        name: EXECUTOR.to_owned(),
        mount_path: EXECUTOR_COPY.to_owned(),
        ..VolumeMount::default()
    }]);
    container
}

fn init_container(run: &RenderContext<'_>, name: &str, image: &str, policy: Option<ImagePullPolicy>) -> Container {
    Container {
        name: name.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: policy.map(|policy| pull_policy(policy).to_owned()),
        resources: Some(requirements(INIT_CPU, INIT_MEMORY)),
        security_context: Some(security::container_context(&run.plan.isolation.seccomp, None)),
        // Their output is the reason why a run does not start.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// Makes a container a native sidecar, which stays beside the agent.
pub fn into_sidecar(container: Container) -> Container {
    Container { restart_policy: Some("Always".to_owned()), ..container }
}

fn render_mount(mount: &Mount) -> VolumeMount {
    VolumeMount {
        name: mount.volume.0.clone(),
        mount_path: mount.path.as_str().to_owned(),
        read_only: mount.read_only.then_some(true),
        sub_path: mount.sub_path.clone(),
        recursive_read_only: mount
            .recursive_read_only
            .map(|recursive_read_only| recursive_read_only.as_str().to_owned()),
        ..VolumeMount::default()
    }
}

/// The variables with the address of the gateway's proxy. The value contains the part's credential.
fn proxy_variables(secret: &str) -> impl Iterator<Item = EnvVar> {
    let through = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
    let past = ["NO_PROXY", "no_proxy"];
    let through = through.map(|name| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key::PROXY.to_owned(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    });
    let past = past.map(|name| EnvVar { name: name.to_owned(), value: Some(NO_PROXY.to_owned()), value_from: None });
    through.into_iter().chain(past)
}

fn render_variable(variable: &environment::EnvVar) -> EnvVar {
    EnvVar {
        name: variable.name.as_str().to_owned(),
        value: variable.value.as_deref().map(escape_dollars),
        value_from: variable.value_from.as_ref().map(render_source),
    }
}

fn render_source(source: &environment::EnvVarSource) -> EnvVarSource {
    EnvVarSource {
        secret_key_ref: source.secret_key_ref.as_ref().map(|secret_key_ref| SecretKeySelector {
            name: secret_key_ref.name.as_str().to_owned(),
            key: secret_key_ref.key.clone(),
            optional: secret_key_ref.optional,
        }),
        config_map_key_ref: source.config_map_key_ref.as_ref().map(|config_map_key_ref| ConfigMapKeySelector {
            name: config_map_key_ref.name.as_str().to_owned(),
            key: config_map_key_ref.key.clone(),
            optional: config_map_key_ref.optional,
        }),
        field_ref: source.field_ref.as_ref().map(|field_ref| ObjectFieldSelector {
            api_version: field_ref.api_version.clone(),
            field_path: field_ref.field_path.clone(),
        }),
        resource_field_ref: source.resource_field_ref.as_ref().map(|resource_field_ref| ResourceFieldSelector {
            container_name: resource_field_ref.container_name.clone(),
            resource: resource_field_ref.resource.clone(),
            divisor: resource_field_ref.divisor.as_ref().map(|divisor| Quantity(divisor.to_string())),
        }),
    }
}

fn render_resources(plan: &ResourcesPlan) -> ResourceRequirements {
    requirements(
        (&plan.cpu_request.text(), &plan.cpu_limit.text()),
        (&plan.memory_request.text(), &plan.memory_limit.text()),
    )
}

fn requirements(cpu: (&str, &str), memory: (&str, &str)) -> ResourceRequirements {
    let both = |cpu: &str, memory: &str| {
        Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ]))
    };
    ResourceRequirements { requests: both(cpu.0, memory.0), limits: both(cpu.1, memory.1), claims: None }
}

const fn pull_policy(policy: ImagePullPolicy) -> &'static str {
    match policy {
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Never => "Never",
    }
}

/// Escapes a text. Kubernetes would expand `$(NAME)` to another variable of the container: a user who sets one variable
/// could have the value of a Secret shown in it.
fn escape_dollars(text: &str) -> String {
    text.replace('$', "$$")
}

fn escape_all(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| escape_dollars(text)).collect()
}

/// Kubernetes objects have no empty lists.
fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
