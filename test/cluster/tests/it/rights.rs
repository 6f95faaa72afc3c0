//! What our programs do in a cluster, by its audit log, against what they may: no call is refused, and no rule is for
//! nothing.
//!
//! The log is read from the cluster's beginning. The test starts runs of different kinds itself, so it does not matter what
//! other tests have done before it.

mod rules;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Call, Cluster, Exclusivity, Installation, Namespace, SYSTEM_NAMESPACE, Tier};

use self::rules::{Rule, of_account};

const PATIENCE: Duration = Duration::from_secs(180);
const CONTROLLER: &str = "sympozium-controller";
const GATEWAY: &str = "sympozium-gateway";

/// Rights that these runs do not need, and why they are there: `account verb group/resource`.
const NOT_USED_HERE: &[(&str, &str)] = &[
    ("sympozium-controller * agents.x-k8s.io/sandboxes", "this tier has no agent-sandbox"),
    (
        "sympozium-controller escalate rbac.authorization.k8s.io/roles",
        "authorised by the API server itself: the log has the create that needs it",
    ),
    ("sympozium-controller escalate rbac.authorization.k8s.io/clusterroles", "as for roles"),
    ("sympozium-controller bind rbac.authorization.k8s.io/roles", "as for roles"),
    ("sympozium-controller bind rbac.authorization.k8s.io/clusterroles", "as for roles"),
    (
        "sympozium-controller update sympozium.ai/agentruns/finalizers",
        "checked by the admission of owner references, where a cluster turns that on",
    ),
    ("sympozium-controller update sympozium.ai/skillpacks/finalizers", "as for runs"),
    (
        "sympozium-controller * persistentvolumeclaims",
        "a run whose workspace outlives its pod; a node without a StorageClass never binds it",
    ),
    ("sympozium-controller update secrets", "renewal of certificates and rotation of keys, after weeks"),
    ("sympozium-controller patch secrets", "renewal of tokens of runs that last longer than those do"),
    ("sympozium-controller delete pods", "a pod that outlives its bridge: `runs::endings`"),
    (
        "sympozium-controller get pods",
        "whether a pod is there of which the watch has not told, after a restart in the middle of an end",
    ),
    (
        "sympozium-controller get sympozium.ai/agentruns",
        "whether a run was reported as ended, where the watch of pods is ahead of that of runs: `runs::faults`",
    ),
    ("sympozium-controller get pods/log", "a run that failed: `runs::faults`"),
    (
        "sympozium-controller delete sympozium.ai/agentruns",
        "the history of an agent with more runs than it keeps: `runs::endings`",
    ),
    ("sympozium-controller patch batch/jobs", "hooks after a run, which begin when the agent has ended: conformance"),
    ("sympozium-controller patch events.k8s.io/events", "an Event that is repeated"),
    ("sympozium-gateway get sympozium.ai/runrecords", "whether a record is there whose creation was not answered"),
    ("sympozium-gateway get sympozium.ai/toolapprovals", "whether a question is there whose creation was not answered"),
    (
        "sympozium-controller * rbac.authorization.k8s.io/clusterrole*",
        "the floor that we ship permits grants in the whole cluster in the namespace `default` only",
    ),
];

#[test]
fn what_the_programs_may_do_is_what_they_do() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(());
    };
    let Some(installation) = Installation::shared(cluster)? else {
        return Ok(());
    };
    let Some(audit) = cluster.audit() else {
        return Ok(());
    };
    let _exclusivity = Exclusivity::shared();
    let namespace = installation.namespace("rights")?;
    runs(installation, &namespace)?;
    let calls = audit.since(audit.beginning())?;
    let mut problems = Vec::new();
    for account in [CONTROLLER, GATEWAY] {
        let rules = of_account(account)?;
        let user = format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{account}");
        let calls: Vec<&Call> = (calls.iter()).filter(|call| call.user == user && !call.resource.is_empty()).collect();
        ensure!(calls.len() > 20, "{account} made {} calls", calls.len());
        problems.extend(refused(account, &calls, &rules));
        problems.extend(unused(account, &calls, &rules));
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Calls that were refused, or would be without additional rights.
fn refused(account: &str, calls: &[&Call], rules: &[Rule]) -> BTreeSet<String> {
    let covered = |call: &Call| rules.iter().any(|rule| rule.covers(call));
    // A namespace that is being terminated takes no new objects, also from users with the right to write them, and other tests' namespaces are.
    let is_of_the_going = |call: &Call| call.message.contains("because it is being terminated");
    calls
        .iter()
        .filter(|call| !covered(call) || (call.code == 403 && !is_of_the_going(call)))
        .map(|call| format!("{account}: {} {} is not among its rights ({})", call.verb, call.path, call.code))
        .collect()
}

/// Rights that no call needed, and that are not excused.
fn unused(account: &str, calls: &[&Call], rules: &[Rule]) -> BTreeSet<String> {
    let excused = |right: &str| NOT_USED_HERE.iter().any(|(pattern, _)| rules::matches(pattern, right));
    let single = rules.iter().flat_map(Rule::split);
    single
        .filter(|right| !calls.iter().any(|call| right.covers(call)))
        .map(|right| format!("{account} {}", right.describe()))
        .filter(|right| !excused(right))
        .map(|right| format!("{right} was never used"))
        .collect()
}

/// Runs that together need everything: one that answers, one whose skill has rights, one that waits for a person, one that
/// cannot start and is cancelled, one that is removed while it goes on.
fn runs(installation: &Installation, namespace: &Namespace) -> Result<()> {
    // A pack of the system namespace: without a known author no other may ask for rights.
    installation.import("skill-incident-response")?;
    for object in around() {
        namespace.create(&object)?;
    }
    let answers = installation.run_to_end(namespace, &[run("answers", "plain", "say")], PATIENCE)?;
    assert_eq!(answers["status"]["phase"], "Succeeded", "{answers:#}");
    let acts = installation.run_to_end(namespace, &[run("acts", "skilled", "act")], PATIENCE)?;
    assert_eq!(acts["status"]["phase"], "Succeeded", "{acts:#}");

    namespace.create(&run("asks", "careful", "act"))?;
    let approval = sympozium_testkit::cluster::eventually("a request", PATIENCE, || {
        let all = namespace.kubectl().json(&["get", "toolapprovals"])?;
        Ok(all["items"][0]["metadata"]["name"].as_str().map(str::to_owned))
    })?;
    let decision = json!({ "status": {
        "decision": "approved", "decidedBy": "admin", "decidedAt": "2026-01-01T10:00:00Z",
    } });
    namespace.kubectl().run(&[
        "patch",
        "toolapproval",
        &approval,
        "--subresource=status",
        "--type=merge",
        "-p",
        &decision.to_string(),
    ])?;
    let asks = installation.wait_for_end(namespace, "asks", PATIENCE)?;
    assert_eq!(asks["status"]["phase"], "Succeeded", "{asks:#}");

    // Its text is written again.
    let text = r#"[{"op":"replace","path":"/spec/skills/0/content","value":"another"}]"#;
    let pack = ["patch", "skillpack", "broken-image", "--type=json", "-p", text];
    namespace.kubectl().run(&pack)?;

    namespace.create(&run("stuck", "broken", "act"))?;
    let waits = |name: &str| {
        sympozium_testkit::cluster::eventually(&format!("{name} to begin"), PATIENCE, || {
            let run = namespace.kubectl().json(&["get", "agentrun", name])?;
            Ok(run["status"]["jobName"].is_string().then_some(()))
        })
    };
    waits("stuck")?;
    let cancel = ["patch", "agentrun", "stuck", "--type=merge", "-p"];
    namespace.kubectl().run(&[&cancel[..], &[r#"{"spec":{"cancel":true}}"#]].concat())?;
    let stuck = installation.wait_for_end(namespace, "stuck", PATIENCE)?;
    assert_eq!(stuck["status"]["phase"], "Cancelled", "{stuck:#}");

    namespace.create(&run("removed", "broken", "act"))?;
    waits("removed")?;
    namespace
        .kubectl()
        .run(&["delete", "agentrun", "removed", "--timeout=180s"])
        .context("a run that goes on is removed")?;
    Ok(())
}

fn ours(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
    })
}

fn run(name: &str, agent: &str, script: &str) -> Value {
    let spec = json!({
        "agentRef": agent, "task": "do it", "model": { "provider": "scripted", "model": script },
    });
    ours("AgentRun", name, &spec)
}

/// Agents, packs, a policy and scripts.
fn around() -> Vec<Value> {
    let script = |name: &str, turns: Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
            "data": { "turns.yaml": json!({ "turns": turns }).to_string() },
        })
    };
    let call = json!({ "tool": "execute_command", "arguments": { "command": "kubectl get pods -o name" } });
    let agent = |name: &str, mut spec: Value| {
        spec["agents"] = json!({ "default": { "model": "m" } });
        ours("Agent", name, &spec)
    };
    vec![
        script("say", json!([{ "say": "Done.", "then": "end" }])),
        script("act", json!([{ "call": [call] }, { "say": "Done.", "then": "end" }])),
        ours(
            "SkillPack",
            "broken-image",
            &json!({
                "skills": [{ "name": "do", "description": "d", "content": "c" }],
                "sidecar": { "image": "sympozium.test/there-is-no-such-image:1" },
            }),
        ),
        ours(
            "SympoziumPolicy",
            "ask",
            &json!({ "toolGating": { "defaultAction": "allow", "rules": [{ "tool": "execute_command", "action": "ask" }] } }),
        ),
        // Nothing serves them; what their conditions say is written all the same.
        ours("SympoziumSchedule", "nightly", &json!({ "agentRef": "plain", "schedule": "0 3 * * *", "task": "do it" })),
        ours("Model", "small", &json!({ "source": { "modelID": "small" } })),
        agent("plain", json!({})),
        ours("SympoziumInstance", "older", &json!({ "agents": { "default": { "model": "m" } } })),
        agent("skilled", json!({ "skills": [{ "skillPackRef": "incident-response" }] })),
        agent("careful", json!({ "skills": [{ "skillPackRef": "incident-response" }], "policyRef": "ask" })),
        agent("broken", json!({ "skills": [{ "skillPackRef": "broken-image" }] })),
    ]
}
