//! `sympozium render`: the objects of a run, as a cluster takes them.

use serde_json::Value;

use crate::{shown, stderr, stdout, sympozium};

const UID: &str = "3f2c1a90-77f4-4c62-9f0e-0123456789ab";

fn rendered(arguments: &[&str]) -> Vec<Value> {
    let output = sympozium(&[&["render", "-o", "json", "--uid", UID], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&list["apiVersion"], &list["kind"]),
        (&"v1".into(), &"List".into())
    );
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
fn without_a_uid_and_a_cluster_it_says_what_is_not_known() {
    let output = sympozium(&["render", "../explain/two-runs.yaml", "--run", "one"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(stderr(&output), @r"
    note: names and owners are those of a run without a UID; --uid takes the one that the cluster gave it
    note: `hostUsers` is left out, because only the cluster knows whether its nodes have user namespaces; --host-users sets it
    ");
    let output = sympozium(&[
        "render",
        "../explain/two-runs.yaml",
        "--run",
        "one",
        "--uid",
        "x",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("it is not a UID"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_cluster_around_a_run_can_be_named() {
    let file = "../explain/ops.yaml";
    let pod = |objects: &[Value]| {
        let job = objects.iter().find(|it| it["kind"] == "Job").unwrap();
        job["spec"]["template"]["spec"].clone()
    };
    assert_eq!(pod(&rendered(&[file]))["hostUsers"], Value::Null);
    assert_eq!(
        pod(&rendered(&[file, "--host-users", "never"]))["hostUsers"],
        false
    );
    assert_eq!(
        pod(&rendered(&[file, "--host-users", "always"]))["hostUsers"],
        true
    );
    let objects = rendered(&[
        file,
        "--gateway",
        "10.1.2.3:9443",
        "--api-server",
        "10.0.0.1:443",
        "--api-server",
        "[fd00::1]:6443",
    ]);
    let policy = objects
        .iter()
        .find(|it| it["kind"] == "NetworkPolicy")
        .unwrap();
    let egress = policy["spec"]["egress"].to_string();
    for word in ["10.1.2.3/32", "9443", "10.0.0.1/32", "fd00::1/128", "6443"] {
        assert!(egress.contains(word), "{word}: {egress}");
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

/// What explain calls a ServiceAccount is what render creates.
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
                let rules: Vec<&Value> = grants
                    .filter(|it| it["scope"] == scope)
                    .map(|it| &it["rule"])
                    .collect();
                let role = named(role);
                let of_role = role.map(|it| it["rules"].as_array().unwrap().clone());
                let of_role = of_role.unwrap_or_default();
                assert_eq!(
                    rules,
                    of_role.iter().collect::<Vec<_>>(),
                    "{account} {scope}"
                );
            }
        }
    }
}
