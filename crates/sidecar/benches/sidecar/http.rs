//! A load generator: as little HTTP as keep-alive needs, so that it takes little from what it measures.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// One connection that asks for the same skill again and again.
pub struct Caller {
    connection: BufReader<TcpStream>,
    request: Vec<u8>,
    body: Vec<u8>,
}

impl Caller {
    pub fn new(address: SocketAddr, token: &str, skill: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket option");
        let request = format!(
            "POST /skill/{skill} HTTP/1.1\r\nHost: bench\r\nX-Skill-Token: {token}\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        Self { connection: BufReader::new(stream), request: request.into_bytes(), body: Vec::new() }
    }

    /// Asks once, and makes sure that the skill ran and succeeded.
    pub fn call(&mut self) {
        let stream = self.connection.get_mut();
        stream.write_all(&self.request).expect("a request is sent");
        let mut length = 0;
        let mut line = String::new();
        let mut first = true;
        loop {
            line.clear();
            self.connection.read_line(&mut line).expect("a line of the answer");
            if first {
                assert!(line.starts_with("HTTP/1.1 200"), "{line}");
                first = false;
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().expect("a length");
            }
        }
        self.body.resize(length, 0);
        self.connection.read_exact(&mut self.body).expect("the body");
        assert!(self.body.starts_with(b"{\"status\":\"ok\""), "{}", String::from_utf8_lossy(&self.body));
    }
}

/// The duration of `count` calls over the concurrent connections `callers`.
pub fn load(callers: &mut [Caller], count: u32) -> Duration {
    let each = count / u32::try_from(callers.len()).expect("a few callers");
    let started = Instant::now();
    std::thread::scope(|scope| {
        for caller in callers {
            scope.spawn(move || (0..each).for_each(|_| caller.call()));
        }
    });
    started.elapsed()
}
