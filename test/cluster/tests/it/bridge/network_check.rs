//! `check-network` as a pod's first init container: what it finds is true, and the kubelet tells it on.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_plan::render::GatewayAddress;
use sympozium_testkit::cluster::{Tier, eventually};

use super::harness::{Given, Harness, Who};
use crate::pods::{self, PATIENCE};
use crate::render::manifests::unmanaged;

/// A run without a skill. FLOOR is where its policy says what it needs.
const RUN: &str = r#"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: checked}
spec: {agentRef: helper, task: Look around.}
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: helper}
spec:
  agents: {default: {model: m}}
  authRefs: [{provider: openai, secret: provider-key}]
  policyRef: floor-of-run
---
apiVersion: sympozium.ai/v1alpha1
kind: SympoziumPolicy
metadata: {name: floor-of-run}
spec: {sandboxPolicy: {minimumIsolation: FLOOR}}
"#;

/// The container that checks, and its pod.
const CHECK: &str = "check-network";
const CHECKED: &str = "checked";
/// For a check that ends as soon as it finds what it waits for.
const LONG: &str = "--timeout=600";

/// Whether the run needs its network held in.
#[derive(Clone, Copy, PartialEq)]
enum Need {
    Required,
    Reported,
}

fn start(tier: Tier, need: Need) -> Result<Option<Harness>> {
    let floor = match need {
        Need::Required => "[network]",
        Need::Reported => "[]",
    };
    Harness::new(&Given { tier, agent: Who::Played, manifests: &RUN.replace("FLOOR", floor), connect_seconds: 60 })
}

impl Harness {
    /// Starts the rendered pod with the first of its init containers as it is, and nothing behind it.
    fn check(&self, more: &[&str]) -> Result<()> {
        let mut pod = self.pod()?;
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(CHECKED);
        // gVisor's shim wants every volume that an annotation names, and this pod has none.
        pod["metadata"]["annotations"] = Value::Null;
        let spec = &mut pod["spec"];
        let mut first = spec["initContainers"][0].take();
        ensure!(first["name"] == CHECK, "{first}");
        let image = first["image"].as_str().context("an image")?.to_owned();
        let arguments = first["args"].as_array_mut().context("arguments")?;
        arguments.extend(more.iter().map(|it| json!(it)));
        spec["initContainers"] = json!([first]);
        spec["containers"] = json!([pods::container("rest", &image, "true")]);
        for other in ["volumes", "serviceAccountName"] {
            spec[other] = Value::Null;
        }
        self.namespace.create(&pod).map(drop)
    }

    /// Creates the run's NetworkPolicy.
    fn hold_in(&self) -> Result<()> {
        let mut objects = self.rendered.objects.iter();
        let policy = objects.find(|it| it.object.kind() == "NetworkPolicy");
        let policy = policy.context("no policy")?.object.to_value()?;
        self.namespace.create(&unmanaged(policy)).map(drop)
    }

    /// Waits until the check has ended, and the pod with it. Gives exit code, termination message and log.
    fn checked(&self, phase: &str) -> Result<(Value, Value, String)> {
        let ended = self.namespace.wait_for_pod(CHECKED, phase, 2 * PATIENCE);
        let log = self.log(CHECKED, CHECK)?;
        let pod = ended.with_context(|| format!("the check said: {log}"))?;
        let status = &pod["status"]["initContainerStatuses"][0];
        assert_eq!(status["restartCount"], 0, "{status}");
        let ended = &status["state"]["terminated"];
        Ok((ended["exitCode"].clone(), ended["message"].clone(), log))
    }

    /// The canary's address, as the run is told.
    fn canary(&self) -> Result<String> {
        let pod = self.pod()?;
        let ip = pod["spec"]["hostAliases"][0]["ip"].as_str();
        let port = GatewayAddress::default().canary_port;
        Ok(format!("{}:{port}", ip.context("an address")?))
    }
}

fn is_found_enforced(tier: Tier) -> Result<()> {
    let Some(harness) = start(tier, Need::Required)? else {
        return Ok(());
    };
    harness.hold_in()?;
    harness.check(&[LONG])?;
    let (code, message, log) = harness.checked("Succeeded")?;
    assert_eq!((code, message), (json!(0), json!("enforced\n")), "{log}");
    Ok(())
}

#[test]
fn a_policy_that_holds_is_found_enforced() -> Result<()> {
    is_found_enforced(Tier::Node)
}

#[test]
fn a_policy_that_holds_is_found_enforced_from_gvisor() -> Result<()> {
    is_found_enforced(Tier::Gvisor)
}

/// What shows that the canary can be reached, of two words for it: on a loaded machine its connection is accepted, and the answer is
/// late.
fn evidence(message: &Value) -> Result<&'static str> {
    let message = message.as_str().unwrap_or_default();
    let words = ["the gateway's canary answers", "connections to the gateway's canary are accepted"];
    let found = words.into_iter().find(|it| message.contains(it));
    found.with_context(|| format!("the check said {message}"))
}

#[test]
fn a_run_that_needs_its_network_held_in_does_not_start_without_a_policy() -> Result<()> {
    let Some(harness) = start(Tier::Node, Need::Required)? else {
        return Ok(());
    };
    // As long as a loaded machine may need for one attempt to be answered: the verdict is that of the last one.
    harness.check(&["--timeout=60"])?;
    let (code, message, log) = harness.checked("Failed")?;
    let said = format!("the run's NetworkPolicy is not enforced: {} ({})", evidence(&message)?, harness.canary()?);
    assert_eq!((code, message), (json!(1), json!(format!("unenforced: {said}\n"))), "{log}");
    let ending = format!(
        "error: {said}\nhint: use a network plugin that enforces NetworkPolicies, or a policy whose isolation floor does not need the network\n"
    );
    ensure!(log.ends_with(&ending), "{log}");
    Ok(())
}

#[test]
fn a_run_that_does_not_need_it_starts_and_says_so() -> Result<()> {
    let Some(harness) = start(Tier::Node, Need::Reported)? else {
        return Ok(());
    };
    harness.check(&[])?;
    let (code, message, log) = harness.checked("Succeeded")?;
    let said =
        format!("unenforced: nothing holds this run's network in: {} ({})\n", evidence(&message)?, harness.canary()?);
    assert_eq!((code, message), (json!(0), json!(said)), "{log}");
    Ok(())
}

#[test]
fn a_policy_that_comes_late_is_waited_for() -> Result<()> {
    let Some(harness) = start(Tier::Node, Need::Required)? else {
        return Ok(());
    };
    harness.check(&[LONG])?;
    // It has found the network open, and waits.
    eventually("the check to wait for a policy", PATIENCE, || {
        let waits = "waiting for the run's NetworkPolicy to be enforced";
        Ok(harness.log(CHECKED, CHECK)?.contains(waits).then_some(()))
    })?;
    harness.hold_in()?;
    let (code, message, log) = harness.checked("Succeeded")?;
    assert_eq!((code, message), (json!(0), json!("enforced\n")), "{log}");
    Ok(())
}
