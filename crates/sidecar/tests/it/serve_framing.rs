//! Bytes that could be read in two ways, bodies that lie, peers that are slow: sent raw.

use crate::serve_server::{Server, TOKENS};

fn post(headers: &str, body: &str) -> Vec<u8> {
    let token = TOKENS[0];
    format!("POST /skill/true HTTP/1.1\r\nHost: x\r\nX-Skill-Token: {token}\r\n{headers}\r\n{body}").into_bytes()
}

/// A request that must never be answered: it comes behind one that was refused.
const SMUGGLED: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn ambiguous_heads_are_refused_and_the_connection_closes() {
    let server = Server::start();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("two lengths", post("Content-Length: 2\r\nContent-Length: 3\r\n", "{}")),
        ("two equal lengths", post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}")),
        ("a list of lengths", post("Content-Length: 2, 2\r\n", "{}")),
        ("a signed length", post("Content-Length: +2\r\n", "{}")),
        ("length and chunks", post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")),
        ("chunks and length", post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n")),
        ("another encoding", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")),
        ("an odd encoding", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n")),
        ("two encodings", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n")),
        ("a hidden encoding", post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n")),
        ("a folded header", post("A: b\r\n c\r\nContent-Length: 2\r\n", "{}")),
        ("a bare LF", post("A: b\nContent-Length: 2\r\n", "{}")),
        ("a bare CR", post("A: b\rContent-Length: 2\r\n", "{}")),
        ("a NUL", post("A: b\0\r\nContent-Length: 2\r\n", "{}")),
        ("LF alone", b"GET /healthz HTTP/1.1\nHost: x\n\n".to_vec()),
        ("no host", b"GET /healthz HTTP/1.1\r\n\r\n".to_vec()),
        ("two hosts", b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n".to_vec()),
        ("another protocol", b"GET /healthz HTTP/3.0\r\nHost: x\r\n\r\n".to_vec()),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("our own marker", b"!REFUSED /0 HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in cases {
        let mut client = server.client();
        client.write(&[&bytes, SMUGGLED.as_bytes()].concat());
        let answer = client.answer().expect(what);
        assert_eq!(answer.status, 400, "{what}: {answer:?}");
        assert_eq!(answer.header("connection"), Some("close"), "{what}");
        assert!(!answer.error().is_empty(), "{what}");
        assert!(client.is_closed(), "{what}: something was smuggled");
    }
    let executed = server.get("/metrics");
    assert!(!executed.text().contains("skill=\"true\""), "{}", executed.text());
}

#[test]
fn a_bad_request_behind_a_good_one_does_not_spoil_it() {
    let server = Server::start();
    let mut client = server.client();
    let bad = "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n";
    client.write(&[&post("Content-Length: 2\r\n", "{}")[..], bad.as_bytes()].concat());
    assert_eq!(client.answer().expect("the good one").status, 200);
    assert_eq!(client.answer().expect("the bad one").status, 400);
    assert!(client.is_closed());
}

#[test]
fn requests_may_be_pipelined() {
    let server = Server::start();
    let mut client = server.client();
    client.write(&[post("Content-Length: 2\r\n", "{}"), SMUGGLED.into(), post("Content-Length: 0\r\n", "")].concat());
    let answers = [(); 3].map(|()| client.answer().expect("there are three").status);
    assert_eq!(answers, [200, 200, 200]);
}

#[test]
fn heads_are_bounded() {
    let server = Server::start();
    let long = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "b".repeat(20_000));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(64));
    for head in [long, many] {
        let mut client = server.client();
        client.write(head.as_bytes());
        let answer = client.answer().expect("there is one");
        assert_eq!(answer.status, 431, "{answer:?}");
        assert!(client.is_closed());
    }
    let most = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(63));
    let mut client = server.client();
    client.write(most.as_bytes());
    assert_eq!(client.answer().expect("there is one").status, 200);
}

#[test]
fn nothing_follows_a_chunked_request() {
    let server = Server::start();
    let mut client = server.client();
    let chunked = post("Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n");
    client.write(&[&chunked[..], SMUGGLED.as_bytes()].concat());
    let answer = client.answer().expect("there is one");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn chunks_that_lie_are_refused_and_nothing_is_executed() {
    let server = Server::start();
    for (body, status) in [
        ("zz\r\n{}\r\n0\r\n\r\n".to_owned(), 400),
        ("3\r\n{}\r\n0\r\n\r\n".to_owned(), 400),
        ("-2\r\n{}\r\n0\r\n\r\n".to_owned(), 400),
        ("ffffffffffffffffff\r\n{}\r\n0\r\n\r\n".to_owned(), 400),
        (format!("100001\r\n{}\r\n0\r\n\r\n", " ".repeat(0x10_0001)), 413),
        (format!("{}0\r\n\r\n", "80000\r\n".to_owned() + &" ".repeat(0x8_0000) + "\r\n").repeat(1), 200),
        (("80000\r\n".to_owned() + &" ".repeat(0x8_0000) + "\r\n").repeat(3) + "0\r\n\r\n", 413),
    ] {
        let mut client = server.client();
        client.write(&post("Transfer-Encoding: chunked\r\n", &body));
        let answer = client.answer().expect("there is one");
        assert_eq!(answer.status, status, "{}: {answer:?}", &body[..10]);
        assert!(client.is_closed());
    }
    let metrics = server.get("/metrics");
    let executed = "skill_sidecar_calls_total{skill=\"true\",outcome=\"ok\"} 1\n";
    assert!(metrics.text().contains(executed), "{}", metrics.text());
}

#[test]
fn one_byte_too_many_is_refused_before_it_is_sent() {
    let server = Server::start();
    let mut client = server.client();
    client.write(&post("Content-Length: 1048577\r\nExpect: 100-continue\r\n", ""));
    let answer = client.answer().expect("there is one");
    assert_eq!(answer.status, 413);
    assert!(client.is_closed());
}

#[test]
fn without_a_token_the_body_is_not_parsed() {
    let server = Server::start();
    let body = "x".repeat(1 << 20);
    let answer = (server.client()).send("POST", "/skill/true", &[], body.as_bytes());
    assert_eq!((answer.status, answer.error().as_str()), (401, "unauthorized"));
    // Nor waited for.
    let mut client = server.client();
    client.write(b"POST /skill/true HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
    assert_eq!(client.answer().expect("there is one").status, 401);
    assert!(client.is_closed());
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for_long() {
    let server = Server::start();
    let mut client = server.client();
    client.write(&post("Content-Length: 10\r\n", "{}"));
    let answer = client.answer().expect("there is one");
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(client.is_closed());
}

#[test]
fn a_body_that_is_cut_short_executes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.write(&post("Content-Length: 10\r\n", "{}"));
    client.hang_up();
    let metrics = server.get("/metrics");
    assert!(!metrics.text().contains("skill=\"true\""), "{}", metrics.text());
}

#[test]
fn a_head_that_does_not_end_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    client.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n");
    let answer = client.answer().expect("there is one");
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(client.is_closed());
}
