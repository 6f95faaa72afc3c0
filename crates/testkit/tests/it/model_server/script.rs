//! What the test decides: the order of replies, when pieces come, where they break off.

use serde_json::{Value, json};
use sympozium_testkit::daemon::free_address;
use sympozium_testkit::model_server::{Answer, Cut, Gate, HttpAnswer, ModelServer, Reply, Settings, Then, ToolCall};

use super::client::{Client, ask};

const STREAM: &str = r#"{"model":"m","messages":[],"stream":true}"#;

/// Asks for a stream and reads what opens it.
fn open(server: &ModelServer) -> Client {
    let mut client = Client::new(server);
    client.send("POST", "/v1/chat/completions", &[], STREAM);
    client.head();
    assert!(client.chunk().unwrap().contains("\"role\""));
    client
}

/// Comes back once the server has done all that it can do by itself.
fn settle(server: &ModelServer) {
    ask(server, "GET", "/", &[], "");
}

/// The text of an answer that was not streamed.
fn text(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn replies_come_in_order_and_then_the_default() {
    let server = ModelServer::start().unwrap();
    server.push(Reply::text("one"));
    server.push(Reply::text("two"));
    let mut client = Client::new(&server);
    let mut next = || {
        client.send_openai(json!({}));
        text(&client.response().body)
    };
    assert_eq!([next(), next(), next()], ["one", "two", "Hello from the model server."]);
    server.set_default(Reply::text("three"));
    assert_eq!([next(), next()], ["three", "three"]);
    assert_eq!(server.left(), 0);
}

#[test]
fn each_piece_comes_when_it_is_released() {
    let server = ModelServer::start().unwrap();
    let gate = Gate::new();
    let call = ToolCall::new("ls", &json!({"path": "/"})).in_pieces_of(8);
    server.push(Reply::from(Answer::pieces(["one", "two"]).tool(call)).gated(&gate));
    let mut client = open(&server);
    for piece in [r#""one""#, r#""two""#] {
        settle(&server);
        assert!(client.is_quiet(), "before {piece}");
        gate.release(1);
        assert!(client.chunk().unwrap().contains(piece));
    }
    assert!(client.chunk().unwrap().contains(r#""name":"ls""#));
    settle(&server);
    assert!(client.is_quiet(), "before the arguments");
    gate.release(2);
    assert!(client.chunk().unwrap().contains(r#"{\"path\""#));
    assert!(client.chunk().unwrap().contains(r#"\"/\"}"#));
    settle(&server);
    assert!(client.is_quiet(), "before the end");
    gate.open();
    let end = client.chunks();
    assert_eq!(end.len(), 2);
    assert_eq!(end[1], "data: [DONE]\n\n");
}

#[test]
fn an_answer_that_is_not_streamed_is_held_as_a_whole() {
    let server = ModelServer::start().unwrap();
    let gate = Gate::new();
    server.push(Reply::text("held").gated(&gate));
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    server.wait_for_requests(1);
    settle(&server);
    assert!(client.is_quiet());
    gate.release(1);
    assert_eq!(text(&client.response().body), "held");
    assert_eq!(server.abandoned(), 0);
}

#[test]
fn a_client_that_leaves_is_noticed() {
    let server = ModelServer::start().unwrap();
    server.push(Reply::text("never").gated(&Gate::new()));
    server.push(Reply::Silence);
    server.push(Reply::text("never").gated(&Gate::new()));
    drop(open(&server));
    server.wait_for_abandoned(1);
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    server.wait_for_requests(2);
    settle(&server);
    assert!(client.is_quiet(), "silence");
    drop(client);
    server.wait_for_abandoned(2);
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    server.wait_for_requests(4);
    drop(client);
    server.wait_for_abandoned(3);
}

#[test]
fn a_stream_is_cut_after_pieces() {
    let server = ModelServer::start().unwrap();
    for pieces in 0..=2 {
        server.push(Reply::pieces(["one", "two"]).cut(Cut::AfterPieces(pieces)));
        let mut client = open(&server);
        for piece in ["one", "two"].iter().take(pieces as usize) {
            assert!(client.chunk().unwrap().contains(piece));
        }
        assert_eq!(client.rest(), "", "neither the next piece nor an end");
    }
    assert_eq!(server.abandoned(), 0, "cut by us, not left by them");
}

#[test]
fn an_answer_is_cut_after_bytes() {
    let answer = |bytes: u64| {
        let server = ModelServer::start().unwrap();
        server.push(Reply::text("one").cut(Cut::AfterBytes(bytes)));
        let mut client = Client::new(&server);
        let body = r#"{"model":"m","messages":[]}"#;
        let last = [("connection", "close")];
        client.send("POST", "/v1/chat/completions", &last, body);
        client.rest()
    };
    let whole = answer(u64::MAX);
    assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"), "{whole}");
    assert!(whole.ends_with('}'), "{whole}");
    let head = whole.find("\r\n\r\n").unwrap();
    for bytes in [0, 1, head, head + 40, whole.len() - 1, whole.len()] {
        assert_eq!(answer(bytes as u64), whole[..bytes]);
    }
}

#[test]
fn a_cut_that_was_not_reached_is_forgotten() {
    let server = ModelServer::start().unwrap();
    server.push(Reply::text("one").cut(Cut::AfterBytes(10_000)));
    server.push(Reply::Huge { bytes: 20_000 });
    let mut client = Client::new(&server);
    for length in [3, 20_000] {
        client.send_openai(json!({}));
        assert_eq!(text(&client.response().body).len(), length);
    }
}

#[test]
fn raw_bytes_are_sent_as_they_are() {
    let server = ModelServer::start().unwrap();
    let bytes = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort";
    server.push(Reply::raw(bytes));
    server.push(Reply::Raw { bytes: "HTTP/1.1 2".into(), then: Then::Hang });
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    assert_eq!(client.rest(), bytes);
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    let mut read = [0; 10];
    std::io::Read::read_exact(&mut client.0, &mut read).unwrap();
    assert_eq!(&read, b"HTTP/1.1 2");
    settle(&server);
    assert!(client.is_quiet(), "neither more nor an end");
}

#[test]
fn a_huge_text_has_the_size_that_was_asked_for() {
    let server = ModelServer::start().unwrap();
    for bytes in [0, 5, 16 * 1024, 16 * 1024 + 1, 3_000_000] {
        server.push(Reply::Huge { bytes });
        server.push(Reply::Huge { bytes });
        let mut client = Client::new(&server);
        client.send_openai(json!({}));
        let whole = text(&client.response().body);
        client.send("POST", "/v1/chat/completions", &[], STREAM);
        client.head();
        let mut streamed = String::new();
        let chunks = client.chunks();
        // The role, the texts, the reason, and the end.
        assert_eq!(chunks.len() as u64, bytes.div_ceil(16 * 1024) + 3);
        for chunk in &chunks[..chunks.len() - 1] {
            let event: Value = serde_json::from_str(chunk.strip_prefix("data: ").unwrap()).unwrap();
            streamed.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        }
        assert_eq!(whole.len() as u64, bytes);
        assert!(whole == streamed, "{} and {}", whole.len(), streamed.len());
    }
}

#[test]
fn a_redirect_says_where_to() {
    let server = ModelServer::start().unwrap();
    server.push(Reply::redirect(307, "http://127.0.0.1:1/elsewhere"));
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    assert_eq!(
        client.head(),
        "HTTP/1.1 307 Temporary Redirect\nlocation: http://127.0.0.1:1/elsewhere\ncontent-length: 0\n"
    );
}

#[test]
fn any_http_answer_can_be_given_in_pieces() {
    let server = ModelServer::start().unwrap();
    let gate = Gate::new();
    server.push(Reply::from(HttpAnswer::events([": hi\r\n", "data: \u{e4}\n"])).gated(&gate));
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    assert_eq!(client.head(), "HTTP/1.1 200 OK\ncontent-type: text/event-stream\ntransfer-encoding: chunked\n");
    gate.release(1);
    assert_eq!(client.chunk().unwrap(), ": hi\r\n");
    settle(&server);
    assert!(client.is_quiet());
    gate.release(1);
    assert_eq!(client.chunks(), ["data: ä\n"]);
}

#[test]
fn when_the_server_is_dropped_its_port_is_free() {
    // At an address that no other process takes a port of in between.
    let server = Settings::new().listen(free_address().unwrap()).start().unwrap();
    server.push(Reply::Silence);
    let address = server.address();
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    server.wait_for_requests(1);
    drop(server);
    assert_eq!(client.rest(), "");
    let again = Settings::new().listen(address).start().unwrap();
    assert_eq!(again.address(), address);
    settle(&again);
}
