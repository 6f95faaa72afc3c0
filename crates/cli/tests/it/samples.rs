//! The admission of the shipped packs, policies and samples: admitted, or denied by these rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;
use sympozium_testkit::static_build::workspace_root;

use crate::packs::objects;
use crate::{format_output, sympozium, sympozium_reading};

/// Every kind has a sample.
const KINDS: [&str; 9] = [
    "Agent",
    "AgentRun",
    "Model",
    "RunRecord",
    "SkillPack",
    "SympoziumInstance",
    "SympoziumPolicy",
    "SympoziumSchedule",
    "ToolApproval",
];

const FLOOR: &str = "config/policies/floor.yaml";

/// Samples with unused fields, and the fields that `validate` warns about.
const UNUSED: [(&str, &[&str]); 2] = [
    ("config/samples/model.yaml", &["spec.source", "spec.inference.contextSize", "spec.resources"]),
    ("config/samples/sympoziumschedule.yaml", &["spec"]),
];

fn path(relative: &str) -> String {
    workspace_root().join(relative).to_str().unwrap().to_owned()
}

fn text(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap()
}

/// The files of a directory.
fn files(directory: &str) -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(path(directory))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .map(|name| format!("{directory}/{name}"))
        .collect();
    files.sort();
    files
}

/// The rules of the findings, as `severity: rule`, without those about Secrets and other objects of a cluster.
fn reported_rules(answer: &Value) -> BTreeSet<String> {
    let findings = answer["findings"].as_array().unwrap().iter();
    findings
        .filter(|it| it["rule"] != "missing-reference")
        .map(|it| format!("{}: {}", it["severity"].as_str().unwrap(), it["rule"].as_str().unwrap()))
        .collect()
}

/// The findings about a text, with the shipped floor or another.
fn judge(text: &str, floor: &str) -> BTreeSet<String> {
    let floor = path(floor);
    let output = sympozium_reading(&["validate", "-o", "json", "--floor", &floor, "-"], text.as_bytes());
    reported_rules(&serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", format_output(&output))))
}

fn set(rules: &[&str]) -> BTreeSet<String> {
    rules.iter().map(|it| (*it).to_owned()).collect()
}

#[test]
fn every_file_is_admitted_with_these_warnings() {
    let mut seen = BTreeMap::new();
    for directory in ["config/skillpacks", "config/policies", "config/samples"] {
        for file in files(directory) {
            let (named, floor) = (path(&file), path(FLOOR));
            let mut arguments = vec!["validate", "-o", "json", &named];
            if file != FLOOR {
                arguments.extend(["--floor", &floor]);
            }
            let output = sympozium(&arguments);
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(answer["errors"], 0, "{}", format_output(&output));
            assert_eq!(answer["denials"], 0, "{}", format_output(&output));
            assert_eq!(output.status.code(), Some(0));
            seen.insert(file, reported_rules(&answer));
        }
    }
    assert!(seen.len() >= 29, "{}", seen.len());
    seen.retain(|_, rules| !rules.is_empty());
    let unused = UNUSED.map(|(file, _)| (file.to_owned(), set(&["warning: field-unused"])));
    assert_eq!(seen, BTreeMap::from(unused));
}

/// With all referenced objects there is no error with `--strict`, and no warning except those about unused fields.
#[test]
fn samples_are_valid_with_strict_and_their_secrets() {
    let secrets: String = ["anthropic-key", "github-token", "openai-key"]
        .iter()
        .flat_map(|name| ["default", "shop"].map(|namespace| (name, namespace)))
        .map(|(name, namespace)| {
            format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\n")
        })
        .collect();
    let mut arguments = vec!["validate".to_owned(), "--strict".to_owned(), "-".to_owned()];
    arguments.extend(files("config/samples").iter().map(|it| path(it)));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = sympozium_reading(&arguments, secrets.as_bytes());
    let text = format_output(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let problems = |line: &&str| !line.is_empty() && !line.starts_with("  hint: ");
    let found: Vec<&str> = crate::stdout(&output).lines().filter(problems).collect();
    let unused: Vec<(String, &str)> =
        UNUSED.iter().flat_map(|(file, fields)| fields.iter().map(|field| (path(file), *field))).collect();
    assert_eq!(found.len(), unused.len(), "{text}");
    for (line, (file, field)) in found.iter().zip(unused) {
        let is_expected =
            line.starts_with(&format!("{file}:")) && line.contains(&format!(" warning[field-unused]: {field}: "));
        assert!(is_expected, "{line}");
    }
    assert!(text.contains("----- stderr -----\nok: "), "{text}");
    assert!(!text.contains("not decided"), "{text}");
}

#[test]
fn every_kind_has_a_sample_in_a_file_of_its_name() {
    for kind in KINDS {
        let name = format!("{}.yaml", kind.to_lowercase());
        let found = objects("config/samples", kind);
        assert!(found.iter().any(|(file, _)| *file == name), "{kind}");
    }
}

fn agent(namespace: &str, pack: &str, policy: Option<&str>) -> String {
    let policy = policy.map_or(String::new(), |it| format!("  policyRef: {it}\n"));
    format!(
        "---\napiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {{name: a, namespace: {namespace}}}\nspec:\n{policy}  skills: [{{skillPackRef: {pack}}}]\n  agents: {{default: {{model: gpt-4o}}}}\n"
    )
}

/// A run in the sandbox that some policies require.
fn run(namespace: &str, sandbox: &str) -> String {
    format!(
        "---\napiVersion: sympozium.ai/v1alpha1\nkind: AgentRun\nmetadata: {{name: r, namespace: {namespace}}}\nspec:\n  agentRef: a\n  task: hello\n  toolPolicy: {{deny: [fetch_url]}}\n  {sandbox}: {{enabled: true}}\n"
    )
}

const PACKS: [&str; 7] =
    ["code-review", "incident-response", "k8s-ops", "k8s-ops-admin", "llmfit", "sre-observability", "web-endpoint"];

/// The denials of a run with one built-in pack, by namespace and policy.
#[test]
fn built_in_packs_are_admitted_by_every_policy_but_for_the_admin_pack() {
    for pack in PACKS {
        for policy in [None, Some("default"), Some("permissive"), Some("restrictive"), Some("hardened")] {
            for namespace in ["default", "team"] {
                let sandbox = match policy {
                    Some("hardened") => "agentSandbox",
                    _ => "sandbox",
                };
                let manifests = agent(namespace, pack, policy) + &run(namespace, sandbox);
                let mut denied = judge(&manifests, FLOOR);
                denied.retain(|it| !it.starts_with("warning: "));
                let expected = match (pack, namespace) {
                    ("k8s-ops-admin", _) => set(&["denied: rbac-escalation"]),
                    ("k8s-ops" | "llmfit", "team") => set(&["denied: cluster-rbac-consent"]),
                    _ => BTreeSet::new(),
                };
                assert_eq!(denied, expected, "{pack} {policy:?} {namespace}");
            }
        }
    }
}

#[test]
fn the_admin_pack_needs_policy_and_floor() {
    let sample = text("config/samples/workload-admin.yaml");
    assert_eq!(judge(&sample, FLOOR), BTreeSet::new());

    // The exceptions in the header of the pack are those of the sample and the floor.
    let pack = text("config/skillpacks/k8s-ops-admin.yaml");
    let exceptions: Vec<&str> = pack
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(str::trim)
        .filter(|line| line.starts_with("- {apiGroups: "))
        .collect();
    assert_eq!(exceptions.len(), 3);
    let floor = text(FLOOR);
    for exception in &exceptions {
        for (file, text) in [("the sample", &sample), ("the floor", &floor)] {
            assert!(text.contains(exception), "{exception} is not in {file}");
        }
    }

    // The run is denied if one of them is missing from the policy or the floor.
    let directory = tempfile::tempdir().unwrap();
    let lesser_floor = directory.path().join("floor.yaml");
    for exception in exceptions {
        let lesser = sample.replacen(exception, "", 1);
        assert_eq!(judge(&lesser, FLOOR), set(&["denied: rbac-escalation"]));
        fs::write(&lesser_floor, floor.replacen(exception, "", 1)).unwrap();
        assert_eq!(judge(&sample, lesser_floor.to_str().unwrap()), set(&["denied: rbac-escalation"]));
    }
}

/// No policy allows what the floor denies.
#[test]
fn secrets_are_denied_by_the_shipped_floor() {
    let rule = "{apiGroups: [''], resources: [secrets], verbs: [get]}";
    let manifests = format!(
        "---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {{name: p}}\nspec:\n  skills: [{{name: s, content: c}}]\n  sidecar:\n    image: example.com/i:1\n    rbac: [{rule}]\n---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {{name: open}}\nspec:\n  networkPolicy: {{denyAll: true}}\n  rbacPolicy: {{exceptions: [{rule}]}}\n{}",
        agent("default", "p", Some("open"))
    );
    assert_eq!(judge(&manifests, FLOOR), set(&["denied: rbac-author", "denied: rbac-escalation"]));
}

/// The header of the pack explains how to add Prometheus; this test does it.
#[test]
fn the_observability_pack_can_be_customized() {
    let pack = text("config/skillpacks/sre-observability.yaml");
    let mut own = String::new();
    for line in pack.lines().filter(|it| !it.contains("sympozium.ai/builtin") && !it.starts_with('#')) {
        let mut line = line.to_owned();
        for before in ["name: ", "target: ", "/skills/"] {
            line = line.replace(&format!("{before}sre-observability"), &format!("{before}my-observability"));
        }
        own.push_str(&line);
        own.push('\n');
        if line == "  sidecar:" {
            own.push_str("    egress:\n      - {host: prometheus-operated.monitoring.svc, port: 9090}\n      - {host: loki-gateway.monitoring.svc, port: 80}\n");
        }
    }
    assert!(own.contains("/skill-sre-observability:0.1.0\n"));
    assert_eq!(own.matches("sre-observability").count(), 1);
    let policy = |egress: &str| {
        format!(
            "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {{name: p}}\nspec:\n  networkPolicy:\n    denyAll: true\n    allowedEgress: [{egress}]\n"
        )
    };
    let agent = agent("default", "my-observability", Some("p")).replace(
        "{skillPackRef: my-observability}",
        "{skillPackRef: my-observability, params: {prometheus_url: 'http://prometheus-operated.monitoring.svc:9090', loki_url: 'http://loki-gateway.monitoring.svc:80'}}",
    );
    let listed =
        "{host: prometheus-operated.monitoring.svc, port: 9090}, {host: loki-gateway.monitoring.svc, port: 80}";
    let manifests = format!("{own}{}{agent}", policy(listed));
    assert_eq!(judge(&manifests, FLOOR), BTreeSet::new());
    let manifests = format!("{own}{}{agent}", policy(""));
    assert_eq!(judge(&manifests, FLOOR), set(&["denied: egress-not-allowed"]));
}
