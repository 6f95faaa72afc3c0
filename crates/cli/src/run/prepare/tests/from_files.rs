//! Runs from manifests.

use super::*;

const AGENT: &str = "\
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: reviewer, namespace: team}
spec:
  agents: {default: {model: gpt-4o, runTimeout: 5m}}
  authRefs: [{provider: openai, secret: openai-key}]
  skills: [{skillPackRef: code-review, params: {depth: deep}}]
";

const RUN: &str = "\
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: nightly, namespace: team, uid: 11111111-1111-4111-8111-111111111111}
spec: {agentRef: reviewer, task: Review it.}
";

#[test]
fn the_only_run_is_meant() {
    let machine = Harness::new();
    let file = machine.file("all.yaml", &format!("{AGENT}{RUN}"));
    let prepared = expect_prepared(machine.assemble(&[&file]));
    let plan = &prepared.plan;
    assert_eq!((plan.run.name.as_str(), plan.run.namespace.as_str()), ("nightly", "team"));
    // The UID of the manifest is that of an earlier run.
    assert_eq!(plan.run.uid, UID);
    assert_eq!(plan.task.task, Some(Task::Text("Review it.".to_owned())));
    assert_eq!(plan.deadlines.run_seconds, 300);
    assert_eq!(model_key(&prepared), Some(("OPENAI_API_KEY", "sk-env")));
    assert!(prepared.skill_texts.contains_key("code-review"));
}

#[test]
fn flags_change_what_a_manifest_says() {
    let mut machine = Harness::new();
    machine.set("GROQ_API_KEY", "sk-groq");
    let file = machine.file("all.yaml", &format!("{AGENT}{RUN}"));
    let prepared = expect_prepared(machine.assemble(&[
        &file,
        "Another task",
        "--model",
        "groq/llama",
        "--timeout",
        "7s",
        "--policy",
        "permissive",
    ]));
    let plan = &prepared.plan;
    assert_eq!(plan.task.task, Some(Task::Text("Another task".to_owned())));
    let model = (plan.model.provider.as_str(), plan.model.model.as_str());
    assert_eq!(model, ("groq", "llama"));
    assert_eq!(plan.deadlines.run_seconds, 7);
    assert_eq!(model_key(&prepared), Some(("GROQ_API_KEY", "sk-groq")));
    let prepared = expect_prepared(machine.assemble(&[&file, "--model", "openai/gpt-x"]));
    assert_eq!(prepared.plan.model.model, "gpt-x");
    // The Secret of the agent is used.
    assert_eq!(prepared.plan.model.keys[0].secret, "openai-key");
    machine.assert_refused(&[&file, "--policy", "nothing"], USAGE, &["no policy `nothing`"]);
}

#[test]
fn an_agent_needs_a_task_and_a_run_gets_its_own_name() {
    let machine = Harness::new();
    let file = machine.file("agent.yaml", AGENT);
    machine.assert_refused(&[&file], USAGE, &["there is no task"]);
    let prepared = expect_prepared(machine.assemble(&[&file, "Do it"]));
    let run = &prepared.plan.run;
    assert_eq!((run.name.as_str(), run.agent.as_str()), ("run-0b5e2f0a", "reviewer"));
    assert_eq!(run.namespace, "team");
    // Skills of the command line are in the run's namespace too.
    let skill = "---\nname: hello\ndescription: Use it to greet.\n---\n# Hello\n";
    let path = machine.file("hello/SKILL.md", skill);
    let prepared = expect_prepared(machine.assemble(&[&file, "Do it", "--skill", &path]));
    assert_eq!(prepared.skill_texts.keys().collect::<Vec<_>>(), ["hello"]);
    let generated = machine.file(
        "generated.yaml",
        "apiVersion: sympozium.ai/v1alpha1\nkind: AgentRun\nmetadata: {generateName: nightly-, namespace: team}\nspec: {agentRef: reviewer, task: x}\n",
    );
    let prepared = expect_prepared(machine.assemble(&[&file, &generated]));
    assert_eq!(prepared.plan.run.name, "nightly-0b5e2f0a");
}

#[test]
fn of_several_one_is_chosen() {
    let machine = Harness::new();
    let other = RUN.replace("nightly", "weekly").replace("Review it.", "Report.");
    let file = machine.file("all.yaml", &format!("{AGENT}{RUN}{other}"));
    machine.assert_refused(&[&file], USAGE, &["several runs", "--run", "`nightly`, `weekly`"]);
    let prepared = expect_prepared(machine.assemble(&[&file, "--run", "weekly"]));
    assert_eq!(prepared.plan.task.task, Some(Task::Text("Report.".to_owned())));
    machine.assert_refused(&[&file, "--run", "weakly"], USAGE, &["did you mean `weekly`?"]);
    machine.assert_refused(
        &[&file, "--run", "weekly", "--agent", "other"],
        USAGE,
        &["AgentRun weekly is not of agent other"],
    );
    let agents = format!("{AGENT}---\n{}", AGENT.replace("reviewer", "writer"));
    let file = machine.file("agents.yaml", &agents);
    machine.assert_refused(&[&file, "x"], USAGE, &["several agents", "`reviewer`, `writer`"]);
    let prepared = expect_prepared(machine.assemble(&[&file, "x", "--agent", "writer"]));
    assert_eq!(prepared.plan.run.agent, "writer");
}

#[test]
fn files_that_cannot_be_used_are_told_line_by_line() {
    let machine = Harness::new();
    let file = machine.file("bad.yaml", &format!("{AGENT}{RUN}").replace("task:", "tsk:"));
    // Although the task is given, a misspelt field counts: it may be a restriction.
    machine.assert_refused(&[&file, "x"], FAILED, &["bad.yaml:12:", "tsk", "the manifests cannot be used as they are"]);
    machine.assert_refused(&["missing.yaml", "x"], FAILED, &["no such file or directory"]);
    let mut poor = Harness::new();
    poor.variables.clear();
    // An unreadable file is reported before what cannot be known without it.
    poor.assert_refused(&["missing.yaml"], FAILED, &["no such file or directory"]);
    let lonely = machine.file("lonely.yaml", RUN);
    machine.assert_refused(&[&lonely], FAILED, &["error[", "reviewer", "is missing"]);
    for (field, said) in [("dryRun", "sympozium explain"), ("cancel", "remove `cancel`")] {
        let run = RUN.replace("spec: {", &format!("spec: {{{field}: true, "));
        let file = machine.file("run.yaml", &format!("{AGENT}{run}"));
        machine.assert_refused(&[&file], FAILED, &[said]);
    }
}

#[test]
fn a_denied_run_says_why_and_has_a_code_of_its_own() {
    let machine = Harness::new();
    let run = RUN.replace("task:", "env: {LD_PRELOAD: /x.so}, task:");
    let file = machine.file("all.yaml", &format!("{AGENT}{run}"));
    let (code, text) = machine.expect_failure(&[&file]);
    assert_eq!(code, DENIED, "{text}");
    assert!(text.contains("all.yaml:12:") && text.contains("denied["), "{text}");
    assert!(text.contains("LD_PRELOAD"), "{text}");
    assert!(text.ends_with("error: the run is denied\nhint: change what the lines above name; `sympozium explain` shows what a run could touch\n"), "{text}");
}

const CLOSED: &str = "\
apiVersion: sympozium.ai/v1alpha1
kind: SympoziumPolicy
metadata: {name: floor, namespace: sympozium-system}
spec: {modelPolicy: {allowedModels: [only-this]}}
";

#[test]
fn the_floor_is_the_machines_and_never_the_manifests() {
    let machine = Harness::new();
    let closed = machine.file("closed.yaml", CLOSED);
    machine.assert_refused(&["x", "--floor", &closed], DENIED, &["only-this"]);
    // Among the files it would be the run's own statement about itself.
    let prepared = expect_prepared(machine.assemble(&["x", &closed]));
    assert_eq!(prepared.warnings.len(), 1, "{:?}", prepared.warnings);
    assert!(prepared.warnings[0].contains("the floor among the files does not count"));
    let floor = machine.path("config").join("floor.yaml");
    fs::write(&floor, CLOSED).unwrap();
    fs::set_permissions(&floor, fs::Permissions::from_mode(0o644)).unwrap();
    machine.assert_refused(&["x"], DENIED, &["only-this"]);
    let open = machine.file("open.yaml", &CLOSED.replace("only-this", "'*'"));
    machine.assert_refused(&["x", &open], DENIED, &["only-this"]);
    machine.assert_refused(&["x", "--floor", &open], USAGE, &["the floor of this machine is", "leave --floor out"]);
    fs::set_permissions(&floor, fs::Permissions::from_mode(0o666)).unwrap();
    machine.assert_refused(&["x"], FAILED, &["others may write to it"]);
    fs::set_permissions(&floor, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&floor, "kind: [").unwrap();
    machine.assert_refused(
        &["x"],
        FAILED,
        &["floor.yaml:", "the file of the floor must contain exactly one SympoziumPolicy"],
    );
    fs::remove_file(&floor).unwrap();
    symlink("nowhere", &floor).unwrap();
    machine.assert_refused(&["x"], FAILED, &["cannot read", "it bounds every run here"]);
}

#[test]
fn a_manifest_cannot_send_a_key_of_the_environment_elsewhere() {
    let machine = Harness::new();
    let policy = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: open, namespace: team}\nspec: {networkPolicy: {denyAll: false, allowedEgress: [{host: evil.example.com}]}}\n";
    let agent = AGENT.replace("runTimeout: 5m", "baseURL: 'https://evil.example.com/v1'");
    let agent = agent.replace("spec:\n", "spec:\n  policyRef: open\n");
    let file = machine.file("all.yaml", &format!("{agent}{RUN}{policy}"));
    machine.assert_refused(
        &[&file],
        FAILED,
        &["there is no key", "--key-command 'printenv OPENAI_API_KEY' gives it to this one"],
    );
}

#[test]
fn a_key_of_the_command_line_has_a_place_where_the_manifest_names_none() {
    let machine = Harness::new();
    let agent = AGENT.replace("  authRefs: [{provider: openai, secret: openai-key}]\n", "");
    let file = machine.file("all.yaml", &format!("{agent}{RUN}"));
    assert_eq!(model_key(&expect_prepared(machine.assemble(&[&file]))), None);
    let typed = [file.as_str(), "--key-command", "echo sk-command"];
    let prepared = expect_prepared(machine.assemble(&typed));
    assert_eq!(model_key(&prepared), Some(("OPENAI_API_KEY", "sk-command")));
}
