//! `sympozium render`: the Kubernetes objects of a run.

use serde_json::Value;

use crate::{format_output, stderr, stdout, sympozium};

const UID: &str = "3f2c1a90-77f4-4c62-9f0e-0123456789ab";

fn rendered(arguments: &[&str]) -> Vec<Value> {
    let output = sympozium(&[&["render", "-o", "json", "--uid", UID], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", format_output(&output));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&list["apiVersion"], &list["kind"]), (&"v1".into(), &"List".into()));
    list["items"].as_array().unwrap().clone()
}

#[test]
fn objects_are_printed_in_the_order_of_creation() {
    let objects = rendered(&["../explain/tickets.yaml"]);
    let names: Vec<String> = objects
        .iter()
        .map(|it| {
            let name = it["metadata"]["name"].as_str().unwrap();
            format!("{} {name}", it["kind"].as_str().unwrap())
        })
        .collect();
    insta::assert_snapshot!("render-names", names.join("\n"));
    let yaml = sympozium(&["render", "--uid", UID, "../explain/tickets.yaml"]);
    assert!(stdout(&yaml).starts_with("---\n"));
    let read: Vec<Value> = serde_saphyr::from_multiple(stdout(&yaml)).unwrap();
    assert_eq!(read, objects);
}

#[test]
fn placeholders_are_reported() {
    let output = sympozium(&["render", "../explain/two-runs.yaml", "--run", "one"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(stderr(&output), @r"
    note: names and owner references have a placeholder UID; set the UID of the run in the cluster with --uid
    note: `hostUsers` is omitted, because it depends on the nodes of the cluster; set it with --host-users
    ");
    let output = sympozium(&["render", "../explain/two-runs.yaml", "--run", "one", "--uid", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("invalid UID"), "{}", stderr(&output));
}

#[test]
fn the_settings_of_the_cluster_are_used() {
    let file = "../explain/ops.yaml";
    let pod = |objects: &[Value]| {
        let job = objects.iter().find(|it| it["kind"] == "Job").unwrap();
        job["spec"]["template"]["spec"].clone()
    };
    assert_eq!(pod(&rendered(&[file]))["hostUsers"], Value::Null);
    assert_eq!(pod(&rendered(&[file, "--host-users", "never"]))["hostUsers"], false);
    assert_eq!(pod(&rendered(&[file, "--host-users", "always"]))["hostUsers"], true);
    let objects = rendered(&[
        file,
        "--gateway",
        "10.1.2.3:9443",
        "--api-server",
        "10.0.0.1:443",
        "--api-server",
        "[fd00::1]:6443",
    ]);
    let policy = objects.iter().find(|it| it["kind"] == "NetworkPolicy").unwrap();
    let egress = policy["spec"]["egress"].to_string();
    for word in ["10.1.2.3/32", "9443", "10.0.0.1/32", "fd00::1/128", "6443"] {
        assert!(egress.contains(word), "{word}: {egress}");
    }
}

/// The gateway, which runs must reach, and the canary, which they must not reach, have different ports.
#[test]
fn the_canary_has_its_own_port() {
    let file = "../explain/ops.yaml";
    let check = |arguments: &[&str]| {
        let objects = rendered(&[&[file], arguments].concat());
        let job = objects.iter().find(|it| it["kind"] == "Job").unwrap();
        let first = &job["spec"]["template"]["spec"]["initContainers"][0];
        let policy = objects.iter().find(|it| it["kind"] == "NetworkPolicy").unwrap();
        (first.to_string(), policy["spec"]["egress"].to_string())
    };
    let (first, egress) = check(&["--gateway", "10.1.2.3:8444"]);
    assert!(first.contains("8445"), "{first}");
    assert!(egress.contains("8444") && !egress.contains("8445"), "{egress}");
    let (first, egress) = check(&["--gateway", "10.1.2.3:8444", "--canary", "9999"]);
    assert!(first.contains("9999"), "{first}");
    assert!(!egress.contains("9999"), "{egress}");
    for arguments in [&["--gateway", "10.1.2.3:8444", "--canary", "8444"][..], &["--gateway", "10.1.2.3:65535"]] {
        let output = sympozium(&[&["render", file], arguments].concat());
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
        assert!(stderr(&output).contains("hint: choose another port with --canary PORT"));
    }
}

#[test]
fn objects_of_two_runs_have_different_names() {
    let two = "../explain/two-runs.yaml";
    let output = sympozium(&["render", two, "--uid", UID]);
    insta::assert_snapshot!(format_output(&output), @r"
    exit code: 1
    ----- stdout -----
    ----- stderr -----
    error: --uid applies to one run, but the files have 2
    hint: select one run with --run NAME, and set its UID with --uid
    ");
    let text = std::fs::read_to_string(crate::fixtures().join(two)).unwrap();
    let alike = text
        .replace("name: one", "name: nightly-report-of-monday")
        .replace("generateName: two-", "name: nightly-report-of-tuesday");
    let output = crate::sympozium_reading(&["render", "-"], alike.as_bytes());
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    let words = "have no UID, and their objects would have the same names\nhint: select one run with --run NAME";
    assert!(stderr(&output).contains(words), "{}", format_output(&output));
    let arguments = ["render", "-", "--run", "nightly-report-of-monday", "--uid", UID];
    let output = crate::sympozium_reading(&arguments, alike.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", format_output(&output));
}

/// Scripts are printed without loss, and without characters that a terminal would act on.
#[test]
fn texts_read_back_the_same_from_yaml() {
    let directory = tempfile::tempdir().unwrap();
    let skill = directory.path().join("calm");
    std::fs::create_dir_all(skill.join("scripts")).unwrap();
    let text = "---\nname: calm\ndescription: Keep calm.\n---\nBreathe.\tIn \u{202e}and out.\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();
    let script = "#!/bin/sh\nif true; then\n\techo 'a: b' \nfi\n---\r\n";
    std::fs::write(skill.join("scripts/go.sh"), script).unwrap();
    let two = std::fs::read_to_string(crate::fixtures().join("../explain/two-runs.yaml")).unwrap();
    let agent = two.replace("policyRef: default\n", "policyRef: default\n  skills: [{skillPackRef: calm}]\n");
    std::fs::write(directory.path().join("agent.yaml"), agent).unwrap();
    let path = directory.path().to_str().unwrap();
    let skill = skill.to_str().unwrap();
    for arguments in [&["render", path, "--run", "one"][..], &["explain", path], &["skill", "import", skill]] {
        let with = |format: &'static str| sympozium(&[arguments, &["-o", format]].concat());
        let (yaml, json) = (with("yaml"), with("json"));
        assert_eq!(yaml.status.code(), Some(0), "{}", format_output(&yaml));
        let raw: Vec<char> =
            stdout(&yaml).chars().filter(|it| (it.is_control() && *it != '\n') || *it == '\u{202e}').collect();
        assert!(raw.is_empty(), "{raw:?} {arguments:?}");
        let mut read: Vec<Value> = serde_saphyr::from_multiple(stdout(&yaml)).unwrap();
        let json: Value = serde_json::from_slice(&json.stdout).unwrap();
        let expected = match json["kind"] == "List" {
            true => json["items"].as_array().unwrap().clone(),
            false => vec![json],
        };
        assert_eq!(read.len(), expected.len());
        for (read, expected) in read.drain(..).zip(expected) {
            assert_eq!(read, expected, "{arguments:?}");
        }
    }
}

#[test]
fn denied_runs_and_missing_objects_are_not_rendered() {
    let output = sympozium(&["render", "denied.yaml"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(3), ""));
    assert!(stderr(&output).contains(" denied["));
    let output = sympozium(&["render", "../explain/missing.yaml", "--run", "lost"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
}

/// The ServiceAccounts of explain are those that render creates.
#[test]
fn explain_and_render_name_the_same_accounts_and_rules() {
    for name in ["ops", "tickets", "node"] {
        let file = format!("../explain/{name}.yaml");
        let nil = "00000000-0000-0000-0000-000000000000";
        let output = sympozium(&["render", "-o", "json", "--uid", nil, &file]);
        let objects: Value = serde_json::from_slice(&output.stdout).unwrap();
        let objects = objects["items"].as_array().unwrap();
        let output = sympozium(&["explain", "-o", "json", &file]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let identities = answer["runs"][0]["kubernetes"].as_array().unwrap();
        assert!(!identities.is_empty());
        for identity in identities {
            let account = &identity["serviceAccount"];
            let named = |kind: &str| {
                let mut found = objects.iter().filter(|it| it["kind"] == kind);
                found.find(|it| it["metadata"]["name"] == *account).cloned()
            };
            assert!(named("ServiceAccount").is_some(), "{account}");
            for (scope, role) in [("namespace", "Role"), ("cluster", "ClusterRole")] {
                let grants = identity["grants"].as_array().unwrap().iter();
                let rules: Vec<&Value> = grants.filter(|it| it["scope"] == scope).map(|it| &it["rule"]).collect();
                let role = named(role);
                let of_role = role.map(|it| it["rules"].as_array().unwrap().clone());
                let of_role = of_role.unwrap_or_default();
                assert_eq!(rules, of_role.iter().collect::<Vec<_>>(), "{account} {scope}");
            }
        }
    }
}
