//! The client's side of a connection: reads its heads, and writes our own answers.

use std::time::Duration;

use sympozium_ipc::strict_head::Scanner;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use crate::events::Reason;
use crate::run_api::PREFACE;
use crate::settings::Settings;

/// Bytes per read while a head is read.
const READ_BYTES: usize = 4096;
/// How long, and for how many bytes, a refused connection is still read: a client that is sending would otherwise lose
/// the answer to a reset.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 1 << 20;
/// Timeout for writing an answer to the client.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A client, with the bytes that were read and not parsed.
#[derive(Debug)]
pub struct Client<C> {
    pub stream: C,
    /// The bytes after the last head.
    pub buffered: Vec<u8>,
    /// When the first byte of the first head arrived, if the protocol was detected before.
    first_byte_at: Option<Instant>,
}

/// What a connection begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The HTTP/2 preface, which no HTTP/1.1 head begins with.
    RunApi,
    /// Something else, or not enough bytes in time.
    Other,
    /// Nothing in time.
    Gone,
}

/// Why there is no next head.
#[derive(Debug, PartialEq, Eq)]
pub enum HeadError {
    /// The client is gone, or was idle for too long. It gets no answer.
    Closed,
    /// What it sent is not a valid head.
    Refused(Reason),
}

impl<C: AsyncRead + AsyncWrite + Unpin> Client<C> {
    pub fn new(stream: C) -> Self {
        Self { stream, buffered: Vec::new(), first_byte_at: None }
    }

    /// Reads until the protocol is clear. The bytes stay buffered, and the time counts for the head.
    pub async fn detect_protocol(&mut self, settings: &Settings) -> Opening {
        let mut deadline = Instant::now() + settings.head_timeout;
        loop {
            let known = self.buffered.len().min(PREFACE.len());
            if self.buffered[..known] != PREFACE[..known] {
                return Opening::Other;
            }
            if known == PREFACE.len() {
                return Opening::RunApi;
            }
            self.buffered.reserve(READ_BYTES);
            match timeout_at(deadline, self.stream.read_buf(&mut self.buffered)).await {
                Ok(Ok(1..)) if self.first_byte_at.is_none() => {
                    let now = Instant::now();
                    self.first_byte_at = Some(now);
                    deadline = now + settings.head_timeout;
                }
                Ok(Ok(1..)) => {}
                _ if self.first_byte_at.is_none() => return Opening::Gone,
                _ => return Opening::Other,
            }
        }
    }

    /// Reads the next head, including its empty line. `patience` limits the time until its first byte.
    pub async fn read_head(&mut self, settings: &Settings, patience: Duration) -> Result<Vec<u8>, HeadError> {
        let mut scanner = Scanner::default();
        let mut deadline = Instant::now() + patience;
        if !self.buffered.is_empty() {
            let begun = self.first_byte_at.unwrap_or_else(Instant::now);
            deadline = begun + settings.head_timeout;
        }
        self.first_byte_at = None;
        loop {
            match scanner.find_end(&self.buffered) {
                Ok(Some(end)) => {
                    let rest = self.buffered.split_off(end);
                    return Ok(std::mem::replace(&mut self.buffered, rest));
                }
                Ok(None) => {}
                Err(violation) => return Err(HeadError::Refused(violation.into())),
            }
            let first = self.buffered.is_empty();
            self.buffered.reserve(READ_BYTES);
            match timeout_at(deadline, self.stream.read_buf(&mut self.buffered)).await {
                Ok(Ok(0)) | Ok(Err(_)) => return Err(HeadError::Closed),
                Ok(Ok(_)) if first => deadline = Instant::now() + settings.head_timeout,
                Ok(Ok(_)) => {}
                Err(_) if first => return Err(HeadError::Closed),
                Err(_) => return Err(HeadError::Refused(Reason::HeadSlow)),
            }
        }
    }

    /// Answers that the request is refused, and closes the connection.
    pub async fn refuse(&mut self, reason: Reason) {
        let answer = refusal_response(reason);
        let _ = timeout(ANSWER_TIMEOUT, async {
            self.stream.write_all(&answer).await?;
            self.stream.shutdown().await
        })
        .await;
        let _ = timeout(LINGER_TIMEOUT, self.drain()).await;
    }

    async fn drain(&mut self) {
        let mut bytes = vec![0; READ_BYTES];
        let mut left = MAX_LINGER_BYTES;
        while let Ok(count @ 1..) = self.stream.read(&mut bytes).await {
            left = left.saturating_sub(count);
            if left == 0 {
                return;
            }
        }
    }
}

pub fn refusal_response(reason: Reason) -> Vec<u8> {
    let status = reason.status();
    let words = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Refused",
    };
    // The reason helps an authenticated client, and must not help another one.
    let (challenge, header) = match status {
        407 => ("Proxy-Authenticate: Basic realm=\"sympozium\"\r\n", String::new()),
        _ => ("", format!("Sympozium-Reason: {}\r\n", reason.as_str())),
    };
    let body = format!("error: {}\n", reason.text());
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {words}\r\nContent-Type: text/plain; charset=utf-8\r\n{challenge}{header}\
         Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use sympozium_ipc::strict_head::{Framing, Scanner, read_response};
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn every_answer_is_one_that_we_would_read() {
        for reason in Reason::ALL {
            let answer = refusal_response(*reason);
            let end = Scanner::default().find_end(&answer).unwrap().unwrap();
            let head = read_response(&answer[..end]).unwrap();
            assert_eq!(head.status, reason.status());
            let body = (answer.len() - end) as u64;
            assert_eq!(head.framing, Some(Framing::Length(body)));
            let names_reason = String::from_utf8_lossy(&answer).contains(reason.as_str());
            assert_eq!(names_reason && head.status != 407, head.status != 407, "{reason:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn heads_have_deadlines_and_what_follows_them_stays() {
        let settings = Settings::default();
        let (mut peer, ours) = duplex(1024);
        let mut client = Client::new(ours);
        let head = b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n";
        peer.write_all(&[head, &b"rest"[..]].concat()).await.unwrap();
        let patience = Duration::from_secs(60);
        assert_eq!(client.read_head(&settings, patience).await, Ok(head.to_vec()));
        assert_eq!(client.buffered, b"rest");
        let started = Instant::now();
        let slow = client.read_head(&settings, patience).await;
        assert_eq!(slow, Err(HeadError::Refused(Reason::HeadSlow)));
        assert_eq!(started.elapsed(), settings.head_timeout);
        client.buffered.clear();
        assert_eq!(client.read_head(&settings, patience).await, Err(HeadError::Closed));
        assert_eq!(started.elapsed(), settings.head_timeout + patience);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_bytes_say_what_is_spoken_and_count_for_the_head() {
        let settings = Settings::default();
        let opened = async |pieces: &[&[u8]]| {
            let (mut peer, ours) = duplex(1024);
            let mut client = Client::new(ours);
            let (opening, ()) = tokio::join!(client.detect_protocol(&settings), async {
                for piece in pieces {
                    peer.write_all(piece).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                // Here the client closes without sending more.
                peer.shutdown().await.unwrap();
            });
            (opening, client.buffered)
        };
        let (first, rest) = PREFACE.split_at(5);
        let (opening, buffered) = opened(&[first, rest]).await;
        assert_eq!((opening, buffered.as_slice()), (Opening::RunApi, PREFACE));
        for other in [&b"P"[..], b"PUT ", b"PRI * HTTP/1.1\r\n\r\n", b"C", first] {
            let (opening, buffered) = opened(&[other]).await;
            assert_eq!((opening, buffered.as_slice()), (Opening::Other, other));
        }
        assert_eq!(opened(&[]).await.0, Opening::Gone);

        // The time before and after the detection counts together.
        let (mut peer, ours) = duplex(1024);
        let mut client = Client::new(ours);
        peer.write_all(b"P").await.unwrap();
        let started = Instant::now();
        let half = settings.head_timeout / 2;
        let (opening, ()) = tokio::join!(client.detect_protocol(&settings), async {
            tokio::time::sleep(half).await;
            peer.write_all(b"O").await.unwrap();
        });
        assert_eq!(opening, Opening::Other);
        let slow = client.read_head(&settings, settings.keep_alive_limit).await;
        assert_eq!(slow, Err(HeadError::Refused(Reason::HeadSlow)));
        assert_eq!(started.elapsed(), settings.head_timeout);
    }
}
