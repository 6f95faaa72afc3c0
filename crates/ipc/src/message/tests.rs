//! Messages: each rule on both of its sides.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::json;

use super::fields::FieldsError;
use super::*;
use crate::id::{IdError, RequestId};

fn id(text: &str) -> RequestId {
    RequestId::parse(text).unwrap()
}

fn parse(text: &str) -> Result<ExecRequest, RequestError> {
    ExecRequest::parse(text.as_bytes(), &id("1"))
}

fn with(field: &str, value: &serde_json::Value) -> Result<ExecRequest, RequestError> {
    let mut object = json!({"id": "1", "command": "true"});
    object[field] = value.clone();
    parse(&object.to_string())
}

fn plain() -> ExecRequest {
    ExecRequest::new(id("1"), "true")
}

#[test]
fn the_documented_request_is_read() {
    let text = r#"{
        "id": "1718100000000000000", "command": "node /app/dist/cli.js analyze", "args": [],
        "workDir": "/workspace", "timeout": 30, "target": "my-skill"
    }"#;
    let id = id("1718100000000000000");
    let expected = ExecRequest {
        work_dir: Some("/workspace".to_owned()),
        timeout: Some(30),
        target: Some("my-skill".to_owned()),
        ..ExecRequest::new(id.clone(), "node /app/dist/cli.js analyze")
    };
    assert_eq!(ExecRequest::parse(text.as_bytes(), &id), Ok(expected));
}

#[test]
fn a_request_by_argv_is_read_with_its_meta() {
    let text = r#"{"id":"1","argv":["/bin/x","--","A-17"],"stdin":"{}","_meta":{"trace_id":"4b"}}"#;
    let meta = json!({"trace_id": "4b"});
    let expected = ExecRequest {
        argv: ["/bin/x", "--", "A-17"].map(str::to_owned).to_vec(),
        stdin: Some("{}".to_owned()),
        meta: meta.as_object().cloned(),
        ..ExecRequest::new(id("1"), "")
    };
    assert_eq!(parse(text), Ok(expected));
}

#[test]
fn unknown_fields_are_ignored_and_null_is_absent() {
    let text = r#"{"id":"1","command":"true","args":null,"workDir":null,"timeout":null,"target":null,
        "argv":null,"stdin":null,"_meta":null,"new":{"command":[1]},"new":2}"#;
    assert_eq!(parse(text), Ok(plain()));
    for nothing in [r#"{"id":"1","command":null}"#, r#"{"id":"1","command":""}"#] {
        assert_eq!(parse(nothing), Err(RequestError::Missing("command")));
    }
    assert_eq!(parse(r#"{"id":null,"command":"x"}"#), Err(RequestError::Missing("id")));
}

#[test]
fn damage_is_named() {
    let problem = |text: &str| parse(text).unwrap_err();
    assert_eq!(problem(""), RequestError::EndsEarly);
    assert_eq!(problem(r#"{"id":"1","command":"rm -rf /tmp/a"#), RequestError::EndsEarly);
    assert_eq!(problem(r#"{"id":"1","command":"true""#), RequestError::EndsEarly);
    assert_eq!(problem("[]"), RequestError::NotAnObject);
    assert_eq!(problem("3"), RequestError::NotAnObject);
    assert!(matches!(problem("{]"), RequestError::NotJson(_)));
    assert!(matches!(problem(r#"{"id":"1","command":"a"} x"#), RequestError::NotJson(_)));
    let ignored = b"{\"id\":\"1\",\"command\":\"a\",\"new\":\"\xff\"}";
    assert!(matches!(ExecRequest::parse(ignored, &id("1")), Err(RequestError::NotJson(_))));
    let cut = "{\"id\":\"1\",\"command\":\"é".as_bytes();
    assert_eq!(ExecRequest::parse(&cut[..cut.len() - 1], &id("1")), Err(RequestError::EndsEarly));
    let invalid = b"{\"id\":\"1\",\"command\":\"\xff\"}";
    assert!(matches!(ExecRequest::parse(invalid, &id("1")), Err(RequestError::NotJson(_))));
    assert_eq!(problem(r#"{"id":"1","command":"a","command":"b"}"#), RequestError::Duplicate("command"));
    // A key may be written with escapes and is the same key.
    assert_eq!(problem(r#"{"id":"1","command":"a","comm\u0061nd":"b"}"#), RequestError::Duplicate("command"));
}

#[test]
fn the_id_must_be_there_and_be_that_of_the_file() {
    let problem = |text: &str| parse(text).unwrap_err();
    assert_eq!(problem(r#"{"command":"a"}"#), RequestError::Missing("id"));
    assert_eq!(problem(r#"{"id":"2","command":"a"}"#), RequestError::OtherId);
    assert_eq!(problem(r#"{"id":"../x","command":"a"}"#), RequestError::Id(IdError::BadStart));
    let expected = "a string";
    assert_eq!(problem(r#"{"id":1,"command":"a"}"#), RequestError::WrongType { field: "id", expected });
}

#[test]
fn fields_of_another_type_are_refused_by_name() {
    let cases = [
        ("command", json!(1), "a string"),
        ("command", json!(["true"]), "a string"),
        ("args", json!("a"), "a list of strings"),
        ("args", json!([1]), "a list of strings"),
        ("args", json!([null]), "a list of strings"),
        ("argv", json!({}), "a list of strings"),
        ("workDir", json!(false), "a string"),
        ("target", json!(5), "a string"),
        ("stdin", json!([]), "a string"),
        ("_meta", json!([]), "an object"),
    ];
    for (field, value, expected) in cases {
        assert_eq!(with(field, &value), Err(RequestError::WrongType { field, expected }));
    }
    let lone = r#"{"id":"1","command":"\ud800"}"#;
    let expected = "a string";
    assert_eq!(parse(lone), Err(RequestError::WrongType { field: "command", expected }));
}

#[test]
fn a_timeout_is_a_whole_number() {
    for seconds in [i64::MIN, -1, 0, 1, 30, 120, i64::MAX] {
        let expected = ExecRequest { timeout: Some(seconds), ..plain() };
        assert_eq!(with("timeout", &json!(seconds)), Ok(expected));
    }
    for text in ["30.0", "1e1", "\"30\"", "true", "[]", "9223372036854775808", "-0.0"] {
        let text = format!(r#"{{"id":"1","command":"true","timeout":{text}}}"#);
        let problem = parse(&text).unwrap_err();
        assert!(matches!(problem, RequestError::WrongType { field: "timeout", .. }), "{text}: {problem}");
        assert!(problem.to_string().contains("whole number of seconds"), "{problem}");
    }
}

#[test]
fn the_effective_timeout_follows_the_rule_of_the_scripts() {
    let after = |timeout, max| {
        let request = ExecRequest { timeout, ..plain() };
        request.effective_timeout(Duration::from_secs(max)).as_secs()
    };
    let table = [
        (None, 120, 30),
        (Some(0), 120, 30),
        (Some(-5), 120, 30),
        (Some(i64::MIN), 120, 30),
        (Some(1), 120, 1),
        (Some(120), 120, 120),
        (Some(121), 120, 120),
        (Some(i64::MAX), 120, 120),
        (Some(300), 300, 300),
        (None, 10, 10),
    ];
    for (timeout, max, expected) in table {
        assert_eq!(after(timeout, max), expected, "{timeout:?} of {max}");
    }
    assert_eq!(DEFAULT_MAX_TIMEOUT.as_secs(), 120);
}

#[test]
fn every_bound_holds_on_both_sides() {
    let limit = MAX_WORD_BYTES;
    let word = |bytes| json!("x".repeat(bytes));
    assert!(with("command", &word(limit)).is_ok());
    let too_long = |field, bytes, limit| Err(RequestError::TooLong { field, bytes, limit });
    assert_eq!(with("command", &word(limit + 1)), too_long("command", limit + 1, limit));
    // `true`, a space and two quotes.
    assert!(with("args", &json!(["x".repeat(limit - 7)])).is_ok());
    assert_eq!(with("args", &json!(["x".repeat(limit - 6)])), too_long("args", limit + 1, limit));
    assert!(with("argv", &json!(["x".repeat(limit)])).is_ok());
    assert_eq!(with("argv", &json!(["x".repeat(limit + 1)])), too_long("argv", limit + 1, limit));
    assert!(with("workDir", &word(MAX_WORK_DIR_BYTES)).is_ok());
    let (bytes, limit) = (MAX_WORK_DIR_BYTES + 1, MAX_WORK_DIR_BYTES);
    assert_eq!(with("workDir", &word(bytes)), too_long("workDir", bytes, limit));

    for field in ["args", "argv"] {
        assert!(with(field, &json!(vec![""; MAX_ARGUMENTS])).is_ok());
        for count in [MAX_ARGUMENTS + 1, 200_000] {
            assert_eq!(
                with(field, &json!(vec![""; count])),
                Err(RequestError::TooMany { field, limit: MAX_ARGUMENTS })
            );
        }
    }

    // `{"k":"…"}`
    let meta = |bytes| json!({"k": "x".repeat(bytes - 8)});
    assert!(with("_meta", &meta(MAX_META_BYTES)).is_ok());
    let (bytes, limit) = (MAX_META_BYTES + 1, MAX_META_BYTES);
    assert_eq!(with("_meta", &meta(bytes)), too_long("_meta", bytes, limit));

    for field in ["command", "workDir"] {
        assert_eq!(with(field, &json!("a\0b")), Err(RequestError::Nul(field)));
    }
    assert_eq!(with("args", &json!(["a\0b"])), Err(RequestError::Nul("args")));
    assert!(with("stdin", &json!("a\0b")).is_ok(), "input may hold anything");
}

#[test]
fn size_and_depth_of_a_file_are_bounded() {
    let text = r#"{"id":"1","command":"true"}"#;
    let padded = |bytes: usize| text.to_owned() + &" ".repeat(bytes - text.len());
    assert_eq!(parse(&padded(MAX_REQUEST_BYTES)), Ok(plain()));
    let bytes = MAX_REQUEST_BYTES as u64 + 1;
    assert_eq!(parse(&padded(MAX_REQUEST_BYTES + 1)), Err(RequestError::TooLarge { bytes }));

    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        parse(&format!(r#"{{"id":"1","command":"true","new":{open}{close}}}"#))
    };
    assert_eq!(nested(MAX_DEPTH - 1), Ok(plain()));
    assert_eq!(nested(MAX_DEPTH), Err(RequestError::TooDeep));
    assert_eq!(nested(400_000), Err(RequestError::TooDeep));
    let brackets = json!("[".repeat(100) + "\\\"[");
    assert!(with("stdin", &brackets).is_ok(), "brackets in text nest nothing");
}

#[test]
fn a_target_is_compared_as_the_script_does() {
    let may = |target: Option<&str>, pack| ExecRequest { target: target.map(str::to_owned), ..plain() }.targets(pack);
    let mine = Some("My-Skill");
    for target in ["my-skill", "MY-SKILL", " my - skill\n", "\tm\x0by-\x0c skill\r", "", " \n"] {
        assert!(may(Some(target), mine), "{target:?}");
    }
    assert!(may(None, mine));
    // Another name, a Cyrillic `у`, a Kelvin sign, a non-breaking space, a dotless i, full width.
    for target in ["other", "my-skill2", "mу-skill", "my-s\u{212a}ill", "my-skill\u{a0}", "my-skıll", "ｍy-skill"] {
        assert!(!may(Some(target), mine), "{target:?}");
        assert!(may(Some(target), None) && may(Some(target), Some("")), "no pack takes anything");
    }
    assert!(!may(Some("x"), Some(" ")), "a blank pack is a pack");
    assert!(may(Some("É"), Some("É")) && !may(Some("É"), Some("é")));
}

#[test]
fn the_addressee_of_a_bad_request_is_known() {
    let draft = |text: &str| ExecRequest::parse_draft(text.as_bytes(), &id("1"));
    let other = draft(r#"{"id":"2","target":"b","args":3}"#);
    assert!(other.request.is_err());
    assert!(other.targets(Some("b")) && !other.targets(Some("a")));
    assert!(draft("{").targets(Some("a")), "the target is unknown, so every executor may refuse it");
}

#[test]
fn the_shell_line_is_the_command_and_quoted_words() {
    let line = |command: &str, args: &[&str]| {
        let args = args.iter().map(|word| (*word).to_owned()).collect();
        ExecRequest { args, ..ExecRequest::new(id("1"), command) }.shell_line()
    };
    assert_eq!(line("echo  hi\n", &[]), "echo  hi\n");
    assert_eq!(line("echo", &["a b", "", "it's", "$x"]), r"echo 'a b' '' 'it'\''s' '$x'");
    assert_eq!(line("echo\n\n", &["a"]), "echo 'a'", "a newline would end the command before its words");
}

#[test]
fn a_result_is_written_in_the_documented_order() {
    let mut result = ExecResult {
        id: id("1718100000000000000"),
        exit_code: 0,
        stdout: "Analysis complete: 3 issues found.".to_owned(),
        stderr: String::new(),
        timed_out: false,
        meta: None,
    };
    let text = |result: &ExecResult| String::from_utf8(result.to_json().unwrap()).unwrap();
    assert_eq!(
        text(&result),
        r#"{"id":"1718100000000000000","exitCode":0,"stdout":"Analysis complete: 3 issues found.","stderr":"","timedOut":false}"#
    );
    result.meta = Some(ResultMeta {
        truncated: Some(Truncated { stdout: true, stderr: false }),
        duration_millis: Some(7),
        isolation: Some(json!({"profile": "container"})),
        outcome: None,
    });
    assert!(text(&result).ends_with(
        r#","timedOut":false,"_meta":{"truncated":{"stdout":true,"stderr":false},"durationMillis":7,"isolation":{"profile":"container"}}}"#
    ));
    assert_eq!(ExecResult::parse(&result.to_json().unwrap(), &result.id), Ok(result));
}

fn parse_result(text: &str) -> Result<ExecResult, ResultError> {
    ExecResult::parse(text.as_bytes(), &id("1"))
}

#[test]
fn a_result_is_hostile_input() {
    let good = ExecResult {
        id: id("1"),
        exit_code: 3,
        stdout: "a".to_owned(),
        stderr: "b".to_owned(),
        timed_out: false,
        meta: None,
    };
    let whole = r#"{"id":"1","exitCode":3,"stdout":"a","stderr":"b""#;
    assert_eq!(parse_result(&format!("{whole}}}")), Ok(good.clone()), "timedOut may be missing");
    for meta in ["null", "3", "{\"outcome\":1}", &format!("\"{}\"", "x".repeat(MAX_META_BYTES))] {
        assert_eq!(parse_result(&format!("{whole},\"_meta\":{meta}}}")), Ok(good.clone()));
    }
    let wrong = |field, expected| ResultError::WrongType { field, expected };
    let cases = [
        (r#"{"exitCode":3,"stdout":"a","stderr":"b"}"#, ResultError::Missing("id")),
        (r#"{"id":"2","exitCode":3,"stdout":"a","stderr":"b"}"#, ResultError::OtherId),
        (r#"{"id":"1","stdout":"a","stderr":"b"}"#, ResultError::Missing("exitCode")),
        (r#"{"id":"1","exitCode":3,"stderr":"b"}"#, ResultError::Missing("stdout")),
        (r#"{"id":"1","exitCode":3,"stdout":"a"}"#, ResultError::Missing("stderr")),
        (r#"{"id":"1","exitCode":"3","stdout":"a","stderr":"b"}"#, wrong("exitCode", "a whole number")),
        (r#"{"id":"1","exitCode":3.5,"stdout":"a","stderr":"b"}"#, wrong("exitCode", "a whole number")),
        (r#"{"id":"1","exitCode":3,"stdout":["a"],"stderr":"b"}"#, wrong("stdout", "a string")),
        (r#"{"id":"1","exitCode":3,"stdout":"a","stderr":"b","timedOut":"no"}"#, wrong("timedOut", "true or false")),
        (r#"{"id":"1","exitCode":3,"exitCode":0,"stdout":"a","stderr":"b"}"#, ResultError::Duplicate("exitCode")),
        (whole, FieldsError::EndsEarly.into()),
        ("[]", FieldsError::NotAnObject.into()),
    ];
    for (text, problem) in cases {
        assert_eq!(parse_result(text), Err(problem), "{text}");
    }
    let bytes = MAX_RESULT_BYTES as u64 + 1;
    let large = vec![b' '; MAX_RESULT_BYTES + 1];
    assert_eq!(ExecResult::parse(&large, &id("1")), Err(ResultError::TooLarge { bytes }));
    assert!(parse_result(&format!("{whole},\"x\":{}", "[".repeat(500_000))).is_err());
}

#[test]
fn two_outputs_of_the_worst_bytes_fit_into_a_result() {
    let output = "\u{1}".repeat(51_200);
    let mut result = ExecResult::failed(id("1"), "refused", output.clone());
    result.stdout = output;
    assert_eq!(ExecResult::parse(&result.to_json().unwrap(), &id("1")), Ok(result.clone()));
    result.stdout = "x".repeat(MAX_RESULT_BYTES);
    assert!(matches!(result.to_json(), Err(ResultError::TooLarge { .. })));
}

#[test]
fn others_tell_a_timeout_by_their_exit_code() {
    let after = |exit_code, timed_out, elapsed| {
        let mut result = ExecResult::failed(id("1"), "", "");
        (result.exit_code, result.timed_out) = (exit_code, timed_out);
        result.timed_out_after(Duration::from_secs(elapsed), Duration::from_secs(30))
    };
    for code in [124, 137, 143] {
        assert!(after(code, false, 30));
        assert!(!after(code, false, 29), "the command chose that code");
    }
    assert!(!after(1, false, 31));
    assert!(after(0, true, 1));
}

fn any_request() -> impl Strategy<Value = ExecRequest> {
    let text = || "[^\0]{0,20}";
    let meta = option::of(proptest::collection::btree_map(".{0,5}", any::<i32>(), 0..4));
    let words = || vec(text(), 0..4);
    (
        ("[A-Za-z0-9_]{1,20}", text(), words(), option::of(text())),
        (option::of(any::<i64>()), option::of(".{0,9}"), words(), option::of(".{0,40}"), meta),
    )
        .prop_map(|((id, command, args, work_dir), (timeout, target, argv, stdin, meta))| {
            let meta = meta.map(|meta| meta.into_iter().map(|(key, value)| (key, json!(value))).collect());
            let id = RequestId::parse(&id).unwrap();
            let nothing = command.is_empty() && argv.is_empty();
            ExecRequest {
                id,
                command: if nothing { "true".to_owned() } else { command },
                args,
                work_dir,
                timeout,
                target,
                argv,
                stdin,
                meta,
            }
        })
}

proptest! {
    #[test]
    fn what_is_written_is_what_is_read(request in any_request()) {
        let json = request.to_json().unwrap();
        prop_assert_eq!(ExecRequest::parse(&json, &request.id), Ok(request));
    }

    #[test]
    fn no_prefix_of_a_request_is_a_request(request in any_request(), cut in any::<prop::sample::Index>()) {
        let json = request.to_json().unwrap();
        let prefix = &json[..cut.index(json.len())];
        prop_assert_eq!(ExecRequest::parse(prefix, &request.id), Err(RequestError::EndsEarly));
    }

    #[test]
    fn results_survive_the_way(exit_code: i64, stdout in ".{0,40}", stderr in ".{0,40}", timed_out: bool, millis: Option<u64>) {
        let meta = millis.map(|duration_millis| ResultMeta { duration_millis: Some(duration_millis), ..ResultMeta::default() });
        let result = ExecResult { id: id("r"), exit_code, stdout, stderr, timed_out, meta };
        prop_assert_eq!(ExecResult::parse(&result.to_json().unwrap(), &id("r")), Ok(result));
    }

    #[test]
    fn ids_are_taken_exactly_by_the_rule(text in "[a-z.\\-/_A ]{0,6}|.{0,4}") {
        let allowed = !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
            && !text.starts_with(['.', '-'])
            && !text.contains("..");
        prop_assert_eq!(RequestId::parse(&text).is_ok(), allowed);
    }
}
