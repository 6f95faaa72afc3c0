use proptest::prelude::*;
use serde_json::{Value, json};
use sympozium_api::RunPlan;

use super::*;

const OPEN_AI: WireFormat = WireFormat::OpenAi;
const ANTHROPIC: WireFormat = WireFormat::Anthropic;

fn rules(wire: WireFormat) -> RequestRules {
    RequestRules {
        wire,
        model: "m-1".to_owned(),
        tools: ["execute_command", "read_file"].map(str::to_owned).into(),
        max_bytes: 100_000,
        requests_usage: wire == OPEN_AI,
    }
}

/// The forwarded request, or the error.
fn sent(wire: WireFormat, body: &str) -> Result<String, String> {
    let accepted = rules(wire).check(&Bytes::copy_from_slice(body.as_bytes()));
    let accepted = accepted.map_err(|refusal| {
        assert_eq!(refusal.code, RefusalCode::Request);
        let why = refusal.message.strip_prefix("the request to the model is refused: ");
        why.expect("it says so").to_owned()
    })?;
    let bytes = accepted.pieces.concat();
    assert_eq!(total_length(&accepted.pieces), bytes.len() as u64);
    Ok(String::from_utf8(bytes).expect("UTF-8"))
}

/// With these fields beside `model` and `messages`.
fn with(wire: WireFormat, more: &str) -> Result<String, String> {
    sent(wire, &format!(r#"{{"model":"m-1","messages":[],{more}}}"#))
}

fn function(more: &str) -> String {
    format!(r#""tools":[{{"type":"function","function":{{"name":"read_file"{more}}}}}]"#)
}

#[test]
fn what_runners_send_goes_out_as_it_came() {
    for (wire, body) in [
        (OPEN_AI, r#"{"model":"m-1","messages":[{"role":"user","content":"\u0061 \ud800 1e999"}]}"#),
        (OPEN_AI, " {\r\n\t\"messages\" : [ ] , \"mod\\u0065l\" : \"m\\u002d1\" } \n"),
        (
            OPEN_AI,
            r#"{"model":"m-1","messages":[],"n":1,"stream":false,"temperature":0.1,"top_k":40,"min_p":0.05,"repetition_penalty":1.1,"seed":7,"stop":["x"],"response_format":{"type":"json_object"},"reasoning_effort":"low","parallel_tool_calls":true,"max_completion_tokens":5,"tool_choice":"auto"}"#,
        ),
        (
            OPEN_AI,
            r#"{"model":"m-1","messages":[],"tools":[{"function":{"strict":true,"parameters":{"type":"object","x":1,"x":2},"description":"d","name":"read_file"},"type":"function"}],"tool_choice":{"type":"function","function":{"name":"read_file"}}}"#,
        ),
        (OPEN_AI, r#"{"stream_options":{"include_usage":true},"model":"m-1","messages":[],"stream":true}"#),
        (OPEN_AI, r#"{"stream_options":{"include_usage":false},"model":"m-1","messages":[]}"#),
        (
            ANTHROPIC,
            r#"{"model":"m-1","max_tokens":10,"system":[{"type":"text","text":"s"}],"messages":[],"stream":true,"thinking":{"type":"enabled","budget_tokens":1024},"metadata":{"user_id":"u"},"stop_sequences":[],"top_k":1}"#,
        ),
        (
            ANTHROPIC,
            r#"{"model":"m-1","messages":[],"tools":[{"name":"read_file","input_schema":{}},{"type":"custom","name":"execute_command","description":"d","input_schema":{},"cache_control":{"type":"ephemeral"}}],"tool_choice":{"type":"tool","name":"read_file","disable_parallel_tool_use":true}}"#,
        ),
    ] {
        assert_eq!(sent(wire, body).as_deref(), Ok(body));
    }
}

#[test]
fn a_stream_is_always_asked_for_what_it_cost() {
    let usage = r#""stream_options":{"include_usage":true}"#;
    for (body, expected) in [
        (
            r#" {"model":"m-1","stream":true,"messages":[]}"#.to_owned(),
            format!(r#" {{{usage},"model":"m-1","stream":true,"messages":[]}}"#),
        ),
        (
            r#"{"model":"m-1","stream":true,"messages":[],"stream_options": { "include_usage" :false } ,"seed":1}"#
                .to_owned(),
            r#"{"model":"m-1","stream":true,"messages":[],"stream_options": {"include_usage":true} ,"seed":1}"#
                .to_owned(),
        ),
        (
            r#"{"stream_\u006fptions":{},"model":"m-1","stream":true,"messages":[]}"#.to_owned(),
            r#"{"stream_\u006fptions":{"include_usage":true},"model":"m-1","stream":true,"messages":[]}"#.to_owned(),
        ),
    ] {
        assert_eq!(sent(OPEN_AI, &body), Ok(expected));
    }
    // Some providers report the usage without being asked, and reject the option.
    let mut mistral = rules(OPEN_AI);
    mistral.requests_usage = false;
    let body = Bytes::from_static(br#"{"model":"m-1","stream":true,"messages":[]}"#);
    let accepted = mistral.check(&body).map(|checked| checked.pieces.concat());
    assert_eq!(accepted, Ok(body.to_vec()));
    let body = r#"{"model":"m-1","stream":true,"messages":[]}"#;
    assert_eq!(sent(ANTHROPIC, body).as_deref(), Ok(body));
}

#[test]
fn what_a_provider_would_do_by_itself_is_refused_by_name() {
    let acts = "cannot be used here: what a provider would act on or keep by itself is not passed on";
    for (wire, field) in [
        (OPEN_AI, "web_search_options"),
        (OPEN_AI, "store"),
        (OPEN_AI, "background"),
        (OPEN_AI, "previous_response_id"),
        (OPEN_AI, "metadata"),
        (OPEN_AI, "service_tier"),
        (OPEN_AI, "plugins"),
        (OPEN_AI, "models"),
        (OPEN_AI, "functions"),
        (OPEN_AI, "extra_body"),
        (OPEN_AI, "Tools"),
        (OPEN_AI, "system"),
        (ANTHROPIC, "mcp_servers"),
        (ANTHROPIC, "container"),
        (ANTHROPIC, "service_tier"),
        (ANTHROPIC, "context_management"),
        (ANTHROPIC, "stream_options"),
        (ANTHROPIC, "n"),
    ] {
        let value = if field == "n" { "1" } else { "{}" };
        assert_eq!(with(wire, &format!(r#""{field}":{value}"#)), Err(format!("the field `{field}` {acts}")),);
    }
    assert_eq!(
        with(OPEN_AI, r#""store":true,"b\u0061ckground":true,"x\u001b[2J":1"#),
        Err(format!("the fields `background`, `store`, `x\\u{{1b}}[2J` {acts}"))
    );
    let many: Vec<String> = (10..40).map(|number| format!(r#""x{number}":1"#)).collect();
    let refused = with(OPEN_AI, &many.join(",")).expect_err("none of them is known");
    assert!(refused.contains("`x25`, 14 more cannot be used"), "{refused}");
    let many: Vec<String> = (0..70).map(|number| format!(r#""x{number}":1"#)).collect();
    assert_eq!(with(OPEN_AI, &many.join(",")), Err("it has more than 64 fields".to_owned()));
}

#[test]
fn no_field_is_there_twice() {
    for more in [r#""model":"m-2""#, r#""mod\u0065l":"m-1""#, r#""messages":[]"#, r#""tools":[],"t\u006fols":[]"#] {
        let refused = with(OPEN_AI, more).expect_err("twice");
        assert!(refused.ends_with("is there twice"), "{refused}");
    }
    assert_eq!(
        with(OPEN_AI, &function(r#","n\u0061me":"read_file""#)),
        Err("`tools[0].function` has `name` twice".to_owned())
    );
}

#[test]
fn only_functions_of_the_run_are_offered() {
    let on = "only functions that the run has can be offered, nothing that the provider acts on";
    for (wire, tools, expected) in [
        (OPEN_AI, r#"[{"type":"web_search"}]"#, format!("`tools[0]` is of type `web_search`: {on}")),
        (OPEN_AI, r#"[{"type":"mcp","server_url":"https://x"}]"#, format!("`tools[0]` is of type `mcp`: {on}")),
        (
            ANTHROPIC,
            r#"[{"type":"web_search_20250305","name":"read_file"},{"type":"bash_20250124","name":"read_file"},{"type":"computer_20250124"},{"type":"code_execution_20250522"}]"#,
            ["web_search_20250305", "bash_20250124", "computer_20250124", "code_execution_20250522"]
                .iter()
                .enumerate()
                .map(|(index, name)| format!("`tools[{index}]` is of type `{name}`: {on}"))
                .collect::<Vec<_>>()
                .join("; "),
        ),
        (
            OPEN_AI,
            r#"[{"type":"function","function":{"name":"write_file"}},{"type":"function","function":{"name":"rm"}}]"#,
            "the run has no such tools: `rm`, `write_file`".to_owned(),
        ),
        (
            OPEN_AI,
            r#"[{"type":"function","function":{"name":"read_file"}},{"type":"function","function":{"name":"read_file"}}]"#,
            "the tool `read_file` is offered twice".to_owned(),
        ),
        (
            OPEN_AI,
            r#"[{"type":"function","function":{"name":"read_file"},"server_label":"x"}]"#,
            "`tools[0]` cannot have `server_label`".to_owned(),
        ),
        (
            OPEN_AI,
            r#"[{"type":"function","function":{"name":"read_file","url":"x"}}]"#,
            "`tools[0].function` cannot have `url`".to_owned(),
        ),
        (
            OPEN_AI,
            r#"[{"type":"function","function":{"name":"read_file","parameters":"x"}}]"#,
            "`tools[0].function.parameters` is not what it must be".to_owned(),
        ),
        (OPEN_AI, r#"[{"function":{"name":"read_file"}}]"#, "`tools[0]` has no `type`".to_owned()),
        (OPEN_AI, r#"[{"type":1}]"#, "`tools[0].type` must be a text".to_owned()),
        (OPEN_AI, r#"["web_search"]"#, "`tools[0]` must be an object".to_owned()),
        (OPEN_AI, "{}", "`tools` must be a list".to_owned()),
        (OPEN_AI, "null", "`tools` must be a list".to_owned()),
        (
            ANTHROPIC,
            r#"[{"name":"read_file","input_schema":{},"allowed_callers":["code_execution_20250825"]}]"#,
            "`tools[0]` cannot have `allowed_callers`".to_owned(),
        ),
        (ANTHROPIC, r#"[{"name":"read_file"}]"#, "`tools[0]` has no `input_schema`".to_owned()),
    ] {
        assert_eq!(with(wire, &format!(r#""tools":{tools}"#)), Err(expected), "{tools}");
    }
}

#[test]
fn only_tools_of_the_run_are_chosen() {
    for (wire, choice, expected) in [
        (OPEN_AI, r#""none""#, None),
        (OPEN_AI, r#""required""#, None),
        (OPEN_AI, r#""web_search""#, Some("`tool_choice` cannot be `web_search`")),
        (OPEN_AI, r#"{"type":"function","function":{"name":"rm"}}"#, Some("the run has no tool `rm` to choose")),
        (
            OPEN_AI,
            r#"{"type":"function","function":{"name":"read_file","description":"d"}}"#,
            Some("`tool_choice.function` cannot have `description`"),
        ),
        (ANTHROPIC, r#"{"type":"any"}"#, None),
        (ANTHROPIC, r#"{"type":"tool","name":"rm"}"#, Some("the run has no tool `rm` to choose")),
        (ANTHROPIC, r#"{"type":"tool"}"#, Some("`tool_choice` cannot be of type `tool`")),
        (ANTHROPIC, r#"{"type":"mcp"}"#, Some("`tool_choice` cannot be of type `mcp`")),
        (ANTHROPIC, r#""auto""#, Some("`tool_choice` must be an object")),
    ] {
        let answer = with(wire, &format!(r#""tool_choice":{choice}"#)).err();
        assert_eq!(answer.as_deref(), expected, "{choice}");
    }
}

#[test]
fn the_rest_of_the_top_level_is_what_it_must_be() {
    let json = "it is not a JSON object: ";
    for (body, expected) in [
        ("", json),
        ("[]", json),
        ("null", json),
        (r#"{"model":"m-1","messages":[]}}"#, json),
        (r#"{"model":"m-1","messages":[],}"#, json),
        (r#"{"model":"m-1","messages":[1,]}"#, json),
        ("{\"model\":\"m-1\",\"messages\":[\"\u{1}\"]}", json),
        (r#"{"messages":[]}"#, "`model` must be `m-1`"),
        (r#"{"model":"m-2","messages":[]}"#, "`model` must be `m-1`"),
        (r#"{"model":["m-1"],"messages":[]}"#, "`model` must be `m-1`"),
        (r#"{"model":"m-1"}"#, "`messages` must be a list"),
        (r#"{"model":"m-1","messages":{}}"#, "`messages` must be a list"),
        (r#"{"model":"m-1","messages":[],"stream":1}"#, "`stream` must be true or false"),
        (r#"{"model":"m-1","messages":[],"stream":null}"#, "`stream` must be true or false"),
        (r#"{"model":"m-1","messages":[],"n":2}"#, "`n` must be 1"),
        (r#"{"model":"m-1","messages":[],"n":1.0}"#, "`n` must be 1"),
        (
            r#"{"model":"m-1","messages":[],"stream_options":{"x":true}}"#,
            "`stream_options` can say `include_usage` and nothing else",
        ),
        (
            r#"{"model":"m-1","messages":[],"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}"#,
            "`stream_options` can say `include_usage` and nothing else",
        ),
    ] {
        let refused = sent(OPEN_AI, body).expect_err(body);
        match expected {
            prefix if prefix == json => assert!(refused.starts_with(prefix), "{refused}"),
            whole => assert_eq!(refused, whole, "{body}"),
        }
    }
    // All errors at once.
    assert_eq!(
        sent(OPEN_AI, r#"{"stream":0,"n":0}"#),
        Err("`model` must be `m-1`; `stream` must be true or false; `n` must be 1; `messages` must be a list"
            .to_owned())
    );
    let invalid = Bytes::from_static(b"{\"model\":\"m-1\",\"messages\":[\"\xff\"]}");
    assert!(rules(OPEN_AI).check(&invalid).is_err());
}

#[test]
fn bounds_hold_on_both_sides() {
    for (levels, fits) in [(MAX_DEPTH - 1, true), (MAX_DEPTH, false), (40_000, false)] {
        let body = format!(
            r#"{{"model":"m-1","messages":[],"response_format":{}{}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        );
        assert_eq!(sent(OPEN_AI, &body).is_ok(), fits, "{levels}");
    }
    // Brackets in strings are not levels.
    let text = r#"[\"\\"#.repeat(MAX_DEPTH);
    assert!(sent(OPEN_AI, &format!(r#"{{"model":"m-1","messages":["{text}"]}}"#)).is_ok());
    for (bytes, code) in [(100_000, None), (100_001, Some(RefusalCode::Size))] {
        let start = r#"{"model":"m-1","messages":[""#;
        let text = "x".repeat(bytes - start.len() - 3);
        let body = Bytes::from(format!(r#"{start}{text}"]}}"#));
        let refused = rules(OPEN_AI).check(&body).err();
        assert_eq!(refused.map(|refusal| refusal.code), code, "{bytes}");
    }
    for (count, fits) in [(MAX_TOOLS, true), (MAX_TOOLS + 1, false)] {
        let mut rules = rules(OPEN_AI);
        let names: Vec<String> = (0..count).map(|number| format!("t{number}")).collect();
        let tool = |name: &String| json!({ "type": "function", "function": { "name": name } });
        let tools: Vec<Value> = names.iter().map(tool).collect();
        rules.tools = names.into_iter().collect();
        let body = json!({ "model": "m-1", "messages": [], "tools": tools }).to_string();
        assert_eq!(rules.check(&Bytes::from(body)).is_ok(), fits, "{count}");
    }
}

#[test]
fn content_that_is_elsewhere_is_refused() {
    let image = r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]"#;
    let system = r#"[{"type":"document","source":{"type":"file","file_id":"f"}}]"#;
    let elsewhere = |name: &str, field: &str| {
        format!("`{name}` must not have content elsewhere, as in `{field}`: send it inline, as `data:`")
    };
    assert_eq!(sent(OPEN_AI, &format!(r#"{{"model":"m-1","messages":{image}}}"#)), Err(elsewhere("messages", "url")));
    assert_eq!(with(ANTHROPIC, &format!(r#""system":{system}"#)), Err(elsewhere("system", "file_id")));
}

#[test]
fn a_denied_tool_of_a_plan_cannot_be_offered() {
    const STORED: &[u8] = include_bytes!("../../../../plan/src/plan/tests/fixtures/plan-v1.json");
    let mut plan: Value = serde_json::from_slice(STORED).expect("JSON");
    let tool = |name: &str, gate: &str| {
        json!({
            "name": name, "gate": gate, "acts": { "by": "agent" }, "description": "d", "parameters": {},
            "limits": { "timeoutSeconds": 1, "argumentBytes": 1, "outputBytes": 1, "concurrent": 1, "perMinute": 1 },
        })
    };
    plan["tools"] =
        json!([tool("a", "allow"), tool("b", "ask"), tool("c", "deny"), tool("d", "deny"), tool("d", "allow")]);
    let plan: RunPlan = serde_json::from_value(plan).expect("a plan");
    let expected = RequestRules {
        wire: ANTHROPIC,
        model: "claude-sonnet-4-5".to_owned(),
        tools: ["a", "b", "d"].map(str::to_owned).into(),
        max_bytes: 16 << 20,
        requests_usage: false,
    };
    assert_eq!(RequestRules::new(&plan), expected);
}

/// JSON of any kind, a few levels deep.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    /// An accepted request is forwarded unchanged, except that a stream asks for its usage.
    #[test]
    fn allowed_requests_go_out_as_they_came(
        messages in prop::collection::vec(value(), 0..4),
        more in prop::collection::btree_map(
            prop::sample::select(vec!["temperature", "stop", "response_format", "logit_bias", "user", "seed"]), value(), 0..4),
        streamed in prop::option::of(any::<bool>()),
        options in prop::option::of(prop::option::of(any::<bool>())),
        pretty in any::<bool>(),
    ) {
        let mut body: serde_json::Map<String, Value> = more.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        body.insert("model".to_owned(), json!("m-1"));
        body.insert("messages".to_owned(), messages.into());
        if let Some(streamed) = streamed {
            body.insert("stream".to_owned(), json!(streamed));
        }
        if let Some(options) = options {
            let options = options.map_or_else(|| json!({}), |include_usage| json!({ "include_usage": include_usage }));
            body.insert("stream_options".to_owned(), options);
        }
        let body = Value::Object(body);
        let text = if pretty { format!("{body:#}") } else { body.to_string() };
        let out = sent(OPEN_AI, &text).expect("all of it is allowed");
        let asks = |body: &Value| body["stream_options"]["include_usage"] == json!(true);
        if streamed != Some(true) || asks(&body) {
            prop_assert_eq!(out, text);
        } else {
            let mut expected = body;
            expected["stream_options"] = json!({ "include_usage": true });
            prop_assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), expected);
        }
    }
}
