//! A run's namespace with everything that is rendered of it, and a real gateway in another.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::names::ImageRef;
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_plan::plan::{Images, Limits, PlanSettings};
use sympozium_plan::render::{GatewayAddress, RenderSettings, Rendered};
use sympozium_testkit::cluster::{Cluster, Exclusivity, Image, Namespace, Security, Tier, eventually};

use crate::pods::{self, PATIENCE};
use crate::render::manifests::{create_runs, documents, move_to, realise};

/// Where the gateway keeps what runs report.
pub const RECORDS: &str = "/records/runs";
/// The pod of the gateway, and its label.
const GATEWAY: &str = "gateway";
/// Seconds for which the credentials of a test are good.
const CREDENTIAL_SECONDS: u64 = 3600;
/// Connections that the gateway of a test has room for: a container may have few open files.
const CONNECTIONS: u32 = 64;

/// Who the agent is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A container with a shell and `cluster-probe`, which does what the test says.
    Played,
    /// The image that ships.
    Real,
}

/// What a run is made of.
pub struct Given<'a> {
    pub tier: Tier,
    pub agent: Who,
    /// Manifests, with `SKILL` where the image of a skill goes.
    pub manifests: &'a str,
    /// Seconds that the bridge waits for an agent.
    pub connect_seconds: u64,
}

/// A run that was planned and rendered, and its gateway, which serves. Nothing of the run exists yet.
pub struct Harness {
    pub tier: Tier,
    pub namespace: Namespace,
    pub plan: RunPlan,
    pub rendered: Rendered,
    /// The certificate that the gateway's is checked by.
    pub authority: String,
    system: Namespace,
    keys: KeyRing,
    /// Its network is held in by enforced policies.
    _exclusivity: Exclusivity,
}

/// Images of ours that a run needs.
struct Loaded {
    bridge: String,
    gateway: String,
    skill: String,
    agent: String,
}

impl Harness {
    /// `None`, and a recorded skip, where there is no such cluster.
    pub fn new(given: &Given<'_>) -> Result<Option<Self>> {
        let Some(cluster) = Cluster::shared(given.tier)? else {
            return Ok(None);
        };
        let Some(images) = load(cluster, given.agent)? else {
            return Ok(None);
        };
        let exclusivity = Exclusivity::shared();
        cluster.kubectl().install_kinds()?;
        let namespace = cluster.namespace("bridge", Security::Restricted)?;
        let system = cluster.namespace("gateway", Security::Restricted)?;
        let address = GatewayAddress {
            ip: service(&system)?,
            pod_labels: BTreeMap::from([("app".to_owned(), GATEWAY.to_owned())]),
            ..GatewayAddress::default()
        };

        let mut manifests = [documents(&given.manifests.replace("SKILL", &images.skill))?];
        move_to(&mut manifests[0], namespace.name());
        create_runs(namespace.kubectl(), &mut manifests)?;
        let plan_settings = PlanSettings {
            images: Images {
                agent: ImageRef::new(images.agent),
                bridge: ImageRef::new(images.bridge),
                sidecar: ImageRef::new(images.skill),
            },
            limits: Limits { connect_seconds: given.connect_seconds, ..Limits::default() },
        };
        let render_settings = RenderSettings {
            system_namespace: system.name().into(),
            gateway: address.clone(),
            ..RenderSettings::default()
        };
        let realised = realise(&manifests[0], &plan_settings, &render_settings)?;
        let (plan, rendered) = realised.context("not admitted")?;

        let key_file = format!("k1 {}\n", "5a".repeat(KEY_BYTES));
        let authority = Authority::new()?;
        let (certificate, key) = authority.vouch(&address.name)?;
        start_gateway(
            &system,
            &images.gateway,
            &address,
            &plan,
            &json!({ "keys": key_file, "tls.crt": certificate, "tls.key": key }),
        )?;
        Ok(Some(Self {
            tier: given.tier,
            namespace,
            plan,
            rendered,
            authority: authority.0.pem(),
            system,
            keys: KeyRing::parse(&key_file)?,
            _exclusivity: exclusivity,
        }))
    }

    /// The pod that is rendered, without what makes it.
    pub fn pod(&self) -> Result<Value> {
        let mut templates = self.rendered.objects.iter();
        let template = templates.find_map(|it| it.object.pod_template());
        let mut pod = serde_json::to_value(template.context("no pod")?)?;
        self.set_runtime_class(&mut pod);
        Ok(pod)
    }

    /// Has a pod run on the kernel that is tried.
    pub fn set_runtime_class(&self, pod: &mut Value) {
        if self.tier == Tier::Gvisor {
            pod["spec"]["runtimeClassName"] = json!("gvisor");
        }
    }

    /// A credential of the run for the gateway, as in its files.
    pub fn credential(&self, name: &str) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let signed = self.keys.sign(&Claims {
            run: self.plan.run.uid.to_string(),
            name: name.to_owned(),
            expires: now.as_secs() + CREDENTIAL_SECONDS,
        })?;
        Ok(format!("{}:{}", signed.user, *signed.password))
    }

    /// A file that the gateway has about the run.
    pub fn recorded(&self, file: &str) -> Result<String> {
        let path = format!("{RECORDS}/{}/{file}", self.plan.run.uid);
        let read = ["exec", GATEWAY, "--", "cat", &path];
        self.system.kubectl().run(&read)
    }

    /// What a container of the run has said so far.
    pub fn log(&self, pod: &str, container: &str) -> Result<String> {
        let logs = ["logs", pod, "-c", container];
        Ok(self.namespace.kubectl().attempt(&logs)?.stdout)
    }

    /// What the first instance of a container has said: the kubelet may start a sidecar once more that ends with the run, and terminate
    /// the second instance before it says anything.
    pub fn first_log(&self, pod: &str, container: &str) -> Result<String> {
        let previous = self.namespace.kubectl().attempt(&["logs", pod, "-c", container, "--previous"])?;
        if previous.success { Ok(previous.stdout) } else { self.log(pod, container) }
    }

    /// What the gateway logged.
    pub fn gateway_log(&self) -> Result<String> {
        self.system.kubectl().run(&["logs", GATEWAY])
    }
}

fn load(cluster: &Cluster, who: Who) -> Result<Option<Loaded>> {
    let Some(mut agent) = pods::image(cluster)? else {
        return Ok(None);
    };
    if who == Who::Real {
        let real = Image::of_ours("agent-runner");
        ensure!(cluster.import(&real)?, "one image was loaded, and not all");
        real.name().clone_into(&mut agent);
    }
    let [bridge, gateway, skill] = ["ipc-bridge", "sympozium-gateway", "skill-sidecar"].map(Image::of_ours);
    for image in [&bridge, &gateway, &skill] {
        ensure!(cluster.import(image)?, "one image was loaded, and not all");
    }
    Ok(Some(Loaded {
        bridge: bridge.name().to_owned(),
        gateway: gateway.name().to_owned(),
        skill: skill.name().to_owned(),
        agent,
    }))
}

/// Makes the gateway's Service, whose address runs are told, and gives it.
fn service(system: &Namespace) -> Result<IpAddr> {
    let address = GatewayAddress::default();
    let port = |name: &str, port: u16| json!({ "name": name, "port": port });
    let service = system.create(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": GATEWAY },
        "spec": {
            "selector": { "app": GATEWAY },
            "ports": [port("runs", address.port), port("canary", address.canary_port)],
        },
    }))?;
    let ip = service["spec"]["clusterIP"].as_str();
    Ok(ip.context("a Service has an address")?.parse()?)
}

fn start_gateway(
    system: &Namespace,
    image: &str,
    address: &GatewayAddress,
    plan: &RunPlan,
    files: &Value,
) -> Result<()> {
    let plan_file = format!("{}.json", plan.run.uid);
    let plan = String::from_utf8(plan.to_bytes()?)?;
    system.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "plans" }, "data": { plan_file: plan },
    }))?;
    system.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "files" }, "stringData": files,
    }))?;
    let mut container = pods::container(GATEWAY, image, "");
    // The image's own entrypoint.
    container["command"] = Value::Null;
    container["args"] = json!([
        "serve",
        format!("--listen=0.0.0.0:{}", address.port),
        format!("--canary={}", address.canary_port),
        "--plans=/plans",
        "--key-file=/files/keys",
        "--tls-cert=/files/tls.crt",
        "--tls-key=/files/tls.key",
        format!("--records={RECORDS}"),
        format!("--max-connections={CONNECTIONS}"),
        // Nothing is looked up; without one the gateway would take the cluster's, and there is none.
        "--dns=127.0.0.1:53",
    ]);
    container["readinessProbe"] = json!({ "tcpSocket": { "port": address.canary_port }, "periodSeconds": 1 });
    container["volumeMounts"] = json!([
        { "name": "plans", "mountPath": "/plans", "readOnly": true },
        { "name": "files", "mountPath": "/files", "readOnly": true },
        { "name": "records", "mountPath": "/records" },
    ]);
    let mut spec = pods::spec(&[container]);
    spec["volumes"] = json!([
        { "name": "plans", "configMap": { "name": "plans" } },
        { "name": "files", "secret": { "secretName": "files", "defaultMode": 0o440 } },
        { "name": "records", "emptyDir": {} },
    ]);
    system.create(&pods::pod(GATEWAY, spec))?;
    let started = system.wait_for_pod(GATEWAY, "Running", PATIENCE);
    if started.is_err() {
        let said = system.kubectl().attempt(&["logs", GATEWAY])?;
        started.with_context(|| format!("the gateway said: {}{}", said.stdout, said.stderr))?;
    }
    // A Service leads to a pod only once that is known to be ready.
    eventually("the Service to lead to the gateway", PATIENCE, || {
        let slices = system.kubectl().json(&["get", "endpointslices"])?;
        let ready = &slices["items"][0]["endpoints"][0]["conditions"]["ready"];
        Ok((*ready == true).then_some(()))
    })
}

/// Signs the certificate of the gateway.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// A certificate for a name, and its key.
    fn vouch(&self, name: &str) -> Result<(String, String)> {
        let params = CertificateParams::new(vec![name.to_owned()])?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}
