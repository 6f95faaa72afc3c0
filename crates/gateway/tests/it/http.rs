//! Plain requests.

use sympozium_harness::plan::Public;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::dns::everybody;
use crate::harness::{Behavior, Catcher, NetworkHarness, read_all, read_head, reason_of, run};

fn answers(request: &str) -> Vec<u8> {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let answer: &[u8] = match path {
        "/length" => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
        "/chunks" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: y\r\n\r\n",
        "/close" => b"HTTP/1.0 200 OK\r\n\r\nhello",
        "/early" => b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "/redirect" => b"HTTP/1.1 302 Found\r\nLocation: http://denied.example.com/secret\r\nContent-Length: 0\r\n\r\n",
        "/upgrade" => b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "/both" => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "/folded" => b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        "/not-http" => b"SSH-2.0-server\r\n",
        "/odd-chunk" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n0\r\n\r\n",
        "/none" => b"",
        _ => {
            let body = request.split_once("\r\n\r\n").map(|it| it.1).unwrap_or_default();
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            return [head.as_bytes(), body.as_bytes()].concat();
        }
    };
    answer.to_vec()
}

async fn start() -> (NetworkHarness, Catcher) {
    let harness = NetworkHarness::new(Public::Closed, &["allowed.example.com"], everybody).await;
    let catcher = Catcher::at(80, &Behavior::Http(answers));
    (harness, catcher)
}

/// Sends one request on a connection and reads its answer, by its length or chunks.
async fn exchange(stream: &mut TcpStream, harness: &NetworkHarness, request: &str, body: &[u8]) -> (String, Vec<u8>) {
    let (line, fields) = request.split_once('|').unwrap_or((request, ""));
    let fields = fields.replace('|', "\r\n");
    let host = line.split('/').nth(2).expect("a host");
    let fields = if fields.is_empty() { fields } else { format!("{fields}\r\n") };
    let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{}{fields}\r\n", harness.authorization());
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let _ = stream.write_all(body).await;
    let mut head = read_head(stream).await;
    if head.starts_with("HTTP/1.1 100 ") {
        head = read_head(stream).await;
    }
    let mut body = Vec::new();
    let length = head.lines().find_map(|it| it.strip_prefix("Content-Length: "));
    if let Some(length) = length {
        body = vec![0; length.parse().expect("a number")];
        stream.read_exact(&mut body).await.expect("all of it");
    } else if head.contains("Transfer-Encoding: chunked") {
        while !body.ends_with(b"0\r\n\r\n") {
            body.push(stream.read_u8().await.expect("more of it"));
        }
    }
    (head, body)
}

#[test]
fn answers_of_every_framing_come_through_on_one_connection() {
    run(answers_of_every_framing_come_through_on_one_connection, async || {
        let (harness, catcher) = start().await;
        let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
        for (path, expected) in [
            ("length", &b"hello"[..]),
            ("chunks", b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"),
            ("close", b"5\r\nhello\r\n0\r\n\r\n"),
            ("early", b"hello"),
        ] {
            let line = format!("GET http://allowed.example.com/{path}");
            let (head, body) = exchange(&mut stream, &harness, &line, b"").await;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
            assert!(head.contains("Connection: keep-alive\r\n"), "{path}: {head}");
            assert_eq!(body, expected, "{path}");
        }
        // Each request had a decision and a connection of its own.
        assert_eq!(catcher.caught().await.len(), 4);
        assert_eq!(harness.outcomes().iter().filter(|it| it.starts_with("allowed")).count(), 4);
    });
}

#[test]
fn bodies_go_out_as_they_are_framed() {
    run(bodies_go_out_as_they_are_framed, async || {
        let (harness, catcher) = start().await;
        let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
        let post = "POST http://allowed.example.com/echo";
        let (_, body) = exchange(&mut stream, &harness, &format!("{post}|Content-Length: 5"), b"hello").await;
        assert_eq!(body, b"hello");
        let (_, body) = exchange(
            &mut stream,
            &harness,
            &format!("{post}|Transfer-Encoding: chunked"),
            b"5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        )
        .await;
        assert_eq!(body, b"5\r\nhello\r\n0\r\n\r\n");
        let (_, body) =
            exchange(&mut stream, &harness, &format!("{post}|Expect: 100-continue|Content-Length: 5"), b"later").await;
        assert_eq!(body, b"later");
        let much = vec![b'x'; 3 << 20];
        let line = format!("{post}|Content-Length: {}", much.len());
        let (_, body) = exchange(&mut stream, &harness, &line, &much).await;
        assert!(body == much, "{} bytes", body.len());
        // What follows a body is a next head, and not a part of it.
        let (head, _) = exchange(&mut stream, &harness, &format!("{post}|Content-Length: 0"), b"").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        for (body, what) in [
            (&b"5;x\r\nhello\r\n0\r\n\r\n"[..], "extension"),
            (b"5\nhello\r\n0\r\n\r\n", "line feed"),
            (b"5\r\nhelloX\r\n0\r\n\r\n", "too long"),
            (b"x\r\n", "no number"),
            (b"11111111111111111\r\n", "too large"),
        ] {
            let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
            let (head, _) = exchange(&mut stream, &harness, &format!("{post}|Transfer-Encoding: chunked"), body).await;
            assert_eq!(reason_of(&head).as_deref(), Some("body-malformed"), "{what}: {head}");
        }
        assert!(!catcher.heard().contains("Proxy-"));
    });
}

#[test]
fn e54_a_redirect_is_a_new_request_and_the_credential_goes_to_no_host() {
    run(e54_a_redirect_is_a_new_request_and_the_credential_goes_to_no_host, async || {
        let (harness, catcher) = start().await;
        let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
        let line = "GET http://allowed.example.com/redirect|X-Own: kept|Authorization: Bearer own";
        let (head, _) = exchange(&mut stream, &harness, line, b"").await;
        assert!(head.starts_with("HTTP/1.1 302 Found\r\n"), "{head}");
        assert!(head.contains("Location: http://denied.example.com/secret\r\n"), "{head}");
        // As a client would follow it, on the same connection.
        let (head, _) = exchange(&mut stream, &harness, "GET http://denied.example.com/secret", b"").await;
        assert_eq!(reason_of(&head).as_deref(), Some("not-in-plan"), "{head}");
        assert_eq!(read_all(&mut stream).await, b"");
        assert_eq!(catcher.caught().await.len(), 1);
        let heard = catcher.heard();
        assert!(heard.contains("X-Own: kept") && heard.contains("Authorization: Bearer own"), "{heard}");
        assert!(!heard.contains("Proxy-Authorization") && !heard.contains("Basic"), "{heard}");
        assert_eq!(harness.dns.asked(), ["allowed.example.com"]);
    });
}

#[test]
fn answers_that_could_be_read_in_two_ways_are_not_passed_on() {
    run(answers_that_could_be_read_in_two_ways_are_not_passed_on, async || {
        let (harness, _catcher) = start().await;
        for (path, reason) in [
            ("upgrade", "answer-malformed"),
            ("both", "answer-malformed"),
            ("folded", "answer-malformed"),
            ("not-http", "answer-malformed"),
            ("none", "broken"),
        ] {
            let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
            let line = format!("GET http://allowed.example.com/{path}");
            let (head, _) = exchange(&mut stream, &harness, &line, b"").await;
            assert!(head.starts_with("HTTP/1.1 502 "), "{path}: {head}");
            assert_eq!(reason_of(&head).as_deref(), Some(reason), "{path}");
        }
        // Too late to say so: the connection ends in the middle.
        let (mut stream, head) = harness.ask("GET http://allowed.example.com/odd-chunk", "allowed.example.com").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(read_all(&mut stream).await, b"");
        harness.wait_for("ended answer-malformed").await;
    });
}

#[test]
fn heads_only_and_old_clients() {
    run(heads_only_and_old_clients, async || {
        let (harness, _catcher) = start().await;
        let (mut stream, head) = harness.ask("HEAD http://allowed.example.com/length", "allowed.example.com").await;
        assert!(head.contains("Content-Length: 5\r\n"), "{head}");
        // No body came, so this is the next answer.
        let (head, body) = exchange(&mut stream, &harness, "GET http://allowed.example.com/length", b"").await;
        assert!(head.starts_with("HTTP/1.1 200 ") && body == b"hello", "{head}");
        let mut old = TcpStream::connect(harness.address).await.expect("it listens");
        let head = format!("GET http://allowed.example.com/chunks HTTP/1.0\r\n{}\r\n", harness.authorization());
        old.write_all(head.as_bytes()).await.expect("it reads");
        let head = read_head(&mut old).await;
        assert!(!head.contains("chunked") && head.contains("Connection: close\r\n"), "{head}");
        assert_eq!(read_all(&mut old).await, b"hello");
    });
}

#[test]
fn an_answer_may_come_before_the_request_has_ended() {
    run(an_answer_may_come_before_the_request_has_ended, async || {
        let harness = NetworkHarness::new(Public::Closed, &["allowed.example.com"], everybody).await;
        let early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno\n";
        let _catcher = Catcher::at(80, &Behavior::Greet(early));
        let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
        let line = "POST http://allowed.example.com/|Content-Length: 1000000";
        let (head, body) = exchange(&mut stream, &harness, line, b"the beginning").await;
        assert!(head.starts_with("HTTP/1.1 413 Too Large\r\n"), "{head}");
        assert_eq!(body, b"no\n");
        // What is left of the body must not be taken for a request.
        assert_eq!(read_all(&mut stream).await, b"");
        harness.wait_for("ended complete").await;
    });
}
