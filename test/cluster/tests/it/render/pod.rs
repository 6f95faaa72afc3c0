//! A rendered pod that runs, with stand-ins for the images: what each container sees is compared with the plan.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use sympozium_api::RunPlan;
use sympozium_api::run_plan::paths;
use sympozium_plan::render::SecretPurpose;
use sympozium_testkit::cluster::{Tier, eventually};

use super::start::{CANARY, PORT, Scene, Start, start};
use crate::pods::PATIENCE;

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
  sidecar:
    image: IMAGE
    volumes: [{name: own, emptyDir: {}}]
    volumeMounts: [{name: own, mountPath: /own}]
    env:
      - {name: HELD, valueFrom: {secretKeyRef: {name: cluster-secret, key: password}}}
      - {name: SAID, value: "$(HELD) $$ $(OTHER)"}
"#;

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

#[test]
fn a_rendered_pod_shows_each_container_what_the_plan_says() -> Result<()> {
    let run = Start { tier: Tier::Node, manifests: RUN, executor: None };
    let Some(scene) = start(&run)? else {
        return Ok(());
    };
    let names: Vec<&str> = scene.plan.parts.iter().map(|it| it.name.0.as_str()).collect();
    assert_eq!(names, ["agent", "ipc-bridge", "skill-cluster", "skill-notes", "sandbox", "pre-first"]);
    for part in scene.plan.parts.iter().filter(|it| !it.role.is_hook()) {
        scene.wait_for_marks(part.name.0.as_str())?;
    }
    for part in &scene.plan.parts {
        let name = part.name.0.as_str();
        let said = scene.look(name, !part.role.is_hook())?;
        let lines = |word: &str| -> Vec<&str> {
            said.lines().filter_map(|line| line.strip_prefix(word)).map(str::trim).collect()
        };
        assert_eq!(lines("user"), ["1000 1000"], "{name}");
        assert_eq!(lines("root writable"), Vec::<&str>::new(), "{name}");
        assert_eq!(lines("CapEff:"), ["0000000000000000"], "{name}");
        assert_eq!(lines("token").len(), usize::from(name == "skill-cluster"), "{name}");

        let usual = |place: &str| USUAL.contains(&place) || place.starts_with("/proc") || place.starts_with("/sys");
        let seen: BTreeSet<String> = lines("mount").into_iter().map(str::to_owned).collect();
        let seen: BTreeSet<String> =
            seen.into_iter().filter(|line| !line.split(' ').next().is_some_and(usual)).collect();
        let planned: BTreeSet<String> =
            part.mounts.iter().map(|it| format!("{} {}", it.path, if it.read_only { "ro" } else { "rw" })).collect();
        assert_eq!(seen, planned, "{name}");

        // What others left where names are the same, and what is the container's own.
        let marks: BTreeSet<&str> = lines("mark").into_iter().collect();
        let own = |place: &str| format!("{place}/mark-{name}");
        let mut expected: BTreeSet<String> = BTreeSet::new();
        if !part.role.is_hook() {
            expected.extend([own(paths::TMP), own(paths::SHM)]);
        }
        if part.role.pack().is_some() {
            expected.insert(own(paths::IPC));
        }
        if name == "ipc-bridge" {
            for (pack, container) in [("cluster", "skill-cluster"), ("notes", "skill-notes"), ("sandbox", "sandbox")] {
                expected.insert(format!("/ipc/{pack}/mark-{container}"));
            }
        }
        assert_eq!(marks, expected.iter().map(String::as_str).collect(), "{name}");

        // Keys of the provider, and the way to the gateway.
        let variables: Vec<&str> =
            said.lines().filter_map(|line| line.split_once('=').map(|(variable, _)| variable)).collect();
        let expected: &[&str] = match name {
            "ipc-bridge" => &["OPENAI_API_KEY"],
            "skill-cluster" => &["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"],
            _ => &[],
        };
        assert_eq!(BTreeSet::from_iter(variables), expected.iter().copied().collect(), "{name}");
    }
    inputs_are_read(&scene)?;
    rights_are_granted(&scene)?;
    reach_is_enforced(&scene)
}

fn inputs_are_read(scene: &Scene) -> Result<()> {
    let files = scene.exec("ipc-bridge", "cd /run/sympozium && echo * && cat plan.json")?;
    let (names, plan) = files.split_once('\n').context("two lines")?;
    assert_eq!(names, "ca.crt credential-model credential-web plan.json token");
    let digest = RunPlan::digest_of(plan.as_bytes());
    assert_eq!(digest, scene.rendered.digest);
    let files = scene.exec("skill-cluster", "cd /run/sympozium && echo * && cat proxy && echo && /skills/cluster/look/scripts/look.sh; sh /skills/cluster/look/scripts/look.sh")?;
    assert_eq!(files, "ca.crt proxy\nvalue of proxy\nlooked\nlooked\n");
    let agent = scene.exec("agent", "echo /run/sympozium/*; cat /skills/cluster/look/SKILL.md; test -x /skills/cluster/look/scripts/look.sh || echo ' no program'")?;
    assert_eq!(agent, "/run/sympozium/agent.json\nLook. no program\n");
    // What users write is what containers get.
    let said = scene.exec("skill-notes", r#"echo "$HELD: $SAID""#)?;
    assert_eq!(said, "value: $(HELD) $$ $(OTHER)\n");
    // A name that is looked up is not found, but the gateway's.
    let hosts = scene.exec("skill-notes", "grep -c sympozium-gateway /etc/hosts; cat /etc/resolv.conf")?;
    assert_eq!(hosts, "1\nnameserver 127.0.0.1\n");
    Ok(())
}

fn rights_are_granted(scene: &Scene) -> Result<()> {
    let account = scene.rendered.pending_secrets.iter().find_map(|it| match &it.purpose {
        SecretPurpose::Token { service_account, .. } => Some(service_account.clone()),
        SecretPurpose::Input { .. } => None,
    });
    let account = account.context("an account")?;
    let pod = format!("{}-pod", account.rsplit_once('-').context("a word")?.0);
    for (account, verb, expected) in [(&account, "list", "yes"), (&account, "delete", "no"), (&pod, "list", "no")] {
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
        let said = scene.exec("skill-notes", &format!("cluster-probe connect {address}; true"))?;
        ensure!(said.starts_with("connected") || said.starts_with("failed"), "{said}");
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
