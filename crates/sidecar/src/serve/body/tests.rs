use super::*;

fn message(body: &str) -> String {
    Call::parse(body.as_bytes()).unwrap_err().message
}

#[test]
fn a_whole_request_is_read() {
    let body = r#"{"args": ["a", "-b"], "env": {"SKILL_FOO": "bar"}, "stdin": "in", "timeout": 7}"#;
    let call = Call {
        args: vec!["a".to_owned(), "-b".to_owned()],
        env: vec![("SKILL_FOO".to_owned(), "bar".to_owned())],
        stdin: "in".to_owned(),
        timeout: Duration::from_secs(7),
    };
    assert_eq!(Call::parse(body.as_bytes()), Ok(call));
}

#[test]
fn an_empty_body_is_the_default_call() {
    for body in ["", " \n", "{}", r#"{"stdin": null, "timeout": null}"#] {
        assert_eq!(Call::parse(body.as_bytes()), Ok(Call::default()), "{body}");
    }
}

#[test]
fn long_timeouts_are_clamped_and_make_a_task() {
    for (seconds, expected, is_long) in [
        ("1", 1, false),
        ("30", 30, false),
        ("31", 31, true),
        ("300", 300, true),
        ("301", 300, true),
        ("18446744073709551615", 300, true),
    ] {
        let call = Call::parse(format!("{{\"timeout\": {seconds}}}").as_bytes()).unwrap();
        assert_eq!((call.timeout.as_secs(), call.is_long()), (expected, is_long));
    }
}

#[test]
fn errors_name_the_field() {
    let whole = "expected a whole number of seconds, at least 1";
    let cases = [
        ("{\"timeout\": 0}", format!("timeout: invalid value: integer `0`, {whole}")),
        ("{\"timeout\": -1}", format!("timeout: invalid type: integer `-1`, {whole}")),
        ("{\"timeout\": 1.5}", format!("timeout: invalid type: floating point `1.5`, {whole}")),
        ("{\"timeout\": 1e9}", format!("timeout: invalid type: floating point `1000000000.0`, {whole}")),
        ("{\"timeout\": \"5\"}", format!("timeout: invalid type: string \"5\", {whole}")),
        ("{\"timeout\": [5]}", format!("timeout: invalid type: sequence, {whole}")),
        ("{\"args\": \"x\"}", "args: invalid type: string \"x\", expected a list of strings".to_owned()),
        ("{\"args\": [1]}", "args: invalid type: integer `1`, expected a string".to_owned()),
        ("{\"args\": null}", "args: invalid type: null, expected a list of strings".to_owned()),
        ("{\"args\": [\"a\\u0000\"]}", "args: number 0 contains a NUL character".to_owned()),
        ("{\"args\": [], \"args\": []}", "args: given twice".to_owned()),
        (
            "{\"env\": [\"SKILL_A\"]}",
            "env: invalid type: sequence, expected an object whose values are strings".to_owned(),
        ),
        ("{\"env\": {\"SKILL_A\": 1}}", "env: invalid type: integer `1`, expected a string".to_owned()),
        (
            "{\"env\": {\"PATH\": \"x\"}}",
            "env: environment variable \"PATH\" is not allowed: names must match SKILL_[A-Za-z0-9_]+".to_owned(),
        ),
        (
            "{\"env\": {\"SKILL_A\": \"x\", \"SKILL_A\": \"y\"}}",
            "env: environment variable \"SKILL_A\" is given twice".to_owned(),
        ),
        ("{\"stdin\": 1}", "stdin: invalid type: integer `1`, expected a string".to_owned()),
        ("[]", "invalid type: sequence, expected an object with the fields args, env, stdin and timeout".to_owned()),
        ("{} {}", "the body is not valid JSON: trailing characters".to_owned()),
        ("{", "the body is not valid JSON: EOF while parsing an object".to_owned()),
        ("\u{feff}{}", "the body is not valid JSON: expected value".to_owned()),
    ];
    for (body, expected) in cases {
        let message = message(body);
        let without_position = message.split(" at line ").next();
        assert_eq!(without_position, Some(expected.as_str()), "{body}");
    }
}

#[test]
fn variables_without_the_prefix_are_refused_in_every_spelling() {
    for name in [
        "LD_PRELOAD",
        "PATH",
        "BASH_ENV",
        "SKILL_",
        "SKILL_X\\n",
        "SKILL_X=",
        "skill_x",
        "Skill_X",
        " SKILL_X",
        "SKILL_TOKEN",
        "SKILL_TOKEN_FILE",
        "SKILL_Token",
        "",
    ] {
        let body = format!("{{\"env\": {{\"{name}\": \"x\"}}}}");
        assert!(message(&body).starts_with("env: environment variable "), "{name}");
    }
}

#[test]
fn every_bound_has_two_sides() {
    let list = |count: usize| format!("{{\"args\": [{}]}}", vec!["\"\""; count].join(","));
    assert_eq!(Call::parse(list(MAX_ARGS).as_bytes()).unwrap().args.len(), MAX_ARGS);
    assert!(message(&list(MAX_ARGS + 1)).starts_with("args: more than 4095 arguments"));

    let argument = |bytes: usize| format!("{{\"args\": [\"{}\"]}}", "x".repeat(bytes));
    assert!(Call::parse(argument(MAX_ARGUMENT_BYTES).as_bytes()).is_ok());
    let text = message(&argument(MAX_ARGUMENT_BYTES + 1));
    assert!(text.starts_with("args: number 0 has more than 131071 bytes"), "{text}");

    let variables = |count: usize| {
        let all: Vec<_> = (0..count).map(|at| format!("\"SKILL_{at}\": \"\"")).collect();
        format!("{{\"env\": {{{}}}}}", all.join(","))
    };
    assert!(Call::parse(variables(MAX_REQUEST_VARIABLES).as_bytes()).is_ok());
    let text = message(&variables(MAX_REQUEST_VARIABLES + 1));
    assert!(text.starts_with("env: more than 256 variables"), "{text}");

    let value = format!("{{\"env\": {{\"SKILL_A\": \"{}\"}}}}", "x".repeat(200_000));
    assert!(message(&value).contains("at most 131071 are allowed"));
}

#[test]
fn a_mistyped_field_gets_a_hint() {
    for (field, hint) in [
        ("arg", Some("did you mean \"args\"?")),
        ("Args", Some("did you mean \"args\"?")),
        ("argv", Some("did you mean \"args\"?")),
        ("arguments", None),
        ("environment", Some("did you mean \"env\"?")),
        ("timeout_seconds", Some("did you mean \"timeout\"?")),
        ("tiemout", Some("did you mean \"timeout\"?")),
        ("input", None),
    ] {
        let error = Call::parse(format!("{{\"{field}\": 1}}").as_bytes()).unwrap_err();
        assert_eq!(error.hint.as_deref(), hint, "{field}");
        let start = format!("unknown field `{field}`, expected one of `args`, `env`, `stdin`, `timeout`");
        assert!(error.message.starts_with(&start), "{}", error.message);
    }
}

#[test]
fn repeated_input_is_truncated() {
    let error = Call::parse(format!("{{\"{}\": 1}}", "x".repeat(100_000)).as_bytes()).unwrap_err();
    assert_eq!(error.message.chars().count(), MAX_MESSAGE.0);
    let deep = format!("{{\"args\": {}", "[".repeat(100_000));
    assert!(message(&deep).len() < 2 * MAX_MESSAGE.0);
}
