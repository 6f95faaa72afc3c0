//! A rendered pod that runs, with stand-ins for the images: what each container sees is compared with the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::names::ImageRef;
use sympozium_api::run_plan::{Start, place};
use sympozium_plan::plan::{Images, PlanSettings};
use sympozium_plan::render::{
    GatewayAddress, Purpose, RenderSettings, Rendered, Skeleton, Stage, key,
};
use sympozium_testkit::cluster::{Cluster, Kubectl, Namespace, Security, Tier, eventually};

use super::world::{create_runs, documents, move_to, realise, send};
use crate::kinds;
use crate::pods::{self, PATIENCE};

const PORT: u16 = 8443;
const CANARY: u16 = 8444;

/// Two skills, one of them with everything; a sandbox; a hook.
const RUN: &str = r#"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: look.around}
spec:
  agentRef: helper
  task: Look around.
  skills: [{skillPackRef: cluster}, {skillPackRef: notes}]
  sandbox: {enabled: true}
  lifecycle: {preRun: [{name: first, image: IMAGE, command: ["true"]}]}
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: helper}
spec:
  agents: {default: {model: m}}
  authRefs: [{provider: openai, secret: provider-key}]
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: cluster}
spec:
  skills:
    - name: look
      content: Look.
      files: [{path: scripts/look.sh, content: "echo looked", executable: true}]
  sidecar:
    image: IMAGE
    mountWorkspace: true
    secretRef: cluster-secret
    egress: [{host: example.com}]
    rbac: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: notes}
spec:
  skills: [{name: note, content: Note.}]
  sidecar: {image: IMAGE, volumes: [{name: own, emptyDir: {}}], volumeMounts: [{name: own, mountPath: /own}]}
"#;

/// What a container says about itself, a line each.
const LOOK: &str = "echo user $(id -u) $(id -g); touch /new 2>/dev/null && echo root writable; \
                    while read -r a b c d place options rest; do echo mount $place ${options%%,*}; done < /proc/self/mountinfo; \
                    for place in /tmp /dev/shm /ipc /ipc/*; do for file in $place/mark-*; do [ -e $file ] && echo mark $file; done; done; \
                    [ -e /var/run/secrets/kubernetes.io/serviceaccount/token ] && echo token; \
                    grep CapEff /proc/self/status; env | grep -i -e proxy= -e _KEY= | sort; echo end";

/// Places that every container has mounted, whatever its pod says.
const USUAL: &[&str] = &[
    "/",
    "/dev",
    "/dev/mqueue",
    "/dev/pts",
    "/dev/termination-log",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
];

struct Scene {
    namespace: Namespace,
    /// Where the stand-in of the gateway is. Held, so that it stays.
    _system: Namespace,
    plan: RunPlan,
    rendered: Rendered,
    pod: String,
    gateway: IpAddr,
    api_server: (IpAddr, u16),
}

fn scene() -> Result<Option<Scene>> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(None);
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(None);
    };
    kinds::install(&cluster.kubectl())?;
    let namespace = cluster.namespace("run", Security::Restricted)?;
    let system = cluster.namespace("gateway", Security::Restricted)?;
    let gateway = start_gateway(&system, &image)?;
    let api_server = api_server(&cluster.kubectl())?;

    let mut worlds = [documents(&RUN.replace("IMAGE", &image))?];
    move_to(&mut worlds[0], namespace.name());
    create_runs(namespace.kubectl(), &mut worlds)?;
    let ours = ImageRef::new(image.clone());
    let plan_settings = PlanSettings {
        images: Images {
            agent: ours.clone(),
            bridge: ours.clone(),
            sidecar: ours.clone(),
        },
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
        executor_image: ours,
        ..RenderSettings::default()
    };
    let (plan, rendered) =
        realise(&worlds[0], &plan_settings, &settings)?.context("not admitted")?;
    for (name, key) in [
        ("provider-key", "OPENAI_API_KEY"),
        ("cluster-secret", "password"),
    ] {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { key: "value" } });
        namespace.create(&secret)?;
    }
    let job = create(&namespace, &rendered)?;
    let pod = eventually("the pod of the Job", PATIENCE, || {
        let selector = format!("--selector=batch.kubernetes.io/job-name={job}");
        let pods = namespace.kubectl().json(&["get", "pods", &selector])?;
        let name = pods["items"][0]["metadata"]["name"].as_str();
        Ok(name.map(str::to_owned))
    })?;
    namespace.wait_for_pod(&pod, "Running", PATIENCE)?;
    Ok(Some(Scene {
        namespace,
        _system: system,
        plan,
        rendered,
        pod,
        gateway,
        api_server,
    }))
}

/// A pod that answers where the gateway would, and where it must not be asked.
fn start_gateway(system: &Namespace, image: &str) -> Result<IpAddr> {
    let listen = |name: &str, port: u16| {
        let mut container =
            pods::container(name, image, &format!("exec cluster-probe listen {port}"));
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

/// Does what a controller does: creates in order, fills what is empty. Gives the name of the Job.
fn create(namespace: &Namespace, rendered: &Rendered) -> Result<String> {
    let mut job = None;
    for stage in [Stage::Inputs, Stage::Grants] {
        let objects: Vec<Value> = rendered
            .stage(stage)
            .map(|object| object.to_value())
            .collect::<Result<_, _>>()?;
        send(namespace.kubectl(), &["create"], &objects)?;
    }
    for skeleton in &rendered.skeletons {
        fill(namespace, skeleton)?;
    }
    for object in rendered.stage(Stage::Workload) {
        let mut value = object.to_value()?;
        stand_in(&mut value["spec"]["template"]["spec"]);
        namespace.create(&value)?;
        job = Some(object.name().to_owned());
    }
    job.context("a Job")
}

fn fill(namespace: &Namespace, skeleton: &Skeleton) -> Result<()> {
    let kubectl = namespace.kubectl();
    let mut data = BTreeMap::new();
    for name in &skeleton.keys {
        data.insert(name.as_str(), format!("value of {name}"));
    }
    if let Purpose::Token {
        service_account, ..
    } = &skeleton.purpose
    {
        let bound = format!("--bound-object-name={}", skeleton.secret);
        let ask = [
            "create",
            "token",
            service_account,
            "--duration=600s",
            "--bound-object-kind=Secret",
            &bound,
        ];
        data.insert(key::IDENTITY_TOKEN, kubectl.run(&ask)?.trim().to_owned());
        data.insert(key::NAMESPACE, namespace.name().to_owned());
    }
    let patch = json!({ "stringData": data }).to_string();
    kubectl.run(&[
        "patch",
        "secret",
        &skeleton.secret,
        "--type=merge",
        "-p",
        &patch,
    ])?;
    Ok(())
}

/// Starts a shell in place of our programs: what is beside the agent stays, and the others say what they see and end.
fn stand_in(spec: &mut Value) {
    let stay = |name: &str| {
        format!(
            "for place in /tmp /dev/shm /ipc; do touch $place/mark-{name} 2>/dev/null; done; exec sleep 600"
        )
    };
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            let stays = list == "containers" || container["restartPolicy"] == "Always";
            let script = if stays { stay(&name) } else { LOOK.to_owned() };
            container["command"] = json!(["/bin/sh", "-c", script]);
            container["imagePullPolicy"] = json!("Never");
            if let Some(container) = container.as_object_mut() {
                container.remove("args");
            }
        }
    }
}

impl Scene {
    fn exec(&self, container: &str, script: &str) -> Result<String> {
        let ask = [
            "exec", &self.pod, "-c", container, "--", "/bin/sh", "-c", script,
        ];
        self.namespace.kubectl().run(&ask)
    }

    /// What a container says about itself: asked when it stays, from its log when it has ended.
    fn look(&self, container: &str, stays: bool) -> Result<String> {
        let said = if stays {
            self.exec(container, LOOK)?
        } else {
            self.namespace
                .kubectl()
                .run(&["logs", &self.pod, "-c", container])?
        };
        ensure!(said.ends_with("end\n"), "{container}: {said}");
        Ok(said)
    }
}

#[test]
fn a_rendered_pod_shows_each_container_what_the_plan_says() -> Result<()> {
    let Some(scene) = scene()? else {
        return Ok(());
    };
    let names: Vec<&str> = scene
        .plan
        .parts
        .iter()
        .map(|it| it.name.0.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "agent",
            "ipc-bridge",
            "skill-cluster",
            "skill-notes",
            "sandbox",
            "pre-first"
        ]
    );
    for part in &scene.plan.parts {
        let name = part.name.0.as_str();
        let said = scene.look(name, !part.role.is_hook())?;
        let lines = |word: &str| -> Vec<&str> {
            said.lines()
                .filter_map(|line| line.strip_prefix(word))
                .map(str::trim)
                .collect()
        };
        assert_eq!(lines("user"), ["1000 1000"], "{name}");
        assert_eq!(lines("root writable"), Vec::<&str>::new(), "{name}");
        assert_eq!(lines("CapEff:"), ["0000000000000000"], "{name}");
        assert_eq!(
            lines("token").len(),
            usize::from(name == "skill-cluster"),
            "{name}"
        );
        assert_ne!(part.start, Start::Injected);

        let usual = |place: &str| {
            USUAL.contains(&place) || place.starts_with("/proc") || place.starts_with("/sys")
        };
        let seen: BTreeSet<String> = lines("mount").into_iter().map(str::to_owned).collect();
        let seen: BTreeSet<String> = seen
            .into_iter()
            .filter(|line| !line.split(' ').next().is_some_and(usual))
            .collect();
        let planned: BTreeSet<String> = part
            .mounts
            .iter()
            .map(|it| format!("{} {}", it.path, if it.read_only { "ro" } else { "rw" }))
            .collect();
        assert_eq!(seen, planned, "{name}");

        // What others left where names are the same, and what is the container's own.
        let marks: BTreeSet<&str> = lines("mark").into_iter().collect();
        let own = |place: &str| format!("{place}/mark-{name}");
        let mut expected: BTreeSet<String> = BTreeSet::new();
        if !part.role.is_hook() {
            expected.extend([own(place::TMP), own(place::SHM)]);
        }
        if part.role.pack().is_some() {
            expected.insert(own(place::IPC));
        }
        if name == "ipc-bridge" {
            for (pack, container) in [
                ("cluster", "skill-cluster"),
                ("notes", "skill-notes"),
                ("sandbox", "sandbox"),
            ] {
                expected.insert(format!("/ipc/{pack}/mark-{container}"));
            }
        }
        assert_eq!(
            marks,
            expected.iter().map(String::as_str).collect(),
            "{name}"
        );

        // Keys of the provider, and the way to the gateway.
        let variables: Vec<&str> = said
            .lines()
            .filter_map(|line| line.split_once('=').map(|(variable, _)| variable))
            .collect();
        let expected: &[&str] = match name {
            "ipc-bridge" => &["OPENAI_API_KEY"],
            "skill-cluster" => &[
                "HTTPS_PROXY",
                "HTTP_PROXY",
                "NO_PROXY",
                "http_proxy",
                "https_proxy",
                "no_proxy",
            ],
            _ => &[],
        };
        assert_eq!(
            BTreeSet::from_iter(variables),
            expected.iter().copied().collect(),
            "{name}"
        );
    }
    inputs_are_read(&scene)?;
    rights_are_granted(&scene)?;
    reach_is_enforced(&scene)
}

fn inputs_are_read(scene: &Scene) -> Result<()> {
    let files = scene.exec("ipc-bridge", "cd /run/sympozium && echo * && cat plan.json")?;
    let (names, plan) = files.split_once('\n').context("two lines")?;
    assert_eq!(
        names,
        "ca.crt credential-model credential-web plan.json token"
    );
    let digest = RunPlan::digest_of(plan.as_bytes());
    assert_eq!(digest, scene.rendered.digest);
    let files = scene.exec("skill-cluster", "cd /run/sympozium && echo * && cat proxy && echo && /skills/cluster/look/scripts/look.sh; sh /skills/cluster/look/scripts/look.sh")?;
    assert_eq!(files, "ca.crt proxy\nvalue of proxy\nlooked\nlooked\n");
    let agent = scene.exec("agent", "echo /run/sympozium/*; cat /skills/cluster/look/SKILL.md; test -x /skills/cluster/look/scripts/look.sh || echo ' no program'")?;
    assert_eq!(agent, "/run/sympozium/agent.json\nLook. no program\n");
    // A name that is looked up is not found, but the gateway's.
    let hosts = scene.exec(
        "skill-notes",
        "grep -c sympozium-gateway /etc/hosts; cat /etc/resolv.conf",
    )?;
    assert_eq!(hosts, "1\nnameserver 127.0.0.1\n");
    Ok(())
}

fn rights_are_granted(scene: &Scene) -> Result<()> {
    let account = scene
        .rendered
        .skeletons
        .iter()
        .find_map(|it| match &it.purpose {
            Purpose::Token {
                service_account, ..
            } => Some(service_account.clone()),
            Purpose::Input { .. } => None,
        });
    let account = account.context("an account")?;
    let pod = format!("{}-pod", account.rsplit_once('-').context("a word")?.0);
    for (account, verb, expected) in [
        (&account, "list", "yes"),
        (&account, "delete", "no"),
        (&pod, "list", "no"),
    ] {
        let user = format!("system:serviceaccount:{}:{account}", scene.namespace.name());
        let kubectl = scene.namespace.kubectl().clone().impersonating(&user);
        let said = kubectl.attempt(&["auth", "can-i", verb, "pods"])?;
        assert_eq!(said.stdout.trim(), expected, "{account} {verb}");
    }
    Ok(())
}

/// The gateway and the API server answer; the canary and everybody else do not.
fn reach_is_enforced(scene: &Scene) -> Result<()> {
    let connect = |address: &str| -> Result<bool> {
        let said = scene.exec(
            "skill-notes",
            &format!("cluster-probe connect {address}; true"),
        )?;
        ensure!(
            said.starts_with("connected") || said.starts_with("failed"),
            "{said}"
        );
        Ok(said.starts_with("connected"))
    };
    let (api, port) = scene.api_server;
    let rows = [
        (format!("{}:{PORT}", scene.gateway), true),
        (format!("{api}:{port}"), true),
        (format!("{}:{CANARY}", scene.gateway), false),
    ];
    eventually("the run's policy to be in force", PATIENCE, || {
        for (address, open) in &rows {
            if connect(address)? != *open {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}
