//! `sympozium explain`: exit code and text for every kind of result.

use serde_json::Value;

use crate::{format_output, stderr, stdout, sympozium, sympozium_reading};

/// The maximum width of the text.
const WIDTH: usize = 80;

fn explained(arguments: &[&str]) -> Value {
    let output = sympozium(&[&["explain", "-o", "json"], arguments].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn explanations_of_runs() {
    for name in ["ops", "tickets", "node", "two-runs", "agent-only"] {
        let file = format!("../explain/{name}.yaml");
        let output = sympozium(&["explain", &file]);
        let text = format_output(&output);
        assert!(stdout(&output).lines().all(|it| it.chars().count() <= WIDTH), "{text}");
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn explanations_have_a_json_and_a_yaml_form() {
    let file = "../explain/tickets.yaml";
    let json = sympozium(&["explain", "-o", "json", file]);
    assert_eq!((json.status.code(), stderr(&json)), (Some(0), ""));
    insta::assert_snapshot!("tickets-json", stdout(&json));
    let yaml = sympozium(&["explain", "-o", "yaml", file]);
    assert_eq!((yaml.status.code(), stderr(&yaml)), (Some(0), ""));
    let read: Value = serde_saphyr::from_str(stdout(&yaml)).unwrap();
    assert_eq!(read, explained(&[file]));
    let start: String = stdout(&yaml).lines().take(12).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!("tickets-yaml-start", start);
}

/// The shipped floor lists another namespace, so the controller would deny what the pack and the hooks request.
#[test]
fn permissions_that_a_cluster_would_not_grant_are_not_explained() {
    let text = std::fs::read_to_string(crate::fixtures().join("../explain/tickets.yaml")).unwrap();
    let (without_floor, _) = text.split_once("---\n# Authors are not known").unwrap();
    let output = sympozium_reading(&["explain", "-o", "json", "-"], without_floor.as_bytes());
    assert_eq!(output.status.code(), Some(3), "{}", format_output(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["runs"], serde_json::json!([]));
    let reasons = answer["denied"][0]["reasons"].as_array().unwrap();
    let fields = reasons.iter().map(|it| (it["rule"].as_str().unwrap(), it["field"].as_str().unwrap()));
    let expected = [("rbac-author", "spec.sidecar.rbac[0]"), ("rbac-author", "spec.lifecycle.rbac[0]")];
    assert_eq!(fields.collect::<Vec<_>>(), expected);
}

#[test]
fn denied_runs_are_reported_like_by_validate() {
    let explain = sympozium(&["explain", "denied.yaml"]);
    assert_eq!((explain.status.code(), stdout(&explain)), (Some(3), ""));
    let validate = sympozium(&["validate", "denied.yaml"]);
    let denials = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|it| it.contains(" denied["));
        lines.map(str::to_owned).collect()
    };
    let told = denials(stderr(&explain));
    assert!(told.len() > 3, "{}", format_output(&explain));
    assert_eq!(told, denials(stdout(&validate)));

    let answer = explained(&["denied.yaml"]);
    assert_eq!(answer["runs"], serde_json::json!([]));
    let denied = answer["denied"].as_array().unwrap();
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0]["run"]["name"], "review");
    let mut rules: Vec<&str> =
        denied[0]["reasons"].as_array().unwrap().iter().map(|it| it["rule"].as_str().unwrap()).collect();
    rules.sort_unstable();
    let mut of_validate: Vec<&str> =
        told.iter().map(|it| it.split_once(" denied[").unwrap().1.split_once(']').unwrap().0).collect();
    of_validate.sort_unstable();
    assert_eq!(rules, of_validate);
}

#[test]
fn missing_objects_do_not_hide_other_runs() {
    let output = sympozium(&["explain", "../explain/missing.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!("missing-stderr", stderr(&output));
    assert!(stdout(&output).starts_with("The plainest run of Agent complete in namespace default\n"));
    let answer = explained(&["../explain/missing.yaml"]);
    assert_eq!(answer["runs"].as_array().unwrap().len(), 1);
    assert_eq!(answer["runs"][0]["assumed"], true);
    let undecided = answer["undecided"].as_array().unwrap();
    let undecided: Vec<&str> = undecided.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(undecided, ["lost", "forgetful"]);
}

/// A misspelt field may be a restriction: files with errors are not explained.
#[test]
fn files_with_errors_are_not_explained() {
    let output = sympozium(&["explain", "unknown-fields.yaml", "../explain/two-runs.yaml"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    let validate = sympozium(&["validate", "unknown-fields.yaml"]);
    let errors = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|it| it.contains(" error["));
        lines.map(str::to_owned).collect()
    };
    assert!(!errors(stderr(&output)).is_empty());
    assert_eq!(errors(stderr(&output)), errors(stdout(&validate)));
    assert_eq!(explained(&["unknown-fields.yaml", "../explain/two-runs.yaml"])["runs"], serde_json::json!([]));
}

#[test]
fn one_of_several_runs_can_be_selected() {
    let file = "../explain/two-runs.yaml";
    let names = |answer: &Value| -> Vec<String> {
        let runs = answer["runs"].as_array().unwrap().iter();
        runs.map(|it| it["run"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&explained(&[file])), ["one", "two-xxxxx"]);
    assert_eq!(names(&explained(&[file, "--run", "one"])), ["one"]);
    let output = sympozium(&["explain", file, "--run", "three"]);
    insta::assert_snapshot!(format_output(&output), @r"
    exit code: 1
    ----- stdout -----
    ----- stderr -----
    error: the files have no AgentRun `three`
    hint: name the files with the run and its agent; without --run, every run of the files is used
    ");
    // The denial of another run does not matter.
    let with_denied = format!(
        "{}---\napiVersion: sympozium.ai/v1alpha1\nkind: AgentRun\nmetadata: {{name: bad}}\nspec: {{agentRef: reviewer, task: x, timeout: 900h}}\n",
        std::fs::read_to_string(crate::fixtures().join(file)).unwrap()
    );
    let all = sympozium_reading(&["explain", "-"], with_denied.as_bytes());
    assert_eq!(all.status.code(), Some(3));
    assert!(stdout(&all).contains("Run default/one of Agent reviewer"));
    let one = sympozium_reading(&["explain", "-", "--run", "one"], with_denied.as_bytes());
    assert_eq!(one.status.code(), Some(0), "{}", format_output(&one));
}

#[test]
fn files_without_runs_and_agents_are_refused() {
    let output = sympozium(&["explain", "floor.yaml"]);
    insta::assert_snapshot!(format_output(&output), @r"
    exit code: 1
    ----- stdout -----
    ----- stderr -----
    error: the files have neither an AgentRun nor an Agent
    hint: name the files with the run and its agent; without --run, every run of the files is used
    ");
}

#[test]
fn the_floor_flag_is_enforced() {
    let directory = tempfile::tempdir().unwrap();
    let floor = directory.path().join("floor.yaml");
    let text = "apiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: floor, namespace: sympozium-system}\nspec:\n  networkPolicy: {denyAll: true}\n";
    std::fs::write(&floor, text).unwrap();
    let floor = floor.to_str().unwrap();
    let file = "../explain/two-runs.yaml";
    let public = |answer: &Value| answer["runs"][0]["network"]["parts"][1]["anyPublicHost"].clone();
    assert_eq!(public(&explained(&[file])), true);
    assert_eq!(public(&explained(&[file, "--floor", floor])), false);
}

/// No text of a manifest moves the cursor, hides text or adds a line; and every line fits the width.
#[test]
fn hostile_manifests_cannot_fake_the_output() {
    let text = std::fs::read_to_string(crate::fixtures().join("../explain/hostile.yaml")).unwrap();
    let long = |letter: &str| letter.repeat(253);
    let longest = text.replace("long-agent", &long("a")).replace("long-run", &long("b"));
    for text in [&text, &longest] {
        for arguments in [&["explain", "-"][..], &["explain", "-o", "json", "-"], &["explain", "-o", "yaml", "-"]] {
            let output = sympozium_reading(arguments, text.as_bytes());
            assert_eq!(output.status.code(), Some(0), "{}", format_output(&output));
            let printed = stdout(&output);
            let acts = |it: char| {
                (it.is_control() && it != '\n')
                    || matches!(it, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e0fff}')
            };
            let found: Vec<char> = printed.chars().filter(|it| acts(*it)).collect();
            assert_eq!(found, [] as [char; 0], "{arguments:?}");
        }
        let output = sympozium_reading(&["explain", "-"], text.as_bytes());
        let heads = stdout(&output).lines().filter(|it| it.starts_with("Run")).count();
        assert_eq!(heads, 1);
        let sections = stdout(&output).lines().filter(|it| *it == "SECRETS").count();
        assert_eq!(sections, 1);
    }
    let output = sympozium(&["explain", "../explain/hostile.yaml"]);
    insta::assert_snapshot!("hostile", format_output(&output));
}

#[test]
fn added_power_is_reported_with_an_exit_code() {
    let output = sympozium(&["explain", "--diff", "../explain/old", "../explain/new"]);
    assert_eq!(output.status.code(), Some(4));
    insta::assert_snapshot!("diff", format_output(&output));
    let json = sympozium(&["explain", "-o", "json", "--diff", "../explain/old", "../explain/new"]);
    assert_eq!(json.status.code(), Some(4));
    insta::assert_snapshot!("diff-json-help", {
        let answer: Value = serde_json::from_slice(&json.stdout).unwrap();
        let runs = answer["runs"].as_array().unwrap();
        let help = runs.iter().find(|it| it["run"]["name"] == "help").unwrap();
        serde_json::to_string_pretty(help).unwrap()
    });
}

#[test]
fn a_change_without_added_power_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let text = std::fs::read_to_string(crate::fixtures().join("../explain/two-runs.yaml")).unwrap();
    let old = write("old.yaml", &text);
    let same = sympozium(&["explain", "--diff", &old, &old]);
    assert_eq!(same.status.code(), Some(0), "{}", format_output(&same));
    assert_eq!(stdout(&same).matches("0 powers added or widened, 0 removed or narrowed, 0 other changes").count(), 2);

    let less = write("less.yaml", &text.replace("timeout: 5m", "timeout: 4m"));
    let narrowed = sympozium(&["explain", "--diff", &old, &less]);
    assert_eq!(narrowed.status.code(), Some(0), "{}", format_output(&narrowed));
    assert!(stdout(&narrowed).contains("~ seconds that the agent may work: was 300, now 240 (less)"));
    let widened = sympozium(&["explain", "--diff", &less, &old]);
    assert_eq!(widened.status.code(), Some(4));

    let denied = write("denied.yaml", &text.replace("timeout: 5m", "timeout: 900h"));
    let becomes_denied = sympozium(&["explain", "--diff", &old, &denied]);
    assert_eq!(becomes_denied.status.code(), Some(3));
    assert!(stdout(&becomes_denied).contains(": was admitted, is denied now\n"));
    assert!(stderr(&becomes_denied).contains(" denied[timeout-out-of-range]: "));
    let becomes_admitted = sympozium(&["explain", "--diff", &denied, &old]);
    assert_eq!(becomes_admitted.status.code(), Some(4));
    assert!(stdout(&becomes_admitted).contains(": was denied, is admitted now\n"));
}

/// Runs with generated names are distinguished by their order.
#[test]
fn runs_with_generated_names_are_all_compared() {
    let text = std::fs::read_to_string(crate::fixtures().join("../explain/two-runs.yaml")).unwrap();
    let text = text.replace("name: one}", "generateName: two-}");
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("a.yaml"), directory.path().join("b.yaml"));
    std::fs::write(&old, &text).unwrap();
    let more = text.replace("task: Say one.", "task: Say one., timeout: 50m");
    assert_ne!(more, text);
    std::fs::write(&new, more).unwrap();
    let output = sympozium(&["explain", "--diff", old.to_str().unwrap(), new.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", format_output(&output));
    assert_eq!(stdout(&output).matches("(admitted)").count(), 2);
}

#[test]
fn a_run_may_be_on_one_side_only() {
    let compared = |old: &str, new: &str| {
        let output = sympozium(&["explain", "--diff", old, new, "--run", "one"]);
        let first = stdout(&output).lines().next().unwrap_or_default().to_owned();
        (output.status.code(), first)
    };
    let (with, without) = ("../explain/two-runs.yaml", "../explain/ops.yaml");
    assert_eq!(compared(without, with), (Some(4), "AgentRun default/one: was absent, is admitted now".to_owned()));
    assert_eq!(compared(with, without), (Some(0), "AgentRun default/one: was admitted, is absent now".to_owned()));
    assert_eq!(compared(without, without), (Some(1), String::new()));
    assert_eq!(compared("no-such-file.yaml", with).0, Some(1));
}

#[test]
fn a_directory_with_a_skill_counts_as_its_pack() {
    let directory = tempfile::tempdir().unwrap();
    let skill = directory.path().join("calm");
    std::fs::create_dir(&skill).unwrap();
    let text = "---\nname: calm\ndescription: Keep calm.\n---\nBreathe.\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();
    let two = std::fs::read_to_string(crate::fixtures().join("../explain/two-runs.yaml")).unwrap();
    let agent = two.replace("policyRef: default\n", "policyRef: default\n  skills: [{skillPackRef: calm}]\n");
    std::fs::write(directory.path().join("agent.yaml"), agent).unwrap();
    let answer = explained(&[directory.path().to_str().unwrap()]);
    let skill = &answer["runs"][0]["skills"][0];
    assert_eq!((&skill["pack"], &skill["description"]), (&"calm".into(), &"Keep calm.".into()));
}

#[test]
fn a_comparison_requires_two_paths() {
    let output = sympozium(&["explain", "--diff", "../explain/old"]);
    insta::assert_snapshot!(format_output(&output), @r"
    exit code: 2
    ----- stdout -----
    ----- stderr -----
    error: --diff compares two paths, and 1 were named
    hint: put what belongs together into one directory: sympozium explain --diff OLD NEW
    ");
}

/// A change of `tickets.yaml`, and the line about it.
const CHANGES: [(&str, &str, &str); 2] = [
    ("properties: {line: {type: string}}", "properties: {line: {}}", "    ~ tickets: arguments of close_ticket: was"),
    (
        "exec: [sh, -c]",
        "exec: [bash, -c]",
        "    ~ tickets: program of close_ticket: was [\"sh\",\"-c\"], now [\"bash\",\"-c\"]\n      (more)",
    ),
];

/// A less strict schema and another program count as more power.
#[test]
fn differences_outside_of_tables_are_compared() {
    let text = std::fs::read_to_string(crate::fixtures().join("../explain/tickets.yaml")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let old = write("old.yaml", &text);
    for (from, to, line) in CHANGES {
        let changed = text.replacen(from, to, 1);
        assert_ne!(text, changed, "{from}");
        let new = write("new.yaml", &changed);
        let output = sympozium(&["explain", "--diff", &old, &new]);
        assert_eq!(output.status.code(), Some(4), "{}", format_output(&output));
        assert!(stdout(&output).contains(line), "{}", format_output(&output));
    }
}

#[test]
fn programs_are_named_in_text_and_complete_in_json() {
    let output = sympozium(&["explain", "../explain/ops.yaml"]);
    let text = stdout(&output);
    assert!(text.contains(" list-unhealthy-pods.sh in "), "{text}");
    let answer = explained(&["../explain/ops.yaml"]);
    let tools = answer["runs"][0]["tools"].as_array().unwrap();
    let tool = tools.iter().find(|it| it["tool"] == "list_unhealthy_pods");
    assert_eq!(tool.unwrap()["program"][0], "/skills/k8s-ops/cluster-overview/scripts/list-unhealthy-pods.sh");
}

#[test]
fn help_has_examples_and_exit_codes() {
    for command in ["explain", "render"] {
        let output = sympozium(&[command, "--help"]);
        for word in ["Examples:", "Exit codes:", "  3  ", "`SKILL.md`"] {
            assert!(stdout(&output).contains(word), "{command} {word}");
        }
    }
}
