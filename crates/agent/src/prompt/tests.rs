use serde_json::{Value, json};
use sympozium_api::run_plan::AgentView;

use super::{MAX_SKILLS, one_line, task_message};

/// Bytes of the prompt of a run with ten packs.
const TEN_PACKS: usize = 3_000;

/// With the plan's rounds.
fn system_prompt(view: &AgentView) -> String {
    super::system_prompt(view, view.limits.iterations)
}

/// A view with these parts, and the rest as in most runs.
fn view(parts: Value) -> AgentView {
    let mut view = json!({
        "format": "sympozium.ai/run-plan/v1",
        "run": "a-run",
        "agent": "on-call",
        "task": { "task": "Why is checkout slow?", "useContext": false, "mode": "task" },
        "wire": "anthropic",
        "model": "a-model",
        "tools": [],
        "skills": [],
        "roots": [
            { "path": "/tmp", "writable": true },
            { "path": "/workspace", "writable": true },
        ],
        "limits": {
            "iterations": 50, "modelRequests": 200, "modelRequestsPerMinute": 60, "modelRequestBytes": 1, "modelAnswerBytes": 1,
            "toolCalls": 500, "concurrentToolCalls": 8, "resultBytes": 1, "transcriptBytes": 1,
        },
        "runSeconds": 1200,
    });
    for (name, part) in parts.as_object().expect("parts are an object") {
        view[name] = part.clone();
    }
    serde_json::from_value(view).expect("it is a view")
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "description": "It does something.", "parameters": { "type": "object" }, "native": true })
}

fn tools(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| tool(name)).collect()
}

fn command(targets: &[&str]) -> Value {
    let mut command = tool("execute_command");
    command["parameters"] = json!({ "type": "object", "properties": {
        "command": { "type": "string" },
        "target": { "type": "string", "enum": targets },
    } });
    command
}

fn skill(pack: &str, name: &str, description: &str) -> Value {
    json!({
        "source": {
            "kind": "pack", "pack": pack, "skill": name, "bytes": 32,
            "digest": "sha256:c879fbce6ef726a66eb0e27112656dabdcadcdc874fde9642b9f5cbfc3dc41d2",
        },
        "directory": format!("/skills/{pack}/{name}"),
        "description": description,
    })
}

/// A run with this many packs, each with a sidecar, a skill and its directory.
fn packs(count: usize, description: &str) -> AgentView {
    let names: Vec<String> = (1..=count).map(|pack| format!("pack-number-{pack}")).collect();
    let targets: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut offered = tools(&["read_file", "write_file", "edit_file", "list_directory", "fetch_url", "load_skill"]);
    offered.push(command(&targets));
    let mut roots =
        vec![json!({ "path": "/tmp", "writable": true }), json!({ "path": "/workspace", "writable": true })];
    roots.extend(names.iter().map(|name| json!({ "path": format!("/skills/{name}"), "writable": false })));
    let append_skills: Vec<Value> = names.iter().map(|name| skill(name, "operate", description)).collect();
    view(json!({ "tools": offered, "skills": append_skills, "roots": roots }))
}

#[test]
fn a_run_without_tools_has_its_own_rules() {
    insta::assert_snapshot!(system_prompt(&view(json!({}))));
}

#[test]
fn the_prompt_has_the_effective_rounds() {
    let view = view(json!({ "tools": tools(&["fetch_url"]) }));
    let planned = "- You have at most 50 rounds of calls and 20 minutes.";
    assert!(system_prompt(&view).contains(planned));
    let fewer = super::system_prompt(&view, 3);
    assert_eq!(fewer, system_prompt(&view).replace(planned, &planned.replace("50", "3")));
}

#[test]
fn file_tools_are_listed_with_their_directories() {
    let offered = tools(&["read_file", "write_file", "edit_file", "list_directory"]);
    insta::assert_snapshot!(system_prompt(&view(json!({ "tools": offered }))));
}

#[test]
fn a_volume_outside_of_writable_directories_is_listed_as_read_only() {
    let roots = json!([
        { "path": "/workspace", "writable": true },
        { "path": "/workspace/cache", "writable": true },
        { "path": "/data", "writable": true },
    ]);
    let offered = tools(&["read_file", "write_file"]);
    let prompt = system_prompt(&view(json!({ "tools": offered, "roots": roots })));
    let (_, listed) = prompt.split_once("these directories:\n").expect("a list");
    assert_eq!(
        listed,
        "- /workspace (read and write)\n- /workspace/cache (read and write)\n- /data (read only)\n\
         A relative path is below /workspace."
    );
}

#[test]
fn skills_and_commands_are_listed() {
    let mut offered = tools(&["read_file", "list_directory", "fetch_url", "send_channel_message", "schedule_task"]);
    offered.extend([command(&["cluster", "tickets"]), tool("list_unhealthy_pods"), tool("load_skill")]);
    let on_call = view(json!({
        "task": {
            "task": "Why is checkout slow?", "useContext": true, "mode": "task",
            "systemPrompt": "You keep the shop running.\n",
        },
        "tools": offered,
        "skills": [
            skill("cluster", "look", "Look at workloads."),
            skill("tickets", "tickets", "Write\n  tickets. <|im_start|>"),
            { "source": { "kind": "configMap", "configMap": "notes" }, "directory": "/skills/notes" },
        ],
        "roots": [
            { "path": "/tmp", "writable": true },
            { "path": "/workspace", "writable": false },
            { "path": "/skills/cluster", "writable": false },
            { "path": "/skills/tickets", "writable": false },
        ],
    }));
    insta::assert_snapshot!(system_prompt(&on_call));
}

#[test]
fn ten_packs_fit_a_short_prompt() {
    let usual = system_prompt(&packs(10, "Operate one part of the platform: look at it, and restart what hangs."));
    insta::assert_snapshot!(usual);
    let long = system_prompt(&packs(10, &"words without an end ".repeat(500)));
    for prompt in [&usual, &long] {
        assert!(prompt.len() < TEN_PACKS, "{} bytes", prompt.len());
    }
}

#[test]
fn the_same_plan_has_the_same_prompt() {
    assert_eq!(system_prompt(&packs(10, "x")), system_prompt(&packs(10, "x")));
}

#[test]
fn more_skills_than_are_listed_are_counted() {
    let prompt = system_prompt(&packs(MAX_SKILLS + 7, "x"));
    assert_eq!(prompt.matches("/operate: x\n").count(), MAX_SKILLS);
    assert!(prompt.ends_with("- and 7 more"), "{prompt}");
    assert!(prompt.contains("pack-number-32 and 25 more. Always give it."), "{prompt}");
}

#[test]
fn only_what_is_offered_is_named() {
    let names =
        ["read_file", "write_file", "edit_file", "list_directory", "load_skill", "execute_command", "fetch_url"];
    for offered in names {
        let one = if offered == "execute_command" { command(&["a", "b"]) } else { tool(offered) };
        let prompt = system_prompt(&view(json!({ "tools": [one], "skills": [skill("a", "b", "c")] })));
        for other in names.iter().filter(|name| **name != offered) {
            assert!(!prompt.contains(other), "{other} with {offered}: {prompt}");
        }
    }
}

#[test]
fn a_command_without_a_target_goes_where_the_bridge_sends_it() {
    for (targets, expected) in [
        (["a"].as_slice(), "There is one: `a`."),
        (&["a", "b"], "`target` names the pack: a, b. Always give it."),
        (&["a", "sandbox"], "`target` names the pack: a, sandbox. Without it the command runs in `sandbox`."),
        (&[], "with that pack's programs and powers only. Sidecars"),
    ] {
        let prompt = system_prompt(&view(json!({ "tools": [command(targets)] })));
        assert!(prompt.contains(expected), "{prompt}");
    }
}

#[test]
fn descriptions_are_one_line_of_whole_words() {
    for (text, max_chars, expected) in [
        ("a  b\n c", 10, "a b c"),
        ("one two three", 8, "one two…"),
        ("one two three", 7, "one two…"),
        ("unbreakable", 4, "unbr…"),
        ("漢字漢字", 2, "漢字…"),
        (" \n", 5, ""),
        // An alphabet that people do not see and models read.
        ("a\u{e0068}\u{e0069}\u{200b}b\u{2028}c", 10, "ab c"),
    ] {
        assert_eq!(one_line(text, max_chars), expected);
    }
}

#[test]
fn a_task_is_the_first_message() {
    let of = |given: Value| {
        let mut plan = json!({ "useContext": false, "mode": "task" });
        if !given.is_null() {
            plan["task"] = given;
        }
        task_message(&view(json!({ "task": plan })))
    };
    assert_eq!(of(json!("Say hello.\n")), "Say hello.\n");
    assert_eq!(of(Value::Null), "");
    assert_eq!(of(json!(7)), "");
    insta::assert_snapshot!(
        of(json!({ "mode": "sidecar-driven", "tool": "lead", "parameters": { "a": "1 \"x\"", "b": "2" } })),
        @r#"
    Call the tool `lead` with these parameters:
    {"a":"1 \"x\"","b":"2"}

    That tool leads this task: do what its result says, call it again when it says so, and stop when it says that the task is done. Then answer with the result.
    "#
    );
    assert!(
        of(json!({ "mode": "sidecar-driven", "tool": "lead" }))
            .starts_with("Call the tool `lead` without parameters.\nThat tool")
    );
}
