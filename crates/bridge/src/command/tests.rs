use serde_json::{Value, json};

use super::*;

fn tool(acts: Value) -> ToolPlan {
    serde_json::from_value(json!({
        "name": "t", "gate": "allow", "acts": acts, "description": "d", "parameters": {},
        "limits": { "timeoutSeconds": 120, "argumentBytes": 1024, "outputBytes": 1024, "concurrent": 1, "perMinute": 1 },
    }))
    .expect("a tool")
}

fn made(acts: Value, arguments: Value) -> ExecRequest {
    let id = RequestId::parse("1").expect("an id");
    build_request(id, &tool(acts), "pack", &arguments).expect("a command")
}

#[test]
fn a_shell_line_is_passed_as_it_is() {
    let shell = json!({ "by": "shell", "part": "skill-pack" });
    let request = made(shell.clone(), json!({ "command": "echo 'a b'", "workdir": "/data", "timeout": 7 }));
    assert_eq!(request.command, "echo 'a b'");
    assert_eq!(request.work_dir.as_deref(), Some("/data"));
    assert_eq!((request.timeout, request.target.as_deref()), (Some(7), Some("pack")));
    assert_eq!((request.argv, request.stdin), (Vec::new(), None));
    assert_eq!(made(shell.clone(), json!({ "command": "x" })).timeout, Some(30));
    assert_eq!(made(shell, json!({ "command": "x", "timeout": 9_999_999_999_u64 })).timeout, Some(120));
}

#[test]
fn arguments_of_a_program_cannot_become_options_or_commands() {
    let program = json!({
        "by": "program", "part": "skill-pack", "exec": ["orders", "look-up"], "inputMode": "args", "positionalArgs": ["what", "count", "all", "missing"],
    });
    let arguments = json!({ "what": "--as=root; $(id)\n", "count": 3, "all": [1, "x"], "timeout": 1 });
    let request = made(program, arguments);
    assert_eq!(request.argv, ["orders", "look-up", "--", "--as=root; $(id)\n", "3", "[1,\"x\"]", ""]);
    assert_eq!(
        (request.command.as_str(), request.stdin, request.timeout),
        ("'orders' 'look-up' '--' '--as=root; $(id)\n' '3' '[1,\"x\"]' ''", None, Some(120))
    );
}

#[test]
fn what_is_not_positional_goes_in_as_json() {
    let program =
        json!({ "by": "program", "part": "p", "exec": ["orders"], "inputMode": "stdin", "positionalArgs": ["what"] });
    let request = made(program, json!({ "what": "a", "verbose": true, "more": { "b": null } }));
    assert_eq!(request.argv, ["orders", "--", "a"]);
    assert_eq!(request.stdin.as_deref(), Some("{\"more\":{\"b\":null},\"verbose\":true}"));
    assert_eq!(request.command, "printf '%s' '{\"more\":{\"b\":null},\"verbose\":true}' | 'orders' '--' 'a'");
}

/// For all arguments: an executor that reads only `command` must not report success for a program that it never ran.
#[test]
fn the_line_of_a_declared_tool_is_never_empty_and_always_fits() {
    let program =
        json!({ "by": "program", "part": "p", "exec": ["orders"], "inputMode": "stdin", "positionalArgs": ["what"] });
    let quotes = "'".repeat(40_000);
    let control = "\u{1}".repeat(90_000);
    for (what, more, fits) in [
        ("a".to_owned(), "b".to_owned(), true),
        // Each quote takes four bytes of a command line.
        (quotes.clone(), String::new(), false),
        (String::new(), "x".repeat(MAX_WORD_BYTES), false),
        // It fits into a command line; twice it is more than a request may have.
        (control, String::new(), false),
    ] {
        let request = made(program.clone(), json!({ "what": what, "more": more }));
        assert!(request.to_json().is_ok());
        assert_eq!(request.command != ARGV_REQUIRED_COMMAND, fits);
        assert!(!request.command.is_empty());
    }
}

#[test]
fn what_no_program_can_be_given_is_refused() {
    let program =
        json!({ "by": "program", "part": "p", "exec": ["orders"], "inputMode": "args", "positionalArgs": ["what"] });
    for word in ["a\0b".to_owned(), "x".repeat(MAX_WORD_BYTES + 1)] {
        let id = RequestId::parse("1").expect("an id");
        let refused = build_request(id, &tool(program.clone()), "pack", &json!({ "what": word }));
        assert_eq!(refused, Err(CommandError::InvalidArgument("what".to_owned())));
    }
    let id = RequestId::parse("1").expect("an id");
    assert_eq!(build_request(id, &tool(json!({ "by": "agent" })), "pack", &json!({})), Err(CommandError::NoSidecar));
}
