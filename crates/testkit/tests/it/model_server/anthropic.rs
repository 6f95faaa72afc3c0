//! Messages, byte for byte.

use serde_json::{Value, json};
use sympozium_testkit::model_server::{Answer, ModelServer, ProviderError, Reply, Stop, ToolCall};

use super::client::{Client, Response};

fn event(name: &str, rest: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\"{rest}}}\n\n")
}

fn opening(input: u64) -> String {
    event(
        "message_start",
        &format!(
            r#","message":{{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet","content":[],"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{input},"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1,"service_tier":"standard"}}}}"#
        ),
    )
}

fn block(index: u64, content: &str) -> String {
    event("content_block_start", &format!(r#","index":{index},"content_block":{content}"#))
}

fn delta(index: u64, delta: &str) -> String {
    event("content_block_delta", &format!(r#","index":{index},"delta":{delta}"#))
}

fn stop(index: u64) -> String {
    event("content_block_stop", &format!(r#","index":{index}"#))
}

fn ending(reason: &str, output: u64) -> [String; 2] {
    let rest =
        format!(r#","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{"output_tokens":{output}}}"#);
    [event("message_delta", &rest), event("message_stop", "")]
}

fn streamed(reply: impl Into<Reply>) -> Vec<String> {
    let server = ModelServer::start().unwrap();
    server.push(reply);
    let mut client = Client::new(&server);
    client.send_anthropic(json!({"stream": true}));
    assert_eq!(
        client.head(),
        "HTTP/1.1 200 OK\ncontent-type: text/event-stream; charset=utf-8\ncache-control: no-cache\n\
         request-id: req_1\ntransfer-encoding: chunked\n"
    );
    client.chunks()
}

#[test]
fn a_text_is_one_message() {
    let server = ModelServer::start().unwrap();
    server.push(Answer::pieces(["Say \"", "ä\"\n"]).usage(120, 34));
    let mut client = Client::new(&server);
    client.send_anthropic(json!({}));
    let body = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet","content":[{"type":"text","text":"Say \"ä\"\n"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":120,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":34,"service_tier":"standard"}}"#;
    assert_eq!(
        client.response(),
        Response {
            head: format!(
                "HTTP/1.1 200 OK\ncontent-type: application/json\nrequest-id: req_1\ncontent-length: {}\n",
                body.len()
            ),
            body: body.into(),
        }
    );
}

#[test]
fn text_and_calls_are_blocks_of_one_message() {
    let server = ModelServer::start().unwrap();
    let call = ToolCall::new("ls", &json!({"path": "/"}));
    server.push(Answer::text("Look:").tool(call));
    let mut client = Client::new(&server);
    client.send_anthropic(json!({}));
    let body: Value = serde_json::from_str(&client.response().body).unwrap();
    assert_eq!(
        (&body["content"], &body["stop_reason"]),
        (
            &json!([
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "toolu_1_0", "name": "ls", "input": {"path": "/"}},
            ]),
            &json!("tool_use")
        )
    );
}

#[test]
fn a_streamed_text_is_one_block() {
    let answer = Answer::pieces(["one ", "two"]).usage(25, 15).stop(Stop::Length);
    let [end, over] = ending("max_tokens", 15);
    assert_eq!(
        streamed(answer),
        [
            opening(25),
            block(0, r#"{"type":"text","text":""}"#),
            event("ping", ""),
            delta(0, r#"{"type":"text_delta","text":"one "}"#),
            delta(0, r#"{"type":"text_delta","text":"two"}"#),
            stop(0),
            end,
            over,
        ]
    );
}

#[test]
fn streamed_calls_are_blocks_after_the_text() {
    let answer = Answer::text("Look:")
        .tool(ToolCall::new("ls", &json!({"path": "/"})).in_pieces_of(8))
        .tool(ToolCall::new("id", &json!({})).id("toolu_mine"));
    let [end, over] = ending("tool_use", 7);
    let input = |index, piece: &str| {
        let piece = Value::from(piece);
        let piece = format!(r#"{{"type":"input_json_delta","partial_json":{piece}}}"#);
        delta(index, &piece)
    };
    assert_eq!(
        streamed(answer),
        [
            opening(11),
            block(0, r#"{"type":"text","text":""}"#),
            event("ping", ""),
            delta(0, r#"{"type":"text_delta","text":"Look:"}"#),
            stop(0),
            block(1, r#"{"type":"tool_use","id":"toolu_1_0","name":"ls","input":{}}"#),
            input(1, ""),
            input(1, r#"{"path":"#),
            input(1, r#""/"}"#),
            stop(1),
            block(2, r#"{"type":"tool_use","id":"toolu_mine","name":"id","input":{}}"#),
            input(2, ""),
            input(2, "{}"),
            stop(2),
            end,
            over,
        ]
    );
}

#[test]
fn a_stream_may_break_with_an_error() {
    let error = ProviderError::new(529, "Overloaded");
    let events = streamed(Answer::text("one").then_error(error));
    assert_eq!(
        events[3..],
        [
            delta(0, r#"{"type":"text_delta","text":"one"}"#),
            stop(0),
            event("error", r#","error":{"type":"overloaded_error","message":"Overloaded"}"#),
        ]
    );
}
