//! Our kinds on a real API server: what it accepts, defaults, refuses and shows.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Cluster, Namespace, Security, eventually};
use sympozium_testkit::objects::{lost, merge};

use crate::pods::PATIENCE;

#[test]
fn the_seeds_manifests_are_accepted_updated_and_applied() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("seeds", Security::Restricted)?;
    let kubectl = namespace.kubectl();
    let mut count = 0;
    for path in files("config/samples/seeds", ".yaml")? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut manifest = read(&path)?;
        if name.contains("fragment") {
            let short = name.trim_end_matches(".yaml");
            let mut pack = object("SkillPack", short);
            pack["spec"] = json!({ "skills": [], "sidecar": { "image": "example.test/i:1" } });
            merge(&mut pack["spec"], &manifest);
            manifest = pack;
            let created = create(&namespace, &manifest)?;
            assert_eq!(lost(&manifest, &created), Vec::<String>::new(), "{name}");
        } else {
            // As the seeds say it, from the file as it is.
            let file = path.to_string_lossy();
            kubectl.run(&["apply", "--validate=strict", "-f", &file])?;
        }
        let reference = reference(&manifest);
        let stored = kubectl.json(&["get", &reference])?;
        assert_eq!(lost(&manifest, &stored), Vec::<String>::new(), "{name}");
        readable(&stored)?;

        kubectl.run(&["label", &reference, "example.test/seen=yes"])?;
        merge(&mut manifest, &json!({ "metadata": { "annotations": { "example.test/by": "another" } } }));
        let arguments =
            ["apply", "--server-side", "--validate=strict", "--field-manager=another", "-o", "json", "-f", "-"];
        let applied = kubectl.feed(&arguments, &manifest)?;
        ensure!(applied.success, "{name}: {}", applied.stderr);
        let applied: Value = serde_json::from_str(&applied.stdout)?;
        assert_eq!(lost(&manifest, &applied), Vec::<String>::new(), "{name}");
        assert_eq!(applied["metadata"]["labels"]["example.test/seen"], "yes");
        count += 1;
    }
    assert_eq!(count, 9);
    Ok(())
}

#[test]
fn skills_are_toggled_as_the_seeds_say() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("toggle", Security::Restricted)?;
    for (kind, resource, file) in [
        ("SympoziumInstance", "sympoziuminstance", "000-patch-skills.json"),
        ("Agent", "agent", "004-patch-skills.json"),
    ] {
        let mut agent = object(kind, "my-agent");
        agent["spec"] = json!({ "agents": { "default": { "model": "m" } } });
        create(&namespace, &agent)?;
        let patch = fs::read_to_string(root().join("config/samples/seeds").join(file))?;
        let kubectl = namespace.kubectl();
        kubectl.run(&["patch", resource, "my-agent", "--type=merge", "-p", patch.trim()])?;
        let patched = kubectl.json(&["get", resource, "my-agent"])?;
        let patch: Value = serde_json::from_str(&patch)?;
        assert_eq!(patched["spec"]["skills"], patch["spec"]["skills"], "{kind}");
    }
    Ok(())
}

/// One manifest per kind has every field; the API server knows each of them and gives it back.
#[test]
fn every_field_is_known_and_kept() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("full", Security::Restricted)?;
    let manifests = files("crates/api/tests/fixtures/full", ".yaml")?;
    assert_eq!(manifests.len(), 8);
    for path in manifests {
        let manifest = read(&path)?;
        let created = create(&namespace, &manifest)?;
        assert_eq!(created["spec"], manifest["spec"], "{}", path.display());
        readable(&created)?;
    }
    Ok(())
}

#[test]
fn the_table_of_refusals_holds_word_for_word() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("cases", Security::Restricted)?;
    let table = read(&root().join("crates/api/tests/fixtures/cases.yaml"))?;
    let cases = table["cases"].as_array().context("no cases")?;
    for (number, case) in cases.iter().enumerate() {
        let kind = case["kind"].as_str().context("no kind")?;
        let mut manifest = object(kind, &format!("case-{number}"));
        merge(&mut manifest, &table["bases"][kind]);
        if case["merge"].is_object() {
            merge(&mut manifest, &case["merge"]);
        }
        let kubectl = namespace.kubectl();
        let mut outcome = kubectl.feed(&["create", "--validate=strict", "-o", "json", "-f", "-"], &manifest)?;
        if case["update"].is_object() {
            ensure!(outcome.success, "{}: {}", case["name"], outcome.stderr);
            let patch = case["update"].to_string();
            let reference = reference(&manifest);
            outcome = kubectl.attempt(&["patch", &reference, "--type=merge", "-o", "json", "-p", &patch])?;
        }
        match case["refused"].as_str() {
            Some(message) => {
                assert!(!outcome.success, "{} was accepted", case["name"]);
                assert!(
                    outcome.stderr.contains(message),
                    "{}: expected {message:?} in {}",
                    case["name"],
                    outcome.stderr
                );
            }
            None => {
                assert!(outcome.success, "{}: {}", case["name"], outcome.stderr);
                readable(&serde_json::from_str(&outcome.stdout)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn defaults_are_filled_in_and_nulls_are_dropped() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("defaults", Security::Restricted)?;
    let mut run = object("AgentRun", "run");
    run["spec"] = json!({ "instanceRef": "a", "task": "t", "timeout": null, "skills": null });
    assert_eq!(
        create(&namespace, &run)?["spec"],
        json!({
            "instanceRef": "a", "task": "t", "agentId": "primary", "sessionKey": "", "cleanup": "delete",
            "mode": "task", "useContext": true, "cancel": false,
        })
    );
    let mut pack = object("SkillPack", "pack");
    pack["spec"] = json!({ "skills": [], "sidecar": { "image": "i" } });
    assert_eq!(
        create(&namespace, &pack)?["spec"]["sidecar"],
        json!({ "image": "i", "executor": "image", "mountWorkspace": false })
    );
    let mut policy = object("SympoziumPolicy", "policy");
    policy["spec"] = json!({ "networkPolicy": {}, "approvalPolicy": {}, "toolGating": {} });
    assert_eq!(
        create(&namespace, &policy)?["spec"],
        json!({
            "networkPolicy": { "denyAll": true, "allowDNS": false, "allowEventBus": true },
            "approvalPolicy": {
                "requiredApprovals": 1, "expiresAfterSeconds": 600, "allowRunScope": false, "allowRunAuthor": true,
            },
            "toolGating": { "defaultAction": "allow" },
        })
    );
    let mut model = object("Model", "model");
    model["spec"] = json!({ "source": { "modelID": "example/m" } });
    assert_eq!(
        create(&namespace, &model)?["spec"],
        json!({
            "source": { "modelID": "example/m", "filename": "model.gguf" },
            "storage": { "size": "10Gi" },
            "inference": { "serverType": "llama-cpp", "contextSize": 4096 },
            "resources": { "gpu": 0, "memory": "16Gi", "cpu": "4" },
        })
    );
    Ok(())
}

#[test]
fn a_request_is_decided_once_and_through_its_status_only() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("approval", Security::Restricted)?;
    let path = root().join("crates/api/tests/fixtures/full/toolapproval.yaml");
    let mut request = read(&path)?;
    let decision = |what: &str| {
        json!({ "status": {
            "decision": what, "decidedBy": "alice", "decidedAt": "2026-11-16T00:01:00Z", "scope": "once",
        } })
    };
    // What the asking side writes about the decision is dropped.
    merge(&mut request, &decision("approved"));
    assert_eq!(create(&namespace, &request)?["status"], Value::Null);

    let kubectl = namespace.kubectl();
    let patch = |patch: &Value| {
        kubectl.attempt(&[
            "patch",
            "toolapproval/full",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch.to_string(),
        ])
    };
    let half = patch(&json!({ "status": { "decision": "approved" } }))?;
    assert!(half.stderr.contains("`decision`, `decidedBy` and `decidedAt` go together"));
    let denied = patch(&decision("denied"))?;
    assert!(denied.success, "{}", denied.stderr);
    let further = json!({ "status": { "scope": "run" } });
    for change in [decision("approved"), json!({ "status": null }), further] {
        let again = patch(&change)?;
        let status = &kubectl.json(&["get", "toolapproval/full"])?["status"];
        assert_eq!(status["decision"], "denied", "{change} was taken: {}", again.stdout);
        assert!(again.stderr.contains("a decision is final"), "{change}: {}", again.stderr);
    }
    Ok(())
}

#[test]
fn a_run_does_not_take_back_what_its_status_said() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("status", Security::Restricted)?;
    let mut run = object("AgentRun", "run");
    run["spec"] = json!({ "agentRef": "a", "task": "t" });
    create(&namespace, &run)?;
    let patch = |status: &Value| {
        let patch = json!({ "status": status }).to_string();
        let arguments = ["patch", "agentrun/run", "--subresource=status", "--type=merge", "-p"];
        namespace.kubectl().attempt(&[&arguments[..], &[&patch]].concat())
    };
    let digest = format!("sha256:{}", "0".repeat(64));
    let said = json!({ "planDigest": digest, "podUID": "p", "phase": "Failed" });
    let taken = patch(&said)?;
    assert!(taken.success, "{}", taken.stderr);
    for (change, message) in [
        (json!({ "planDigest": null }), "a run is planned once"),
        (json!({ "podUID": "q" }), "a run has one pod"),
        (json!({ "phase": "Running" }), "a run that is over stays over"),
        (Value::Null, "a run is planned once"),
    ] {
        let refused = patch(&change)?;
        assert!(refused.stderr.contains(message), "{change}: {}{}", refused.stdout, refused.stderr);
    }
    let stored = namespace.kubectl().json(&["get", "agentrun/run"])?;
    assert_eq!(stored["status"], said);
    Ok(())
}

#[test]
fn kubectl_explains_and_lists_them() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("shown", Security::Restricted)?;
    for path in files("crates/api/tests/fixtures/full", ".yaml")? {
        create(&namespace, &read(&path)?)?;
    }
    let kubectl = namespace.kubectl();
    // The API server publishes what it knows of a kind a while after it serves it.
    let explain = |path: &str| {
        eventually(&format!("{path} to be explained"), PATIENCE, || kubectl.run(&["explain", path]).map(Some))
    };
    let explained = explain("skillpack.spec.sidecar.executor")?;
    assert!(explained.contains("ENUM:") && explained.contains("injected"), "{explained}");
    let explained = explain("sinst.spec")?;
    assert!(explained.contains("Chat connections."), "{explained}");

    let listed = kubectl.run(&["get", "sympozium"])?;
    let heads: Vec<Vec<&str>> = listed
        .lines()
        .filter(|line| line.starts_with("NAME "))
        .map(|line| line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect())
        .collect();
    let expected: [&[&str]; 8] = [
        &["NAME", "AGENT", "PHASE", "POD", "AGE"],
        &["NAME", "PHASE", "ACTIVE AGENTS", "TOTAL RUNS", "AGE"],
        &["NAME", "SERVER", "PHASE", "ENDPOINT", "GPU", "AGE"],
        &["NAME", "RUN", "KIND", "SEGMENT", "AGE"],
        &["NAME", "SKILLS", "CONFIGMAP", "CATEGORY", "MATURITY", "AGE"],
        &["NAME", "BOUND", "TOOLS", "SANDBOX", "AGE"],
        &["NAME", "AGENT", "SCHEDULE", "TYPE", "PHASE", "LAST RUN", "AGE"],
        &["NAME", "RUN", "TOOL", "PACK", "DECISION", "BY", "EXPIRES", "AGE"],
    ];
    assert_eq!(heads, expected, "{listed}");
    let row = listed.lines().find(|line| line.starts_with("skillpack"));
    assert!(row.is_some_and(|row| row.contains("sre") && row.contains("alpha")), "{listed}");

    for short in ["sag", "sinst", "srun", "spack", "spol", "ssched", "smodel", "sta", "srec"] {
        kubectl.run(&["get", short])?;
    }
    Ok(())
}

#[test]
fn runs_and_schedules_are_listed_with_their_agent_by_either_name() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("listed", Security::Restricted)?;
    for (name, field) in [("old", "instanceRef"), ("new", "agentRef")] {
        let mut run = object("AgentRun", name);
        run["spec"] = json!({ field: "dora", "task": "Look" });
        create(&namespace, &run)?;
        let mut schedule = object("SympoziumSchedule", name);
        schedule["spec"] = json!({ field: "dora", "schedule": "0 0 1 1 *", "task": "Look" });
        create(&namespace, &schedule)?;
    }
    for kind in ["agentruns", "sympoziumschedules"] {
        let listed = namespace.kubectl().run(&["get", kind, "--no-headers"])?;
        let agents: Vec<Option<&str>> = listed.lines().map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(agents, [Some("dora"); 2], "{listed}");
    }
    Ok(())
}

/// A cluster that has our kinds and no program that acts on them. `None` and a recorded skip when there can be none.
pub fn with_kinds() -> Result<Option<&'static Cluster>> {
    Cluster::with_kinds("kinds")
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn files(directory: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root().join(directory))? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(ending) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

fn object(kind: &str, name: &str) -> Value {
    json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": kind, "metadata": { "name": name } })
}

/// As `kubectl` names an object.
fn reference(object: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
    format!("{}/{}", word(&object["kind"]), word(&object["metadata"]["name"]))
}

/// Creates it; unknown fields are an error.
fn create(namespace: &Namespace, object: &Value) -> Result<Value> {
    let arguments = ["create", "--validate=strict", "-o", "json", "-f", "-"];
    let printed = namespace.kubectl().feed(&arguments, object)?;
    ensure!(printed.success, "{}: {}", object["metadata"]["name"], printed.stderr);
    serde_json::from_str(&printed.stdout).context("reading the created object")
}

/// Whether our types read what the API server gives.
fn readable(object: &Value) -> Result<()> {
    fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Result<()> {
        serde_json::from_value::<T>(object.clone()).map(drop).with_context(|| format!("the type cannot read {object}"))
    }
    match object["kind"].as_str() {
        Some("Agent") => read::<sympozium_api::Agent>(object),
        Some("SympoziumInstance") => read::<sympozium_api::SympoziumInstance>(object),
        Some("AgentRun") => read::<sympozium_api::AgentRun>(object),
        Some("SkillPack") => read::<sympozium_api::SkillPack>(object),
        Some("SympoziumPolicy") => read::<sympozium_api::SympoziumPolicy>(object),
        Some("SympoziumSchedule") => read::<sympozium_api::SympoziumSchedule>(object),
        Some("Model") => read::<sympozium_api::Model>(object),
        Some("ToolApproval") => read::<sympozium_api::ToolApproval>(object),
        Some("RunRecord") => read::<sympozium_api::RunRecord>(object),
        other => anyhow::bail!("no kind of ours: {other:?}"),
    }
}
