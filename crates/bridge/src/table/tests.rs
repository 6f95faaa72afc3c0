use serde_json::{Value, json};
use sympozium_api::RunPlan;

use super::*;

/// A table with only these packs that run commands, with their gates.
fn table(tools: Value) -> ToolTable {
    const STORED: &[u8] = include_bytes!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
    let mut plan: Value = serde_json::from_slice(STORED).expect("JSON");
    plan["tools"] = tools;
    let plan: RunPlan = serde_json::from_value(plan).expect("a plan");
    ToolTable::new(&plan).expect("schemas")
}

fn tool(name: &str, pack: Option<&str>, gate: &str, parameters: Value) -> Value {
    let mut tool = json!({
        "name": name, "gate": gate, "acts": { "by": "agent" }, "description": "d", "parameters": parameters,
        "limits": { "timeoutSeconds": 30, "argumentBytes": 1024, "outputBytes": 1024, "concurrent": 1, "perMinute": 1 },
    });
    if let Some(pack) = pack {
        tool["pack"] = json!(pack);
    }
    tool
}

fn commands(packs: &[(&str, &str)]) -> ToolTable {
    let schema = json!({
        "type": "object", "required": ["command"], "additionalProperties": false,
        "properties": { "command": { "type": "string" }, "target": { "type": "string" } },
    });
    let tools = packs.iter().map(|(pack, gate)| tool("execute_command", Some(pack), gate, schema.clone()));
    table(tools.collect())
}

fn refused(table: &ToolTable, name: &str, arguments: Value) -> (RefusalCode, String) {
    match table.look_up(name, arguments, None) {
        Ok(_) => panic!("{name} was let through"),
        Err(refusal) => (refusal.code, refusal.message),
    }
}

#[test]
fn what_is_not_there_or_denied_is_refused() {
    let table = table(json!([tool("read_file", None, "deny", json!({ "type": "object" }))]));
    assert_eq!(
        refused(&table, "read_file", json!({})),
        (RefusalCode::Denied, "the tool `read_file` is denied by policy".to_owned())
    );
    assert_eq!(
        refused(&table, "../read_file\u{1b}", json!({})),
        (RefusalCode::UnknownTool, "there is no tool `../read_file\\u{1b}`".to_owned())
    );
}

#[test]
fn arguments_fit_their_schema_or_nothing_happens() {
    let schema = json!({
        "type": "object", "required": ["path"], "additionalProperties": false,
        "properties": { "path": { "type": "string", "maxLength": 4 }, "limit": { "type": "integer", "minimum": 1 } },
    });
    let table = table(json!([tool("read_file", None, "ask", schema)]));
    assert!(table.look_up("read_file", json!({ "path": "/a" }), None).is_ok());
    for arguments in [
        json!({}),
        json!([]),
        json!(null),
        json!("path"),
        json!({ "path": 1 }),
        json!({ "path": "/a", "limit": 0 }),
        json!({ "path": "/a", "limit": 1.5 }),
        json!({ "path": "/a", "as": "root" }),
        json!({ "path": "/long" }),
    ] {
        let (code, message) = refused(&table, "read_file", arguments.clone());
        assert_eq!(code, RefusalCode::Arguments, "{arguments}");
        assert!(message.starts_with("the arguments do not fit: "), "{message}");
    }
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let (code, message) = refused(&table, "read_file", json!({ "path": deep }));
    assert_eq!((code, message.as_str()), (RefusalCode::Arguments, "the arguments are nested more than 32 deep"));
}

#[test]
fn commands_find_their_pack() {
    let found = |table: &ToolTable, target: Value, active: Option<&str>| {
        let arguments = json!({ "command": "true", "target": target });
        match table.look_up("execute_command", arguments, active) {
            Ok(found) => {
                assert_eq!(found.arguments, json!({ "command": "true" }));
                Ok(found.tool.pack.clone().expect("a pack"))
            }
            Err(refusal) => Err(refusal.message),
        }
    };
    let two = commands(&[("k8s-ops", "allow"), ("tickets", "ask"), ("secret", "deny")]);
    for (target, active, expected) in [
        (json!("tickets"), None, Ok("tickets")),
        (json!(" K8s-\tOPS\u{a0}"), None, Ok("k8s-ops")),
        (json!(null), Some("tickets"), Ok("tickets")),
        (json!(""), None, Err("say in `target` which skill pack runs this: k8s-ops, tickets")),
        (json!(""), Some("secret"), Err("say in `target` which skill pack runs this: k8s-ops, tickets")),
        (json!("secret"), None, Err("no skill pack `secret` runs commands here; there are: k8s-ops, tickets")),
        // A Cyrillic letter that looks like a Latin one.
        (
            json!("ticket\u{455}"),
            None,
            Err("no skill pack `ticket\u{455}` runs commands here; there are: k8s-ops, tickets"),
        ),
        (json!(7), None, Err("`target` is the name of a skill pack")),
    ] {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(found(&two, target, active), expected);
    }
    let one = commands(&[("k8s-ops", "allow"), ("secret", "deny")]);
    assert_eq!(found(&one, json!(null), None), Ok("k8s-ops".to_owned()));
    let sandbox = commands(&[("k8s-ops", "allow"), ("sandbox", "ask")]);
    assert_eq!(found(&sandbox, json!(null), Some("k8s-ops")), Ok("sandbox".to_owned()));
}

#[test]
fn a_pattern_that_goes_back_for_ever_is_a_refusal() {
    let pattern = json!({ "type": "string", "pattern": "^(?=(a+)+$)(a+)+\\1$" });
    let schema = json!({ "type": "object", "properties": { "text": pattern } });
    let table = table(json!([tool("find", None, "allow", schema)]));
    let text = format!("{}!", "a".repeat(10_000));
    let (code, message) = refused(&table, "find", json!({ "text": text }));
    assert_eq!(code, RefusalCode::Arguments);
    assert!(message.len() < 1_000, "{message}");
}
