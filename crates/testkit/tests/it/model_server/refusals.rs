//! What a provider would refuse, and errors that a test asks for.

use serde_json::json;
use sympozium_testkit::model_server::{Format, MOST_REQUEST_BYTES, ModelServer, ProviderError, Reply, Settings};

use super::client::{Client, Response, ask};

const OPENAI: &str = r#"{"model":"m","messages":[]}"#;
const ANTHROPIC: &str = r#"{"model":"m","max_tokens":1,"messages":[]}"#;
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

type Headers<'a> = &'a [(&'a str, &'a str)];

/// The first line of an answer and its body.
fn short(response: &Response) -> (&str, &str) {
    (response.head.lines().next().unwrap(), &response.body)
}

#[test]
fn an_unknown_path_is_not_found() {
    let server = ModelServer::start().unwrap();
    assert_eq!(
        short(&ask(&server, "POST", "/v1/other?a=b", &[], OPENAI)),
        (
            "HTTP/1.1 404 Not Found",
            r#"{"error":{"message":"Invalid URL (POST /v1/other)","type":"invalid_request_error","param":null,"code":null}}"#
        )
    );
    assert_eq!(
        short(&ask(&server, "POST", "/v2/messages", &[VERSION], ANTHROPIC)),
        (
            "HTTP/1.1 404 Not Found",
            r#"{"type":"error","error":{"type":"not_found_error","message":"Invalid URL (POST /v2/messages)"},"request_id":"req_2"}"#
        )
    );
}

#[test]
fn another_method_is_not_allowed() {
    let server = ModelServer::start().unwrap();
    let response = ask(&server, "GET", "/v1/chat/completions", &[], "");
    let body = r#"{"error":{"message":"GET is not allowed here; use POST.","type":"invalid_request_error","param":null,"code":null}}"#;
    assert_eq!(
        response,
        Response {
            head: format!(
                "HTTP/1.1 405 Method Not Allowed\ncontent-type: application/json\nallow: POST\n\
                 x-request-id: req_1\ncontent-length: {}\n",
                body.len()
            ),
            body: body.into(),
        }
    );
}

#[test]
fn each_format_has_its_own_place_for_the_key() {
    let azure = "/openai/deployments/m/chat/completions";
    let server = Settings::new().key("sk-1").route(azure, Format::AzureOpenAi).start().unwrap();
    let message = "The API key is missing or wrong.";
    let openai = format!(
        r#"{{"error":{{"message":"{message}","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}}}"#
    );
    let azures = format!(r#"{{"error":{{"code":"401","message":"{message}"}}}}"#);
    let anthropic = format!(r#"{{"type":"error","error":{{"type":"authentication_error","message":"{message}"}}"#);
    let cases: [(&str, &str, &str, &[Headers<'_>], Headers<'_>); 3] = [
        (
            "/v1/chat/completions",
            OPENAI,
            &openai,
            &[&[], &[("authorization", "Bearer sk-2")], &[("authorization", "sk-1")], &[("x-api-key", "sk-1")]],
            &[("Authorization", "Bearer sk-1")],
        ),
        (
            azure,
            OPENAI,
            &azures,
            &[&[], &[("api-key", "sk-2")], &[("authorization", "Bearer sk-1")]],
            &[("Api-Key", "sk-1")],
        ),
        (
            "/v1/messages",
            ANTHROPIC,
            &anthropic,
            &[&[VERSION], &[VERSION, ("x-api-key", "sk-2")], &[VERSION, ("authorization", "Bearer sk-1")]],
            &[VERSION, ("X-Api-Key", "sk-1")],
        ),
    ];
    for (path, body, refusal, wrong, right) in cases {
        for headers in wrong {
            let response = ask(&server, "POST", path, headers, body);
            assert_eq!(response.head.lines().next(), Some("HTTP/1.1 401 Unauthorized"));
            assert!(response.body.starts_with(refusal), "{}", response.body);
        }
        let response = ask(&server, "POST", path, right, body);
        assert_eq!(response.head.lines().next(), Some("HTTP/1.1 200 OK"));
    }
}

#[test]
fn what_a_provider_needs_must_be_there() {
    let server = ModelServer::start().unwrap();
    server.push(Reply::text("kept"));
    let chat = "/v1/chat/completions";
    let messages = "/v1/messages";
    let cases: [(&str, Headers<'_>, &str, &str); 6] = [
        (chat, &[], "{", "The body cannot be read: EOF while parsing an object at line 1 column 1"),
        (chat, &[], r#"{"messages":[]}"#, "model: field required"),
        (chat, &[], r#"{"model":"m"}"#, "messages: field required"),
        (messages, &[], ANTHROPIC, "anthropic-version: header is required"),
        (messages, &[VERSION], OPENAI, "max_tokens: field required"),
        (messages, &[VERSION], r#"{"max_tokens":1}"#, "model: field required"),
    ];
    for (path, headers, body, message) in cases {
        let response = ask(&server, "POST", path, headers, body);
        assert_eq!(response.head.lines().next(), Some("HTTP/1.1 400 Bad Request"));
        let found: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(found["error"]["message"], message);
        assert_eq!(found["error"]["type"], "invalid_request_error");
    }
    assert_eq!(server.left(), 1, "refusals leave the script alone");
}

#[test]
fn a_body_that_is_too_large_is_not_read() {
    let server = ModelServer::start().unwrap();
    let mut client = Client::new(&server);
    let size = MOST_REQUEST_BYTES + 1;
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n");
    std::io::Write::write_all(client.0.get_mut(), head.as_bytes()).unwrap();
    assert_eq!(
        short(&client.response()),
        (
            "HTTP/1.1 413 Payload Too Large",
            r#"{"error":{"message":"The request is too large.","type":"invalid_request_error","param":null,"code":null}}"#
        )
    );
}

#[test]
fn a_body_as_large_as_may_be_is_read() {
    let server = ModelServer::start().unwrap();
    let json = r#"{"model":"m","messages":[]}"#;
    let body = format!("{json}{}", " ".repeat(MOST_REQUEST_BYTES - json.len()));
    let response = ask(&server, "POST", "/v1/chat/completions", &[], &body);
    assert_eq!(response.head.lines().next(), Some("HTTP/1.1 200 OK"));
    assert!(server.requests()[0].body == body.as_bytes());
}

#[test]
fn an_error_is_in_the_format_of_the_request() {
    let server = ModelServer::start().unwrap();
    let error = ProviderError::new(429, "Slow down").retry_after("20");
    server.push(error.clone());
    server.push(error);
    let mut client = Client::new(&server);
    client.send_openai(json!({"stream": true}));
    let body = r#"{"error":{"message":"Slow down","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#;
    assert_eq!(
        client.response(),
        Response {
            head: format!(
                "HTTP/1.1 429 Too Many Requests\ncontent-type: application/json\nretry-after: 20\n\
                 x-request-id: req_1\ncontent-length: {}\n",
                body.len()
            ),
            body: body.into(),
        }
    );
    client.send_anthropic(json!({"stream": true}));
    assert_eq!(
        short(&client.response()),
        (
            "HTTP/1.1 429 Too Many Requests",
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"Slow down"},"request_id":"req_2"}"#
        )
    );
}

#[test]
fn an_error_may_say_anything() {
    let server = ModelServer::start().unwrap();
    server.push(ProviderError::new(400, "a").kind("odd").code("b"));
    server.push(ProviderError::new(502, "").body("<html>"));
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    assert_eq!(client.response().body, r#"{"error":{"message":"a","type":"odd","param":null,"code":"b"}}"#);
    client.send_openai(json!({}));
    assert_eq!(short(&client.response()), ("HTTP/1.1 502 Bad Gateway", "<html>"));
}
