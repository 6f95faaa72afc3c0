//! A client that sends exactly the given bytes, and shares no code with the server.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use crate::serve_server::LONG;

/// One connection.
pub struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// With lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("it is text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("it is JSON")
    }

    /// The error's message.
    pub fn error(&self) -> String {
        self.json()["error"].as_str().expect("it is an error").to_owned()
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("it is a socket");
        stream.set_write_timeout(Some(LONG)).expect("it is a socket");
        Self { stream, read: Vec::new() }
    }

    /// Writes bytes unchanged. Returns false when the peer has closed the connection.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.begin(method, path, headers, body);
        self.answer().expect("there is an answer")
    }

    pub fn begin(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.write(&[head.as_bytes(), body].concat());
    }

    /// The next answer; `None` when the connection ends without one.
    pub fn answer(&mut self) -> Option<Answer> {
        let head = loop {
            if let Some(end) = self.read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break String::from_utf8(self.read.drain(..end + 4).collect()).expect("it is text");
            }
            if !self.more() {
                assert!(self.read.is_empty(), "cut short: {:?}", self.read);
                return None;
            }
        };
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok());
        let headers: Vec<_> = lines
            .map(|line| line.split_once(": ").expect("it is a header"))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut answer = Answer { status: status.expect("it has a status"), headers, body: Vec::new() };
        let length = answer.header("content-length").unwrap_or("0");
        let length: usize = length.parse().expect("it is a number");
        while self.read.len() < length {
            assert!(self.more(), "the body was cut short");
        }
        answer.body = self.read.drain(..length).collect();
        Some(answer)
    }

    /// Whether the server closes the connection, having sent nothing more.
    pub fn is_closed(&mut self) -> bool {
        self.read.is_empty() && !self.more()
    }

    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub fn hang_up(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn more(&mut self) -> bool {
        let mut bytes = [0; 16 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(count) => {
                self.read.extend_from_slice(&bytes[..count]);
                count > 0
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            // signal(7): a read with a timeout is not restarted after a handler, such as that of SIGCHLD.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => self.more(),
            Err(error) => panic!("the server neither answers nor closes: {error}"),
        }
    }
}
