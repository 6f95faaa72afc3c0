//! Starts a rendered run as a controller would, with stand-ins for the images and for the gateway.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::names::ImageRef;
use sympozium_plan::plan::{Images, PlanSettings};
use sympozium_plan::render::{
    CreationStep, GatewayAddress, PendingSecret, RenderSettings, Rendered, SandboxVersion, SecretPurpose, key,
};
use sympozium_testkit::cluster::{Cluster, Exclusivity, Image, Kubectl, Namespace, Security, Tier, eventually};

use super::manifests::{create_runs, documents, move_to, realise, send, unmanaged};
use crate::pods::{self, PATIENCE};

pub const PORT: u16 = 8443;
pub const CANARY: u16 = 8444;

/// What a container says about itself, a line each.
pub const LOOK: &str = "echo user $(id -u) $(id -g); touch /new 2>/dev/null && echo root writable; \
                    while read -r a b c d place options rest; do echo mount $place ${options%%,*}; done < /proc/self/mountinfo; \
                    for place in /tmp /dev/shm /ipc /ipc/*; do for file in $place/mark-*; do [ -e $file ] && echo mark $file; done; done; \
                    [ -e /var/run/secrets/kubernetes.io/serviceaccount/token ] && echo token; \
                    grep CapEff /proc/self/status; env | grep -i -e proxy= -e _KEY= | sort; echo end";

/// A run whose pod runs.
pub struct Scene {
    pub namespace: Namespace,
    /// Where the stand-in of the gateway is. Held, so that it stays.
    _system: Namespace,
    pub plan: RunPlan,
    pub rendered: Rendered,
    pod: String,
    pub gateway: IpAddr,
    pub api_server: (IpAddr, u16),
    /// Its network is held in by enforced policies.
    _exclusivity: Exclusivity,
}

/// What a run is started with.
pub struct Start<'a> {
    pub tier: Tier,
    /// Manifests, with `IMAGE` where the stand-in goes.
    pub manifests: &'a str,
    /// The image that the executor is copied from.
    pub executor: Option<Image>,
}

/// Starts a run, from its manifests to its pod.
pub fn start(start: &Start<'_>) -> Result<Option<Scene>> {
    let Some(cluster) = Cluster::shared(start.tier)? else {
        return Ok(None);
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(None);
    };
    if let Some(executor) = &start.executor {
        cluster.import(executor)?;
    }
    let exclusivity = Exclusivity::shared();
    cluster.kubectl().install_kinds()?;
    let namespace = cluster.namespace("run", Security::Restricted)?;
    let system = cluster.namespace("gateway", Security::Restricted)?;
    let gateway = start_gateway(&system, &image)?;
    let api_server = api_server(&cluster.kubectl())?;

    let mut manifests = [documents(&start.manifests.replace("IMAGE", &image))?];
    move_to(&mut manifests[0], namespace.name());
    create_runs(namespace.kubectl(), &mut manifests)?;
    let ours = ImageRef::new(image.clone());
    let executor = start.executor.as_ref().map(|it| ImageRef::new(it.name()));
    let plan_settings = PlanSettings {
        images: Images { agent: ours.clone(), bridge: ours.clone(), sidecar: executor.unwrap_or_else(|| ours.clone()) },
        ..PlanSettings::default()
    };
    let settings = RenderSettings {
        system_namespace: system.name().into(),
        gateway: GatewayAddress {
            ip: gateway,
            port: PORT,
            canary_port: CANARY,
            pod_labels: BTreeMap::from([("app".to_owned(), "gateway".to_owned())]),
            ..GatewayAddress::default()
        },
        api_server: vec![api_server],
        // What the test cluster's agent-sandbox serves.
        sandbox_version: Some(SandboxVersion::V1Alpha1),
        ..RenderSettings::default()
    };
    let (plan, rendered) = realise(&manifests[0], &plan_settings, &settings)?.context("not admitted")?;
    for (name, key) in [("provider-key", "OPENAI_API_KEY"), ("cluster-secret", "password")] {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { key: "value" } });
        namespace.create(&secret)?;
    }
    create(&namespace, &rendered, start.executor.is_some())?;
    let selector = format!("--selector=sympozium.ai/run-uid={}", plan.run.uid);
    let pod = eventually("the pod of the run", PATIENCE, || {
        let pods = namespace.kubectl().json(&["get", "pods", &selector])?;
        let name = pods["items"][0]["metadata"]["name"].as_str();
        Ok(name.map(str::to_owned))
    })?;
    namespace.wait_for_pod(&pod, "Running", PATIENCE)?;
    Ok(Some(Scene { namespace, _system: system, plan, rendered, pod, gateway, api_server, _exclusivity: exclusivity }))
}

/// A pod that answers where the gateway would, and where it must not be asked.
fn start_gateway(system: &Namespace, image: &str) -> Result<IpAddr> {
    let listen = |name: &str, port: u16| {
        let mut container = pods::container(name, image, &format!("exec cluster-probe listen {port}"));
        container["readinessProbe"] = json!({ "tcpSocket": { "port": port }, "periodSeconds": 1 });
        container
    };
    let spec = pods::spec(&[listen("gateway", PORT), listen("canary", CANARY)]);
    system.create(&pods::pod("gateway", spec))?;
    let running = system.wait_for_pod("gateway", "Running", PATIENCE)?;
    let address = running["status"]["podIP"].as_str().context("an address")?;
    Ok(address.parse()?)
}

fn api_server(kubectl: &Kubectl) -> Result<(IpAddr, u16)> {
    let slices = kubectl.json(&["get", "endpointslice", "kubernetes", "-n", "default"])?;
    let ip = slices["endpoints"][0]["addresses"][0].as_str();
    let port = slices["ports"][0]["port"].as_u64();
    let (ip, port) = (ip.context("an address")?, port.context("a port")?);
    Ok((ip.parse()?, u16::try_from(port)?))
}

/// Does what a controller does: creates in order, fills what is empty.
fn create(namespace: &Namespace, rendered: &Rendered, has_executor: bool) -> Result<()> {
    for stage in [CreationStep::Inputs, CreationStep::Grants] {
        let objects = rendered.objects_of_step(stage).map(|object| object.to_value().map(unmanaged));
        let objects: Vec<Value> = objects.collect::<Result<_, _>>()?;
        send(namespace.kubectl(), &["create"], &objects)?;
    }
    for skeleton in &rendered.pending_secrets {
        fill(namespace, skeleton)?;
    }
    for object in rendered.objects_of_step(CreationStep::Workload) {
        let mut value = unmanaged(object.to_value()?);
        for pod in ["/spec/template/spec", "/spec/podTemplate/spec"] {
            if let Some(pod) = value.pointer_mut(pod) {
                stand_in(pod, has_executor);
            }
        }
        namespace.create(&value)?;
    }
    Ok(())
}

fn fill(namespace: &Namespace, skeleton: &PendingSecret) -> Result<()> {
    let kubectl = namespace.kubectl();
    let mut data = BTreeMap::new();
    for name in &skeleton.keys {
        data.insert(name.as_str(), format!("value of {name}"));
    }
    if let SecretPurpose::Token { service_account, .. } = &skeleton.purpose {
        let bound = format!("--bound-object-name={}", skeleton.secret);
        let ask = ["create", "token", service_account, "--duration=600s", "--bound-object-kind=Secret", &bound];
        data.insert(key::IDENTITY_TOKEN, kubectl.run(&ask)?.trim().to_owned());
        data.insert(key::NAMESPACE, namespace.name().to_owned());
    }
    let patch = json!({ "stringData": data }).to_string();
    kubectl.run(&["patch", "secret", &skeleton.secret, "--type=merge", "-p", &patch])?;
    Ok(())
}

/// Starts a shell in place of programs: what is beside the agent stays, and the others say what they see and end. The
/// executor, where there is one, is the real one, and so is what copies it.
fn stand_in(spec: &mut Value, has_executor: bool) {
    let stay = |name: &str| {
        // `/tmp` last: see `Scene::wait_for_marks`.
        format!("for place in /ipc /dev/shm /tmp; do touch $place/mark-{name} 2>/dev/null; done; exec sleep 3600")
    };
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            container["imagePullPolicy"] = json!("Never");
            let executor = "/opt/sympozium/bin/skill-sidecar";
            let command = container["command"].as_array();
            if has_executor && command.is_some_and(|it| it.contains(&json!(executor))) {
                continue;
            }
            let stays = list == "containers" || container["restartPolicy"] == "Always";
            let script = if stays { stay(&name) } else { LOOK.to_owned() };
            container["command"] = json!(["/bin/sh", "-c", script]);
            if let Some(container) = container.as_object_mut() {
                container.remove("args");
            }
        }
    }
}

impl Scene {
    /// Runs a script in a container.
    pub fn exec(&self, container: &str, script: &str) -> Result<String> {
        let ask = ["exec", &self.pod, "-c", container, "--", "/bin/sh", "-c", script];
        self.namespace.kubectl().run(&ask)
    }

    /// Waits until a container that stays has left all its marks: it counts as running before it has.
    pub fn wait_for_marks(&self, container: &str) -> Result<()> {
        let look = format!("test -e /tmp/mark-{container}");
        eventually(&format!("the marks of {container}"), PATIENCE, || self.exec(container, &look).map(Some)).map(drop)
    }

    /// What a container says about itself: asked when it stays, from its log when it has ended.
    pub fn look(&self, container: &str, stays: bool) -> Result<String> {
        let said = if stays {
            self.exec(container, LOOK)?
        } else {
            self.namespace.kubectl().run(&["logs", &self.pod, "-c", container])?
        };
        ensure!(said.ends_with("end\n"), "{container}: {said}");
        Ok(said)
    }
}
