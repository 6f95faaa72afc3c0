//! The bodies of the fuzz targets: one function per parser of bytes that a caller chose.
//!
//! Each one states a property and panics when it does not hold. Three callers share them: coverage-guided fuzzing
//! (`make fuzz`), the replay of the corpora in `make test`, and debugging of a find.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, ReadBuf};

use crate::serve::body::{Call, MAX_ARGS, MAX_TIMEOUT};
use crate::serve::strict_io::{REFUSED_METHOD, StrictIo};
use sympozium_ipc::strict_head::{Framing, HeadError, Scanner, check_request};

/// A body: it returns when every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[("http_body", http_body), ("http_head", http_head)];

/// However the bytes of a connection arrive, the parser sees the same; and what it sees is what was sent, up to the
/// first head that could be read in two ways.
pub fn http_head(data: &[u8]) {
    let whole = passed(data, data.len().max(1));
    for step in [1, 3, 7, 64] {
        assert_eq!(passed(data, step), whole, "in steps of {step}");
    }
    let mut rest = data;
    let mut seen = whole.as_slice();
    loop {
        let end = match Scanner::default().find_end(rest) {
            Ok(Some(end)) => end,
            // Not all of a head is there: nothing of it is passed on.
            Ok(None) => return assert!(seen.is_empty()),
            Err(violation) => return assert_refused(seen, violation),
        };
        let head = &rest[..end];
        let framing = match check_request(head) {
            Ok(framing) => framing,
            Err(violation) => return assert_refused(seen, violation),
        };
        assert_strict(head);
        match framing {
            Framing::Chunked => {
                let before = &head[..end - 2];
                assert!(seen.starts_with(before));
                let after = &seen[before.len()..];
                let closed = after.strip_prefix(b"Connection: close\r\n\r\n");
                return assert_eq!(closed, Some(&rest[end..]));
            }
            Framing::Length(length) => {
                let body = usize::try_from(length).unwrap_or(usize::MAX);
                let both = end.saturating_add(body).min(rest.len());
                assert!(seen.starts_with(&rest[..both]));
                (seen, rest) = (&seen[both..], &rest[both..]);
            }
        }
    }
}

fn assert_refused(seen: &[u8], violation: HeadError) {
    let start = format!("{REFUSED_METHOD} /{} HTTP/1.1\r\n", violation as usize);
    assert!(seen.starts_with(start.as_bytes()), "{violation}: {seen:?}");
}

/// What must hold for a head that passed, written in another way than the check.
fn assert_strict(head: &[u8]) {
    let text: String = head.iter().map(|&byte| char::from(byte)).collect();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert!(lines.iter().all(|line| !line.contains(['\r', '\n', '\0'])));
    let named = |name: &str| {
        let start = format!("{name}:");
        let lines = lines.iter().map(|line| line.to_ascii_lowercase());
        lines.filter(|line| line.starts_with(&start)).count()
    };
    assert!(named("content-length") + named("transfer-encoding") <= 1, "{text:?}");
    assert!(named("host") <= 1, "{text:?}");
    let odd = |line: &&&str| line.starts_with([' ', '\t']) || !line.contains(':');
    let headers = &lines[1..lines.len() - 2];
    assert_eq!(headers.iter().find(odd), None, "{text:?}");
    let spaced = |line: &&&str| line.split(':').next().is_some_and(|name| name.contains([' ', '\t']));
    assert_eq!(headers.iter().find(spaced), None, "{text:?}");
}

/// What the parser sees of `data` when it arrives in such steps and then nothing more does.
fn passed(data: &[u8], step: usize) -> Vec<u8> {
    let peer = Steps { data, step };
    let connection = Arc::default();
    // A connection that is busy has no deadlines, and so needs no clock.
    let _busy = crate::serve::connections::Connection::mark_busy(&connection);
    let mut io = StrictIo::new(peer, Arc::clone(&connection));
    let mut context = Context::from_waker(Waker::noop());
    let mut seen = Vec::new();
    let mut bytes = [0; 512];
    loop {
        let mut buffer = ReadBuf::new(&mut bytes);
        match Pin::new(&mut io).poll_read(&mut context, &mut buffer) {
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                seen.extend_from_slice(buffer.filled());
            }
            _ => return seen,
        }
    }
}

/// Gives its bytes in steps, and then stays silent.
struct Steps<'a> {
    data: &'a [u8],
    step: usize,
}

impl AsyncRead for Steps<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.data.is_empty() {
            return Poll::Pending;
        }
        let count = self.step.min(self.data.len()).min(buffer.remaining());
        let (now, later) = self.data.split_at(count);
        buffer.put_slice(now);
        self.data = later;
        Poll::Ready(Ok(()))
    }
}

/// A body is taken only if it says what was read from it, within all bounds; a refusal is short.
pub fn http_body(data: &[u8]) {
    let call = match Call::parse(data) {
        Ok(call) => call,
        Err(error) => {
            assert!(error.message.chars().count() <= 301, "{}", error.message);
            return;
        }
    };
    assert!(call.timeout >= Duration::from_secs(1) && call.timeout <= MAX_TIMEOUT);
    assert!(call.args.len() <= MAX_ARGS);
    assert!(call.args.iter().all(|argument| !argument.contains('\0')));
    let mut names: Vec<_> = call.env.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.iter().all(|name| name.len() > 6 && name.starts_with("SKILL_")));
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    if data.trim_ascii().is_empty() {
        assert_eq!(call, Call::default());
        return;
    }
    // The same by a parser that knows nothing of calls.
    let value: Value = serde_json::from_slice(data).unwrap_or_default();
    let args: Vec<_> = (value["args"].as_array().into_iter().flatten()).filter_map(Value::as_str).collect();
    assert_eq!(call.args, args);
    assert_eq!(call.stdin, value["stdin"].as_str().unwrap_or_default());
    let env = value["env"].as_object().map_or(0, serde_json::Map::len);
    assert_eq!(call.env.len(), env);
    let seconds = value["timeout"].as_u64().unwrap_or(30);
    assert_eq!(call.timeout.as_secs(), seconds.min(MAX_TIMEOUT.as_secs()));
    let fields = value.as_object().map_or(0, |fields| {
        let known = ["args", "env", "stdin", "timeout"];
        fields.keys().filter(|field| !known.contains(&field.as_str())).count()
    });
    assert_eq!(fields, 0);
}

#[cfg(test)]
mod tests;
