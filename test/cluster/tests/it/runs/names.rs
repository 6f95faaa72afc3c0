//! Names in a cluster that has a name server: runs look up none, and a model is reached by the name of its Service.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, Kubectl, Security, eventually};
use sympozium_testkit::model_server::{Answer, Settings};

use super::harness::{Harness, STRICT, hold, running_containers, scripted, shell_pack};
use super::rights::let_go;
use crate::pods::{self, PATIENCE};

/// What every cluster knows.
const NAME: &str = "kubernetes.default.svc.cluster.local";
const KEY: &str = "sk-test-of-names";

const AGENT: &str = "  policyRef: strict\n  skills: [{skillPackRef: tools}]";
/// Whether a container can look a name up: at the given name server, or at those in its pod's `/etc/resolv.conf`.
fn look_up(kubectl: &Kubectl, pod: &str, container: &str, server: Option<&str>) -> Result<bool> {
    let mut command = vec!["exec", pod, "-c", container, "--", "/bin/busybox"];
    command.extend(["nslookup", "-timeout=2", "-retry=1", "-type=a", NAME]);
    command.extend(server);
    let printed = kubectl.attempt(&command)?;
    let said = format!("{}{}", printed.stdout, printed.stderr);
    ensure!(
        printed.success || said.contains("no servers could be reached") || said.contains("refused"),
        "{container} could not ask: {said}"
    );
    Ok(printed.success)
}

/// The same by TCP, which name servers answer too.
fn connects(kubectl: &Kubectl, pod: &str, container: &str, server: &str) -> Result<bool> {
    let mut command = vec!["exec", pod, "-c", container, "--", "/bin/busybox"];
    command.extend(["nc", "-w", "2", server, "53", "-e", "/bin/true"]);
    let printed = kubectl.attempt(&command)?;
    ensure!(!printed.stderr.contains("not found"), "{container}: {}", printed.stderr);
    Ok(printed.success)
}

/// The name server answers an ordinary pod by UDP and by TCP. A run's pod has none in its `/etc/resolv.conf`, and does not reach this
/// one by its address either.
#[test]
fn a_run_looks_up_no_names_where_other_pods_do() -> Result<()> {
    let Some(harness) = Harness::new("names", Exclusivity::shared())? else {
        return Ok(());
    };
    let Some(image) = pods::image(harness.cluster)? else {
        return Ok(());
    };
    let system = harness.cluster.kubectl().in_namespace("kube-system");
    let service = system.json(&["get", "service", "kube-dns"])?;
    let server = service["spec"]["clusterIP"].as_str();
    let server = server.context("the name server's address")?;
    let elsewhere = harness.cluster.namespace("names", Security::Restricted)?;
    pods::start_idle(&elsewhere, "client", &image)?;
    harness.create(&(scripted("held", &hold(), AGENT, "") + &shell_pack("tools") + STRICT))?;
    let pod = harness.pod_with("held", "agent")?;
    let run = pod["metadata"]["name"].as_str().context("a pod's name")?;

    let free = elsewhere.kubectl();
    // On a busy machine an answer can take longer than one question waits.
    let answers = |asked| {
        eventually(&format!("an answer of {asked:?}"), PATIENCE, || {
            Ok(look_up(free, "client", "main", asked)?.then_some(()))
        })
    };
    for asked in [Some(server), None] {
        answers(asked)?;
    }
    eventually("a connection to the name server", PATIENCE, || {
        Ok(connects(free, "client", "main", server)?.then_some(()))
    })?;
    let mut containers = running_containers(&pod);
    containers.sort();
    assert_eq!(containers, ["agent", "ipc-bridge", "skill-tools"]);
    for container in &containers {
        for asked in [Some(server), None] {
            let found = look_up(harness.kubectl(), run, container, asked)?;
            assert!(!found, "{container} looked up a name at {asked:?}");
        }
        let connected = connects(harness.kubectl(), run, container, server)?;
        assert!(!connected, "{container} reached the name server");
    }
    // It answers still, so the silence was the run's.
    answers(Some(server))?;
    let_go(&harness, &pod, "skill-tools")?;
    let run = harness.ended("held")?;
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    Ok(())
}

/// The gateway looks names up as any program in a cluster does.
#[test]
fn a_model_is_reached_by_the_name_of_its_service() -> Result<()> {
    let Some(harness) = Harness::new("by-name", Exclusivity::shared())? else {
        return Ok(());
    };
    let Some(host) = harness.cluster.host_address() else {
        return Ok(());
    };
    let server = Settings::new().listen((host, 0).into()).key(KEY).start()?;
    server.set_default(Answer::text("Reached by name.").usage(10, 3));
    harness.namespace.lead("model", 8080, server.address(), None)?;
    harness.namespace.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"},
        "stringData": {"OPENAI_API_KEY": KEY},
    }))?;
    let short = format!("model.{}.svc", harness.namespace.name());
    let hosts = [short.clone(), format!("{short}.cluster.local")];
    let egress: Vec<Value> = hosts.iter().map(|host| json!({"host": host, "port": 8080})).collect();
    harness.namespace.create(&json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "own-model"},
        "spec": {"networkPolicy": {"allowedEgress": egress}},
    }))?;
    harness.namespace.create(&json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": {"name": "asker"},
        "spec": {"agents": {"default": {"model": "gpt-4o-mini"}}, "policyRef": "own-model"},
    }))?;
    for (number, host) in hosts.iter().enumerate() {
        harness.namespace.create(&json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": {"name": format!("run-{number}")},
            "spec": {"agentRef": "asker", "task": "Say how you were reached.", "model": {
                "provider": "openai", "model": "gpt-4o-mini", "authSecretRef": "key",
                "baseURL": format!("http://{host}:8080/v1"),
            }},
        }))?;
    }
    for number in 0..hosts.len() {
        let run = harness.ended(&format!("run-{number}"))?;
        assert_eq!(
            (&run["status"]["phase"], &run["status"]["result"]),
            (&json!("Succeeded"), &json!("Reached by name.")),
            "{run}"
        );
    }
    let mut asked: Vec<String> = server
        .requests()
        .iter()
        .flat_map(|it| it.headers.iter().filter(|(name, _)| name == "host"))
        .map(|(_, host)| host.clone())
        .collect();
    asked.sort();
    let mut expected = hosts.map(|host| format!("{host}:8080"));
    expected.sort();
    assert_eq!(asked, expected);
    Ok(())
}
