//! What the test learns of requests.

use std::io::Write as _;

use serde_json::json;
use sympozium_testkit::model_server::{ModelServer, Recorded, Reply};

use super::client::{Client, ask};

#[test]
fn a_request_is_recorded_as_it_came() {
    let server = ModelServer::start().unwrap();
    let mut client = Client::new(&server);
    let body = r#"{"model": "m",  "messages": []}"#;
    let headers = [("X-Odd", "1"), ("Accept", "*/*"), ("x-odd", "2")];
    client.send("POST", "/v1/chat/completions?a=b&c", &headers, body);
    client.response();
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = Recorded {
        number: 1,
        connection: 1,
        earlier_on_connection: 0,
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        query: Some("a=b&c".into()),
        headers: vec![
            header("host", "model.test"),
            header("x-odd", "1"),
            header("x-odd", "2"),
            header("accept", "*/*"),
            header("content-length", "31"),
        ],
        body: body.into(),
    };
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(*requests[0], expected);
    assert_eq!(expected.json(), json!({"model": "m", "messages": []}));
    assert_eq!(expected.header("accept"), Some("*/*"));
    assert_eq!(expected.header("cookie"), None);
}

#[test]
fn connections_are_distinguished() {
    let server = ModelServer::start().unwrap();
    let mut first = Client::new(&server);
    first.send_openai(json!({}));
    first.response();
    first.send_openai(json!({}));
    first.response();
    ask(&server, "PUT", "/nowhere", &[], "refused and recorded");
    let found: Vec<_> = server
        .wait_for_requests(3)
        .iter()
        .map(|it| (it.number, it.connection, it.earlier_on_connection, it.method.clone()))
        .collect();
    assert_eq!(found, [(1, 1, 0, "POST".into()), (2, 1, 1, "POST".into()), (3, 2, 0, "PUT".into())]);
    assert_eq!(server.request_count(), 3);
}

#[test]
fn a_chunked_request_is_put_together() {
    let server = ModelServer::start().unwrap();
    let mut client = Client::new(&server);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = "c\r\n{\"model\":\"m\"\r\n10\r\n,\"messages\":[] }\r\n0\r\n\r\n";
    let stream = client.0.get_mut();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    assert!(client.response().head.starts_with("HTTP/1.1 200 OK\n"));
    assert_eq!(server.requests()[0].body, r#"{"model":"m","messages":[] }"#.as_bytes());
}

#[test]
fn an_echo_is_the_whole_request() {
    let server = ModelServer::start().unwrap();
    server.push(Reply::Echo);
    let body = r#"{"model":"m","messages":[]}"#;
    let headers = [("Authorization", "Bearer sk-1")];
    let response = ask(&server, "POST", "/v1/chat/completions?q", &headers, body);
    let response: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(
        response["choices"][0]["message"]["content"],
        "POST /v1/chat/completions?q\nhost: model.test\nauthorization: Bearer sk-1\ncontent-length: 27\n\n\
         {\"model\":\"m\",\"messages\":[]}"
    );
}
