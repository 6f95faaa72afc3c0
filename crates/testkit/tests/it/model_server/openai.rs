//! Chat completions, byte for byte.

use serde_json::json;
use sympozium_testkit::model_server::{Answer, ModelServer, ProviderError, Reply, Stop, ToolCall};

use super::client::{Client, Response};

const CHUNK: &str = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"gpt-4o","service_tier":"default","system_fingerprint":"fp_model_server","choices":["#;

/// An event with one choice: its delta, its finish reason, and what follows the choices.
fn event(delta: &str, finish: &str, after: &str) -> String {
    format!(
        "{CHUNK}{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]{after},\"obfuscation\":\"x\"}}\n\n"
    )
}

fn streamed(reply: impl Into<Reply>, options: serde_json::Value) -> Vec<String> {
    let server = ModelServer::start().unwrap();
    server.push(reply);
    let mut client = Client::new(&server);
    client.send_openai(options);
    assert_eq!(
        client.head(),
        "HTTP/1.1 200 OK\ncontent-type: text/event-stream; charset=utf-8\ncache-control: no-cache\n\
         x-request-id: req_1\ntransfer-encoding: chunked\n"
    );
    client.chunks()
}

#[test]
fn a_text_is_one_completion() {
    let server = ModelServer::start().unwrap();
    server.push(Answer::pieces(["Say \"", "ä\"\n"]).usage(120, 34));
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    let body = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"Say \"ä\"\n","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":120,"completion_tokens":34,"total_tokens":154,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"service_tier":"default","system_fingerprint":"fp_model_server"}"#;
    assert_eq!(
        client.response(),
        Response {
            head: format!(
                "HTTP/1.1 200 OK\ncontent-type: application/json\nx-request-id: req_1\ncontent-length: {}\n",
                body.len()
            ),
            body: body.into(),
        }
    );
}

#[test]
fn calls_of_tools_have_no_content_and_text_for_arguments() {
    let server = ModelServer::start().unwrap();
    server.push(Reply::tools([
        ToolCall::new("ls", &json!({"path": "/"})),
        ToolCall::new("id", &json!({})).id("call_mine"),
    ]));
    let mut client = Client::new(&server);
    client.send_openai(json!({"stream": false}));
    let body: serde_json::Value = serde_json::from_str(&client.response().body).unwrap();
    assert_eq!(
        body["choices"],
        json!([{"index": 0, "logprobs": null, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": null, "refusal": null, "annotations": [], "tool_calls": [
            {"id": "call_1_0", "type": "function", "function": {"name": "ls", "arguments": "{\"path\":\"/\"}"}},
            {"id": "call_mine", "type": "function", "function": {"name": "id", "arguments": "{}"}},
        ]}}])
    );
}

#[test]
fn a_stream_is_role_text_reason_and_done() {
    assert_eq!(
        streamed(Reply::pieces(["one ", "two"]), json!({"stream": true})),
        [
            event(r#"{"role":"assistant","content":"","refusal":null}"#, "null", ""),
            event(r#"{"content":"one "}"#, "null", ""),
            event(r#"{"content":"two"}"#, "null", ""),
            event("{}", r#""stop""#, ""),
            "data: [DONE]\n\n".into(),
        ]
    );
}

#[test]
fn usage_comes_last_and_without_choices_where_it_is_asked_for() {
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let later = r#","usage":null"#;
    assert_eq!(
        streamed(Answer::text("one").usage(5, 2).stop(Stop::Length), options),
        [
            event(r#"{"role":"assistant","content":"","refusal":null}"#, "null", later),
            event(r#"{"content":"one"}"#, "null", later),
            event("{}", r#""length""#, later),
            format!(
                "{CHUNK}{}",
                "],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7,\
                 \"prompt_tokens_details\":{\"cached_tokens\":0,\"audio_tokens\":0},\
                 \"completion_tokens_details\":{\"reasoning_tokens\":0,\"audio_tokens\":0,\
                 \"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}},\"obfuscation\":\"x\"}\n\n"
            ),
            "data: [DONE]\n\n".into(),
        ]
    );
}

#[test]
fn streamed_arguments_come_in_pieces_by_index() {
    let calls = [ToolCall::new("ls", &json!({"p": "é"})).in_pieces_of(4), ToolCall::new("id", &json!({}))];
    let delta = |call: &str| event(&format!(r#"{{"tool_calls":[{call}]}}"#), "null", "");
    assert_eq!(
        streamed(Reply::tools(calls), json!({"stream": true})),
        [
            event(r#"{"role":"assistant","content":null,"refusal":null}"#, "null", ""),
            delta(r#"{"index":0,"id":"call_1_0","type":"function","function":{"name":"ls","arguments":""}}"#),
            delta(r#"{"index":0,"function":{"arguments":"{\"p\""}}"#),
            delta(r#"{"index":0,"function":{"arguments":":\"é\""}}"#),
            delta(r#"{"index":0,"function":{"arguments":"}"}}"#),
            delta(r#"{"index":1,"id":"call_1_1","type":"function","function":{"name":"id","arguments":""}}"#),
            delta(r#"{"index":1,"function":{"arguments":"{}"}}"#),
            event("{}", r#""tool_calls""#, ""),
            "data: [DONE]\n\n".into(),
        ]
    );
}

#[test]
fn a_stream_may_break_with_an_error() {
    let error = ProviderError::new(500, "Out of luck");
    let events = streamed(Answer::text("one").then_error(error), json!({"stream": true}));
    assert_eq!(
        events[1..],
        [
            event(r#"{"content":"one"}"#, "null", ""),
            "data: {\"error\":{\"message\":\"Out of luck\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n"
                .into(),
        ]
    );
}
