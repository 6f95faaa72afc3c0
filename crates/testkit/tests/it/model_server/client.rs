//! HTTP by hand, so that the tests see what is on the wire and not what a library makes of it.

use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use sympozium_testkit::model_server::ModelServer;

/// When a test that waits for bytes fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection.
pub struct Client<S: Read = TcpStream>(pub BufReader<S>);

/// A whole answer.
#[derive(Debug, PartialEq)]
pub struct Response {
    /// Status line and headers, with `\n` between them.
    pub head: String,
    pub body: String,
}

impl Client {
    pub fn new(server: &ModelServer) -> Self {
        Self(BufReader::new(connect(server)))
    }

    /// Whether nothing has come that was not read.
    pub fn is_quiet(&mut self) -> bool {
        if !self.0.buffer().is_empty() {
            return false;
        }
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).unwrap();
        let found = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        found.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

pub fn connect(server: &ModelServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

impl<S: Read + Write> Client<S> {
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: model.test\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.0.get_mut().flush().unwrap();
    }

    pub fn send_openai(&mut self, more: Value) {
        let body = merged(json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}), more);
        self.send("POST", "/v1/chat/completions", &[], &body);
    }

    pub fn send_anthropic(&mut self, more: Value) {
        let body = merged(
            json!({"model": "claude-sonnet", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}),
            more,
        );
        let version = [("anthropic-version", "2023-06-01")];
        self.send("POST", "/v1/messages", &version, &body);
    }

    /// Reads status line and headers.
    pub fn head(&mut self) -> String {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line).unwrap();
            assert!(read > 0, "the connection ended in the head: {head}");
            if line == "\r\n" {
                return head;
            }
            head.push_str(line.trim_end());
            head.push('\n');
        }
    }

    /// Reads one chunk of a chunked body; `None` after the last.
    pub fn chunk(&mut self) -> Option<String> {
        let mut size = String::new();
        assert!(self.0.read_line(&mut size).unwrap() > 0, "cut");
        let size = usize::from_str_radix(size.trim_end(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).unwrap();
        assert_eq!(chunk.split_off(size), b"\r\n");
        (size > 0).then(|| String::from_utf8(chunk).unwrap())
    }

    pub fn chunks(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.chunk()).collect()
    }

    /// Reads an answer with a `Content-Length`.
    pub fn response(&mut self) -> Response {
        let head = self.head();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.unwrap().parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        Response { head, body: String::from_utf8(body).unwrap() }
    }

    /// Reads what comes until the server closes the connection.
    pub fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => panic!("{error}"),
            _ => String::from_utf8(rest).unwrap(),
        }
    }
}

fn merged(mut body: Value, more: Value) -> String {
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// Sends one request and reads an answer with a `Content-Length`.
pub fn ask(server: &ModelServer, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let mut client = Client::new(server);
    client.send(method, path, headers, body);
    client.response()
}
