//! What cannot be seen from the other end of a socket: how many writes an answer is, and what is no longer kept.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hyper::Request;
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::record::{MOST_KEPT, MOST_KEPT_BYTES, Recorded, Records};
use super::{Reply, Settings, Shared, serve};

/// A connection that brings one request and notes each write.
struct Noted {
    request: Vec<u8>,
    writes: Arc<Mutex<Vec<String>>>,
}

impl AsyncRead for Noted {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.request.is_empty() {
            return Poll::Pending;
        }
        buffer.put_slice(&std::mem::take(&mut self.request));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Noted {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes: Vec<u8> = buffers.iter().flat_map(|it| it.to_vec()).collect();
        let length = bytes.len();
        let text = String::from_utf8(bytes).expect("text");
        self.writes.lock().expect("no panic").push(text);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The writes that an answer to this body is made of.
fn writes(reply: Reply, body: &str) -> Vec<String> {
    let shared = Arc::new(Shared::new(&Settings::new()));
    shared.script.lock().queue.push_back(Arc::new(reply));
    let length = body.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let writes = Arc::new(Mutex::default());
    let stream = Noted { request: request.into(), writes: Arc::clone(&writes) };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(serve(stream, shared, 1));
    std::mem::take(&mut *writes.lock().expect("no panic"))
}

#[test]
fn an_answer_that_is_not_streamed_is_one_write() {
    let writes = writes(Reply::text("one"), r#"{"model":"m","messages":[]}"#);
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert!(writes[0].starts_with("HTTP/1.1 200 OK\r\n") && writes[0].ends_with('}'));
}

#[test]
fn each_event_of_a_stream_is_one_write() {
    let writes =
        writes(Reply::pieces((0..50).map(|it| it.to_string())), r#"{"model":"m","messages":[],"stream":true}"#);
    // The role, the texts, the reason, and the end.
    assert_eq!(writes.len(), 53, "{writes:?}");
    assert!(writes[0].starts_with("HTTP/1.1 200 OK\r\n"));
    for write in &writes {
        assert_eq!(write.matches("\ndata: ").count(), 1, "{write}");
    }
    assert!(writes[52].ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
}

/// The numbers of the requests that are kept, when requests with these bodies came.
fn retained(bodies: impl IntoIterator<Item = Bytes>) -> Vec<u64> {
    let records = Records::default();
    let (parts, ()) = Request::new(()).into_parts();
    for body in bodies {
        records.add(Recorded::new(&parts, body, 1, 0));
    }
    records.retained().iter().map(|it| it.number).collect()
}

#[test]
fn so_many_requests_are_kept_and_no_more() {
    let requests = |count| retained(std::iter::repeat_n(Bytes::new(), count));
    let most = MOST_KEPT as u64;
    assert_eq!(requests(MOST_KEPT), Vec::from_iter(1..=most));
    assert_eq!(requests(MOST_KEPT + 1), Vec::from_iter(2..=most + 1));
}

#[test]
fn so_many_bytes_are_kept_and_no_more() {
    let bytes = Bytes::from(vec![0; MOST_KEPT_BYTES + 1]);
    let half = bytes.slice(..MOST_KEPT_BYTES / 2);
    let one = bytes.slice(..1);
    assert_eq!(retained([half.clone(), half.clone()]), [1, 2]);
    assert_eq!(retained([half.clone(), half.clone(), one.clone()]), [2, 3]);
    assert_eq!(retained([half, bytes.clone()]), [2], "the newest in any case");
    assert_eq!(retained([bytes, one]), [2]);
}
