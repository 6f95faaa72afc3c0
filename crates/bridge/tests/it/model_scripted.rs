//! A scripted model, asked as the agent asks.

use std::sync::Arc;

use serde_json::{Value, json};
use sympozium_bridge::egress_client::{EgressClient, GatewayAddress};
use sympozium_bridge::model::{Model, ModelError, ModelParts, ModelUsage};
use sympozium_ipc::door::RefusalCode;

use crate::model_harness::{ask, plan, request};

fn scripted(script: &str, limits: &Value) -> Result<Arc<Model>, ModelError> {
    let plan = plan(json!({ "provider": "scripted", "model": "m-1", "wire": "openAi", "script": "m-1" }), limits);
    // There is no server, and none is called.
    let nowhere = GatewayAddress::Unix("/nonexistent/gateway.sock".into());
    Model::new(ModelParts {
        plan: &plan,
        egress: Arc::new(EgressClient::new(nowhere, None).expect("a way")),
        credential: None,
        key: None,
        headers: Vec::new(),
        script: Some(script.as_bytes().to_vec()),
    })
    .map(Arc::new)
}

fn model(script: &str, limits: Value) -> Arc<Model> {
    scripted(script, &limits).expect("a model")
}

/// What a runner sends with these messages.
fn with(messages: &[Value]) -> Value {
    json!({
        "model": "m-1",
        "messages": messages,
        "tools": [{ "type": "function", "function": { "name": "read_file", "parameters": { "type": "object" } } }],
    })
}

/// The one script of the guide.
fn example() -> String {
    const GUIDE: &str = include_str!("../../../../docs/scripted-model.md");
    let after = GUIDE.split_once("```yaml\n").expect("an example").1;
    after.split_once("```").expect("its end").0.to_owned()
}

#[tokio::test]
async fn the_example_of_the_guide_plays() {
    let model = model(&example(), json!({}));
    let mut messages = vec![json!({ "role": "user", "content": "Please count the lines of notes.txt." })];
    let (answer, told) = ask(&model, &with(&messages)).await;
    let answer: Value = serde_json::from_str(&answer.expect("an answer").body).expect("JSON");
    let message = answer["choices"][0]["message"].clone();
    assert_eq!(
        message["tool_calls"],
        json!([{
            "id": "call_1_1", "type": "function",
            "function": { "name": "read_file", "arguments": r#"{"path":"/workspace/notes.txt"}"# },
        }])
    );
    assert_eq!((told.input_tokens, told.output_tokens, told.estimated), (Some(40), Some(12), false));
    messages.push(message);
    messages.push(json!({ "role": "tool", "tool_call_id": "call_1_1", "content": "one\ntwo\n" }));
    let (answer, _) = ask(&model, &with(&messages)).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.status, answer.headers["retry-after"].as_bytes()), (429, &b"1"[..]));
    let (answer, _) = ask(&model, &with(&messages)).await;
    let answer: Value = serde_json::from_str(&answer.expect("an answer").body).expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"], json!("There are two lines."));
    let (answer, _) = ask(&model, &with(&messages)).await;
    assert_eq!(
        answer.expect_err("it has ended").message,
        "the script of the model has no answer: request 4 comes after the last of its 3 turns"
    );
}

#[tokio::test]
async fn a_stream_is_counted_like_any_other() {
    let model = model("turns: [{ say: Hello there., usage: { input: 9, output: 3 } }]", json!({}));
    let (answer, told) = ask(&model, &request(true)).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{}", answer.body);
    assert_eq!((told.status, told.input_tokens, told.output_tokens), (Some(200), Some(9), Some(3)));
    let usage = ModelUsage { requests: 1, input_tokens: 9, output_tokens: 3, estimated: false };
    assert_eq!(model.usage(), usage);
}

#[tokio::test]
async fn checks_and_limits_are_the_same() {
    let script = "turns: [{ say: x, usage: { input: 5, output: 5 }, then: repeat }]";
    let limited = model(script, json!({ "modelTokens": 10 }));
    let mut body = request(false);
    body["store"] = json!(true);
    let (answer, _) = ask(&limited, &body).await;
    assert_eq!(answer.expect_err("not allowed").code, RefusalCode::Request);
    assert_eq!(ask(&limited, &request(false)).await.0.expect("an answer").status, 200);
    let (answer, _) = ask(&limited, &request(false)).await;
    assert_eq!(answer.expect_err("no more").code, RefusalCode::Budget);
    let few = model(script, json!({ "modelRequests": 1 }));
    assert_eq!(ask(&few, &request(false)).await.0.expect("an answer").status, 200);
    assert_eq!(ask(&few, &request(false)).await.0.expect_err("no more").code, RefusalCode::Budget);
}

#[tokio::test]
async fn a_turn_that_does_not_fit_says_what_was_expected() {
    let model = model("turns: [{ when: { user: { contains: bye } }, say: x }]", json!({}));
    let (answer, told) = ask(&model, &request(true)).await;
    let refusal = answer.expect_err("it does not fit");
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (
            RefusalCode::Request,
            "the script of the model has no answer: request 1 fits no turn: \
             turn 1 expects the last message of the user with \"bye\" in it, and it is \"hello\""
        )
    );
    assert_eq!((told.sent_bytes, told.input_tokens), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_turn_takes_its_time() {
    let model = model("turns: [{ say: x, delayMs: 5000 }]", json!({}));
    let before = tokio::time::Instant::now();
    let (answer, _) = ask(&model, &request(true)).await;
    assert_eq!(answer.expect("an answer").status, 200);
    assert_eq!(before.elapsed().as_secs(), 5);
}

#[tokio::test]
async fn an_invalid_script_is_reported_at_once() {
    let error = scripted("turns: []", &json!({})).err().expect("no turns");
    assert!(matches!(error, ModelError::Script(_)), "{error}");
}
