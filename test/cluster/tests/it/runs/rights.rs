//! Rights at the Kubernetes API: of one skill, of one run, and gone when it is over.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, Kubectl, eventually};

use super::harness::{
    Harness, KUBECTL_IMAGE, LONGEST, PATIENCE, SystemPack, condition, hold, holds, is_over, running_containers,
    scripted,
};
use crate::render::manifests::{documents, send};

/// Waits in a command until this file exists.
pub const HOLD: &str = "until [ -e /workspace/go ]; do sleep 0.1; done";
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// How long the API server may believe a token that it has seen.
const TOKEN_CACHE: Duration = Duration::from_secs(180);

/// A pack with `kubectl` that may list these in its run's namespace.
fn pack(harness: &Harness, resource: &str) -> Result<SystemPack> {
    harness.load_kubectl()?;
    harness.create_system_pack(&json!({
        "skills": [{"name": "look", "description": "Looks.", "content": "Look."}],
        "sidecar": {
            "image": KUBECTL_IMAGE, "executor": "injected", "mountWorkspace": true,
            "rbac": [{"apiGroups": [""], "resources": [resource], "verbs": ["get", "list"]}],
        },
    }))
}

fn skills(names: &[&str]) -> String {
    let names: Vec<Value> = names.iter().map(|it| json!({ "skillPackRef": it })).collect();
    format!("  skills: {}", Value::from(names))
}

/// Lets a command go on that waits by [`HOLD`].
pub fn let_go(harness: &Harness, pod: &Value, container: &str) -> Result<()> {
    // On a busy machine a container may be out of reach for a moment.
    eventually(&format!("{container} to be told"), PATIENCE, || {
        let done = harness.exec(pod, container, &["touch", "/workspace/go"])?;
        ensure!(done.success, "{}", done.stderr);
        Ok(Some(()))
    })
}

/// The container of a pack in a pod.
fn container_of(pod: &Value, pack: &str) -> Result<String> {
    let mut names = running_containers(pod).into_iter();
    let name = names.find(|it| it.starts_with("skill-") && pack.starts_with(&it["skill-".len()..]));
    name.with_context(|| format!("no container of {pack}"))
}

/// Whether the API server allows a user to do this.
fn may(kubectl: &Kubectl, user: &str, namespace: &str, verb: &str, resource: &str) -> Result<bool> {
    let answer = kubectl.create(&json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
        "spec": {"user": user, "resourceAttributes": {"namespace": namespace, "verb": verb, "resource": resource}},
    }))?;
    Ok(answer["status"]["allowed"] == true)
}

/// The account of the run's one skill.
fn account(run: &Value) -> Result<String> {
    let namespace = run["metadata"]["namespace"].as_str().unwrap_or_default();
    let grants = run["status"]["grants"].as_array().into_iter().flatten();
    let accounts: Vec<&str> = grants
        .filter(|it| it["kind"] == "ServiceAccount")
        .filter_map(|it| it["name"].as_str())
        .filter(|name| name.ends_with("-skill0"))
        .collect();
    ensure!(accounts.len() == 1, "{accounts:?} of {}", run["status"]["grants"]);
    Ok(format!("system:serviceaccount:{namespace}:{}", accounts[0]))
}

#[test]
fn a_skill_lists_pods_and_no_other_container_can() -> Result<()> {
    let Some(harness) = Harness::new("rights", Exclusivity::shared())? else {
        return Ok(());
    };
    let pack = pack(&harness, "pods")?;
    let other = "apiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {name: other}\nspec:\n  \
        skills: [{name: use, description: Runs commands., content: Use it.}]\n  \
        sidecar: {image: IMAGE, executor: injected, mountWorkspace: true}\n"
        .replace("IMAGE", KUBECTL_IMAGE);
    harness.create(&other)?;
    let call = |command: &str| {
        let arguments = json!({ "command": command, "target": pack.name, "timeout": LONGEST });
        format!("call: [{{tool: execute_command, arguments: {arguments}}}]")
    };
    // Only if the first has listed it, the others wait.
    let listed = "when: {toolResult: {of: call_1_1, matches: \"^pod/looker-\"}}";
    // On a busy machine a connection to the API server may take too long.
    let mut turns = format!("      - {}\n", call("until kubectl get pods -o name 2>/dev/null; do sleep 1; done"));
    for (number, command) in holds().iter().enumerate() {
        let when = if number == 0 { format!("{listed}, ") } else { String::new() };
        turns.push_str(&format!("      - {{{when}{}}}\n", call(command)));
    }
    turns.push_str("      - {say: Done., then: end}");
    harness.create(&scripted("looker", &turns, &skills(&[&pack.name, "other"]), ""))?;
    let pod = harness.pod_with("looker", "ipc-bridge")?;
    let own = container_of(&pod, &pack.name)?;

    let list = ["kubectl", "get", "pods", "-o", "name"];
    eventually("the skill to list pods", PATIENCE, || {
        let listed = harness.exec(&pod, &own, &list)?;
        ensure!(listed.success && listed.stdout.starts_with("pod/looker-"), "{listed:?}");
        Ok(Some(()))
    })?;
    let mut others: Vec<String> = running_containers(&pod);
    others.retain(|it| *it != own);
    others.sort();
    assert_eq!(others, ["agent", "ipc-bridge", "skill-other"]);
    for container in &others {
        let tried = harness.exec(&pod, container, &list)?;
        assert!(!tried.success, "{container}: {tried:?}");
        let token = harness.exec(&pod, container, &["cat", TOKEN])?;
        assert!(!token.success, "{container}: {token:?}");
    }
    // The token that the bridge has is for the gateway.
    let token = harness.exec(&pod, "ipc-bridge", &["cat", "/run/sympozium/token"])?;
    ensure!(token.success, "{token:?}");
    let tried = with_token(&harness, token.stdout.trim())?;
    assert!(tried.contains("Unauthorized") || tried.contains("logged in"), "{tried}");

    let_go(&harness, &pod, &own)?;
    let run = harness.ended("looker")?;
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    Ok(())
}

/// The API server's error when pods are listed with this token; nothing when it allows that.
fn with_token(harness: &Harness, token: &str) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let config = directory.path().join("config");
    // The administrator's own configuration with another user in it.
    let mut value: Value = serde_saphyr::from_str(&std::fs::read_to_string(harness.cluster.kubeconfig())?)?;
    value["users"][0]["user"] = json!({ "token": token });
    std::fs::write(&config, value.to_string())?;
    eventually("the API server's answer", PATIENCE, || {
        let mut list = harness.kubectl().command(&["get", "pods", "-o", "name"]);
        let output = list.env("KUBECONFIG", &config).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.success() {
            true => Ok(Some(String::new())),
            // It was not asked: the machine was too busy for a connection.
            false => Ok((!said.contains("TLS handshake timeout")).then_some(said)),
        }
    })
}

#[test]
fn runs_at_once_never_have_the_rights_of_each_other() -> Result<()> {
    let Some(first) = Harness::new("pair-one", Exclusivity::shared())? else {
        return Ok(());
    };
    let second = first.beside("pair-two")?;
    // Two runs in one namespace, and one of an equal name in another.
    let (pods, maps) = (pack(&first, "pods")?, pack(&second, "configmaps")?);
    let start = |harness: &Harness, run: &str, pack: &SystemPack| -> Result<()> {
        let turns = hold();
        harness.create(&scripted(run, &turns, &skills(&[&pack.name]), "")).map(drop)
    };
    start(&first, "one", &pods)?;
    start(&first, "two", &maps)?;
    start(&second, "one", &pods)?;
    let mut all = Vec::new();
    for (harness, name, resource) in [(&first, "one", "pods"), (&first, "two", "configmaps"), (&second, "one", "pods")]
    {
        let pod = harness.pod_with(name, "agent")?;
        let run = harness.run(name)?;
        all.push((harness, name, resource, account(&run)?, pod));
    }
    let admin = first.cluster.kubectl();
    for (harness, name, resource, user, _) in &all {
        for (namespace, asked) in [(&first, "pods"), (&first, "configmaps"), (&second, "pods"), (&second, "configmaps")]
        {
            let expected = namespace.namespace.name() == harness.namespace.name() && asked == *resource;
            for verb in ["get", "list"] {
                let about = format!("{name} ({user}): {verb} {asked} in {}", namespace.namespace.name());
                let ask = || may(&admin, user, namespace.namespace.name(), verb, asked);
                match expected {
                    // The API server learns of a binding a moment after it is made.
                    true => eventually(&about, PATIENCE, || Ok(ask()?.then_some(())))?,
                    false => assert!(!ask()?, "{about}"),
                }
            }
        }
        assert!(!may(&admin, user, harness.namespace.name(), "delete", resource)?);
    }
    for (harness, name, resource, user, pod) in &all {
        let pack = if *resource == "pods" { &pods.name } else { &maps.name };
        let_go(harness, pod, &container_of(pod, pack)?)?;
        let run = harness.ended(name)?;
        assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
        assert!(!may(&admin, user, harness.namespace.name(), "get", resource)?);
    }
    Ok(())
}

/// The pack `k8s-ops`, its image and the floor as they are installed: commands and its declared tool, in the run's
/// namespace and in the whole cluster, and nothing beyond.
#[test]
fn the_pack_that_we_ship_looks_at_the_cluster() -> Result<()> {
    let Some(harness) = Harness::new("shipped", Exclusivity::shared())? else {
        return Ok(());
    };
    harness.installation.import("skill-k8s-ops")?;
    let run = harness.namespace.name().to_owned();
    // On a busy machine a connection to the API server may take too long.
    let look = "until kubectl get nodes -o name 2>/dev/null; do sleep 1; done; \
                until kubectl get pods -o json 2>/dev/null | jq -r .kind | grep List; do sleep 1; done";
    let look = json!({ "command": look, "timeout": LONGEST });
    let secrets = "until kubectl get secrets 2>&1 | grep forbidden; do sleep 1; done";
    let secrets = json!({ "command": secrets, "timeout": LONGEST });
    let turns = format!(
        "      - call: [{{tool: execute_command, arguments: {look}}}]\n      \
         - {{when: {{toolResult: {{of: call_1_1, matches: \"^node/[^\\n]+\\nList\"}}}}, call: [{{tool: list_unhealthy_pods, arguments: {{namespace: \"*\"}}}}]}}\n      \
         - call: [{{tool: execute_command, arguments: {secrets}}}]\n      \
         - {{when: {{toolResult: {{of: call_3_1, contains: \"forbidden\"}}}}, say: Done., then: end}}"
    );
    // The floor consents to rights in the whole cluster for this namespace.
    let kubectl = harness.cluster.kubectl().in_namespace("default");
    let mut objects = documents(&scripted(&run, &turns, &skills(&["k8s-ops"]), ""))?;
    for object in &mut objects {
        object["metadata"]["namespace"] = json!("default");
    }
    send(&kubectl, &["create"], &objects)?;
    let ended = eventually("the run in `default` to end", PATIENCE, || {
        let found = kubectl.json(&["get", "agentrun", &run])?;
        Ok(is_over(&found).then_some(found))
    });
    let last = kubectl.attempt(&["get", "agentrun", &run, "-o", "yaml"])?;
    for kind_name in [format!("agentrun/{run}"), format!("agent/agent-{run}"), format!("configmap/script-{run}")] {
        kubectl.attempt(&["delete", &kind_name, "--wait=false"])?;
    }
    let ended = ended.with_context(|| last.stdout)?;
    assert_eq!(
        (&ended["status"]["phase"], &ended["status"]["result"]),
        (&json!("Succeeded"), &json!("Done.")),
        "{ended}"
    );
    assert_eq!(harness.left_of(&ended)?, Vec::<String>::new());
    Ok(())
}

/// The rights end with the agent, and its token soon after. The times are printed and not bounded: this machine is shared.
#[test]
fn rights_are_gone_when_the_agent_has_ended() -> Result<()> {
    let Some(harness) = Harness::new("revoked", Exclusivity::shared())? else {
        return Ok(());
    };
    let pack = pack(&harness, "pods")?;
    harness.create(&scripted("brief", &hold(), &skills(&[&pack.name]), ""))?;
    let pod = harness.pod_with("brief", "agent")?;
    let own = container_of(&pod, &pack.name)?;
    let token = harness.exec(&pod, &own, &["cat", TOKEN])?;
    ensure!(token.success, "{token:?}");
    let token = token.stdout.trim().to_owned();
    eventually("the token to be taken", PATIENCE, || {
        let said = with_token(&harness, &token)?;
        ensure!(said.is_empty(), "{said}");
        Ok(Some(()))
    })?;

    let_go(&harness, &pod, &own)?;
    let begin = Instant::now();
    let ended = harness.wait("brief", "its agent to end", |run| run["status"]["report"]["finished"] == true)?;
    let finished = begin.elapsed();
    let forbidden = eventually("the rights to be gone", PATIENCE, || {
        let said = with_token(&harness, &token)?;
        Ok(said
            .contains("orbidden")
            .then(|| begin.elapsed())
            .or_else(|| (said.contains("nauthorized") || said.contains("logged in")).then(|| begin.elapsed())))
    })?;
    let unauthorized = eventually("the token to be worth nothing", TOKEN_CACHE, || {
        let said = with_token(&harness, &token)?;
        let refused = said.contains("nauthorized") || said.contains("logged in");
        Ok(refused.then(|| begin.elapsed()))
    })?;
    eprintln!(
        "rights: the end was seen after {} ms, the first 403 after {} ms, the first 401 after {} ms",
        finished.as_millis(),
        forbidden.as_millis(),
        unauthorized.as_millis()
    );
    drop(ended);
    let run = harness.ended("brief")?;
    assert_eq!(condition(&run, "Revoked"), "True");
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    let [granted, revoked] = ["grantedAt", "revokedAt"].map(|it| run["status"][it].as_str().map(str::to_owned));
    assert!(granted.is_some() && granted <= revoked, "{granted:?} {revoked:?}");
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    Ok(())
}
