//! Origins of policies and packs: an object of a file does not replace a shipped one, and every run records the origins of
//! its own.

use std::fs;

use serde_json::{Value, json};

use super::{Home, PACK, Scenario, call, for_each_user, pack};

/// A policy without questions.
fn open(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"toolGating": {"defaultAction": "allow"}},
    })
}

/// A pack, a model that calls a command of it, and a policy: no agent, and no run.
fn stranger(home: &Home, policy: &Value) -> String {
    let script = json!({"turns": [call(PACK, "echo it was run"), {"say": "Done.", "then": "end"}]});
    let objects = [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": {"script.yaml": script.to_string()}}),
        json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "SkillPack", "metadata": {"name": PACK}, "spec": pack(&[])}),
        policy.clone(),
    ];
    let path = home.at("stranger.yaml");
    let documents = objects.map(|it| it.to_string());
    fs::write(&path, documents.join("\n---\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The result of the command, and the run's record.
fn run(home: &Home, file: &str, more: &[&str]) -> (String, Value, String) {
    let mut arguments = vec!["run", file, "--skill", PACK, "--model", "scripted/script"];
    arguments.extend(["--approve", "none", "--task", "Do it."]);
    arguments.extend(more);
    let output = home.sympozium(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let newest = home.runs();
    let uid = newest.first().unwrap_or_else(|| panic!("{said}"))["uid"].clone();
    let directory = home.at("state/runs").join(uid.as_str().unwrap());
    let record = fs::read(directory.join("run.json")).unwrap();
    let transcript = fs::read_to_string(directory.join("transcript.jsonl")).unwrap_or_default();
    let results = transcript.lines().filter(|it| it.contains("\"result\""));
    let removed = home.sympozium(&["rm", uid.as_str().unwrap()]).output();
    assert!(removed.unwrap().status.success());
    (results.collect(), serde_json::from_slice(&record).unwrap(), said)
}

#[test]
fn a_policy_file_does_not_replace_a_shipped_policy() {
    for_each_user(|home| {
        for namespace in ["default", "sympozium-system"] {
            let file = stranger(home, &open("default", namespace));
            for more in [&[][..], &["--policy", "default"]] {
                let (results, record, said) = run(home, &file, more);
                assert!(!results.contains("it was run"), "{results}\n{said}");
                assert!(said.contains("  policy: default (shipped), floor (shipped)"), "{said}");
                assert!(said.contains("among the files does not count"), "{said}");
                assert_eq!(record["origins"][0]["from"], json!({"is": "shipped"}));
            }
            // The policy can be selected by its file.
            let policy = home.at("policy.yaml");
            fs::write(&policy, open("default", namespace).to_string()).unwrap();
            let policy = policy.to_str().unwrap();
            let (results, record, said) = run(home, &file, &["--policy", policy]);
            assert!(results.contains("it was run"), "{results}\n{said}");
            let policies = format!("  policy: default (from {policy}), floor (shipped)");
            assert!(said.contains(&policies), "{said}");
            let from = json!({"is": "file", "path": policy});
            assert_eq!(record["origins"][0]["from"], from);
        }
    });
}

#[test]
fn a_run_prints_and_records_origins() {
    for_each_user(|home| {
        let mut scenario = Scenario::commands(&[], &["echo hello"]);
        scenario.others.push(open("policy", "default"));
        let run = home.run(&scenario);
        run.assert_succeeded();
        let file = home.at("attack.yaml");
        let file = file.to_str().unwrap();
        let from = json!({"is": "file", "path": file});
        let expected = json!([
            {"kind": "SympoziumPolicy", "name": "policy", "from": from},
            {"kind": "SkillPack", "name": PACK, "from": from},
            {"kind": "SympoziumPolicy", "name": "floor", "from": {"is": "shipped"}},
        ]);
        assert_eq!(run.record()["origins"], expected);
        let policies = format!("policy (from {file}), floor (shipped)");
        let said = String::from_utf8_lossy(&run.output.stderr).into_owned();
        assert!(said.contains(&format!("  policy: {policies}\n")), "{said}");
        let skills = format!("  skills: {PACK} (from {file})\n");
        assert!(said.contains(&skills), "{said}");
        let uid = run.record()["uid"].as_str().unwrap().to_owned();
        let shown = home.sympozium(&["show", &uid]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains(&policies), "{shown}");
    });
}
