//! Changes that add power are recognised, however they are written.

use serde_json::{Value, json};

use super::remarks::{add, plan, skill, tool};
use crate::explain::{Direction, Section, compare, explain};

/// The changes, as direction, section, and owner with power.
fn changes(old: impl FnOnce(&mut Value), new: impl FnOnce(&mut Value)) -> Vec<(Direction, Section, String)> {
    let (changes, _) = compare(&explain(&plan(old)), &explain(&plan(new)));
    let changes = changes.into_iter();
    changes
        .map(|change| {
            let name = format!("{} {}", change.power.of, change.power.what);
            (change.direction, change.power.section, name.trim().to_owned())
        })
        .collect()
}

fn one(direction: Direction, section: Section, what: &str) -> Vec<(Direction, Section, String)> {
    vec![(direction, section, what.to_owned())]
}

fn program(gate: &str, exec: Value, parameters: Value) -> Value {
    let acts = json!({"by": "program", "part": "agent", "exec": exec, "inputMode": "args"});
    tool(gate, acts, parameters)
}

#[test]
fn another_schema_of_a_tool_may_let_more_through() {
    let with = |gate: &'static str, pattern: &'static str| {
        let schema = json!({"properties": {"x": {"type": "string", "pattern": pattern}}});
        let tool = program(gate, json!(["kubectl"]), schema);
        move |plan: &mut Value| add(&mut plan["tools"], tool)
    };
    assert_eq!(
        changes(with("allow", "^a$"), with("allow", ".*")),
        one(Direction::Widened, Section::Tools, "arguments of t")
    );
    assert_eq!(changes(with("deny", "^a$"), with("deny", ".*")), []);
    assert_eq!(changes(with("ask", "^a$"), with("ask", "^a$")), []);
}

#[test]
fn another_program_or_command_may_do_more() {
    let with = |gate: &'static str, exec: Value| {
        move |plan: &mut Value| add(&mut plan["tools"], program(gate, exec, json!({})))
    };
    let widened = || one(Direction::Widened, Section::Tools, "program of t");
    let (get, delete) = (json!(["kubectl", "get"]), json!(["kubectl", "delete"]));
    assert_eq!(changes(with("allow", get.clone()), with("allow", delete.clone())), widened());
    // Two words are not one with a space in it.
    let joined = json!(["kubectl get"]);
    assert_eq!(changes(with("allow", get.clone()), with("allow", joined)), widened());
    assert_eq!(changes(with("deny", get), with("deny", delete)), []);
    let with = |command: Value| {
        let mut part = skill("image");
        part["start"] = json!({"kind": "image", "command": command});
        move |plan: &mut Value| add(&mut plan["parts"], part)
    };
    let widened = || one(Direction::Widened, Section::Tools, "skill-a command");
    assert_eq!(changes(with(json!(["a"])), with(json!(["b"]))), widened());
    assert_eq!(changes(with(json!(["a"])), with(json!([]))), widened());
}

#[test]
fn what_holds_less_is_more_power() {
    let with = |field: &'static str, value: Value| {
        move |plan: &mut Value| match value {
            Value::Null => {}
            value => plan["isolation"][field] = value,
        }
    };
    let class = |value| with("runtimeClass", value);
    let changed = |direction| one(direction, Section::Isolation, "RuntimeClass");
    for (old, new, direction) in [
        (json!("gvisor"), Value::Null, Direction::Widened),
        (json!("gvisor"), json!("runc"), Direction::Widened),
        (Value::Null, json!("gvisor"), Direction::Narrowed),
    ] {
        assert_eq!(changes(class(old), class(new)), changed(direction));
    }
    let seccomp = |value| with("seccomp", value);
    let changed = |direction| one(direction, Section::Isolation, "seccomp");
    let default = || json!({"type": "RuntimeDefault"});
    let own = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
    for (old, new, direction) in [
        (default(), json!({"type": "Unconfined"}), Direction::Widened),
        (default(), own("a"), Direction::Widened),
        (own("a"), own("b"), Direction::Widened),
        (own("a"), default(), Direction::Widened),
        (json!({"type": "Unconfined"}), own("a"), Direction::Narrowed),
    ] {
        assert_eq!(changes(seccomp(old), seccomp(new)), changed(direction));
    }
    let sandbox = |plan: &mut Value| plan["workload"] = json!({"kind": "sandbox"});
    let changed = |direction| one(direction, Section::Isolation, "workload");
    assert_eq!(changes(sandbox, |_| {}), changed(Direction::Widened));
    assert_eq!(changes(|_| {}, sandbox), changed(Direction::Narrowed));
    let labelled = |plan: &mut Value| plan["placement"] = json!({"nodeSelector": {"pool": "agents"}});
    let changed = one(Direction::Widened, Section::Isolation, "nodes");
    assert_eq!(changes(labelled, |_| {}), changed);
    let with = |start: &'static str| move |plan: &mut Value| add(&mut plan["parts"], skill(start));
    assert_eq!(
        changes(with("injected"), with("image")),
        [
            one(Direction::Widened, Section::Tools, "skill-a command"),
            one(Direction::Widened, Section::Isolation, "skill-a executor"),
        ]
        .concat()
    );
}

#[test]
fn another_value_of_a_variable_is_shown_and_no_power() {
    let with = |value: &'static str| {
        let mut part = skill("image");
        part["env"] = json!([{"name": "MODE", "value": value}]);
        move |plan: &mut Value| add(&mut plan["parts"], part)
    };
    let shown = one(Direction::Other, Section::MadeOf, "skill-a variable MODE");
    assert_eq!(changes(with("careful"), with("bold")), shown);
    assert_eq!(changes(with("bold"), with("bold")), []);
    let explanation = serde_json::to_string(&explain(&plan(with("bold")))).expect("JSON");
    assert!(!explanation.contains("bold"), "values are not repeated");
}

#[test]
fn what_else_a_plan_says_is_compared() {
    let endpoint = |encrypted: bool, path: &'static str| {
        let endpoint = json!({"encrypted": encrypted, "host": "h", "port": 443, "path": path});
        move |plan: &mut Value| plan["model"]["endpoint"] = endpoint
    };
    let made = |what| (Direction::Other, Section::MadeOf, String::from(what));
    assert_eq!(
        changes(endpoint(true, "/"), endpoint(false, "/")),
        [
            (Direction::Added, Section::Network, "requests to the model, with the key, not encrypted".to_owned()),
            made("endpoint of the model"),
            made("settings of the model"),
        ]
    );
    // A key in the query is not printed, and its change is noticed.
    let (old, new) = (endpoint(true, "/?key=a"), endpoint(true, "/?key=b"));
    assert_eq!(changes(old, new), [made("settings of the model")]);
    let shown = explain(&plan(endpoint(true, "/v1?key=a"))).model.endpoint;
    assert_eq!(shown.as_deref(), Some("https://h:443/v1?…"));
    let keep = |plan: &mut Value| plan["cleanup"] = json!("keep");
    let changed = one(Direction::Widened, Section::Lifetime, "the pod afterwards");
    assert_eq!(changes(|_| {}, keep), changed);
    let hook = |gate: bool| {
        let mut hook = skill("image");
        hook["role"] = json!({"kind": "postRun", "hook": "tell", "gate": gate});
        move |plan: &mut Value| add(&mut plan["parts"], hook)
    };
    let what = "skill-a gate of the result";
    let changed = one(Direction::Widened, Section::Isolation, what);
    assert_eq!(changes(hook(true), hook(false)), changed);
    let pulled = |policy: &'static str| move |plan: &mut Value| plan["parts"][0]["imagePullPolicy"] = json!(policy);
    assert_eq!(changes(pulled("Always"), pulled("Never")), [made("agent image is pulled")]);
    let with_prompt = |task: &'static str| move |plan: &mut Value| plan["task"]["systemPrompt"] = json!(task);
    assert_eq!(changes(with_prompt("a"), with_prompt("b")), [made("task")]);
    let secret = |items: Value| {
        let volume = json!({"name": "v", "secret": {"secretName": "s", "items": items}});
        let source = json!({"kind": "declared", "volume": volume});
        let mut part = skill("image");
        part["mounts"] = json!([{"volume": "v", "path": "/s", "readOnly": true}]);
        move |plan: &mut Value| {
            add(&mut plan["volumes"], json!({"name": "v", "source": source}));
            add(&mut plan["parts"], part);
        }
    };
    let one_key = json!([{"key": "a", "path": "a"}]);
    let what = "skill-a settings of what is at /s";
    let changed = one(Direction::Widened, Section::Files, what);
    assert_eq!(changes(secret(one_key), secret(json!([]))), changed);
}
