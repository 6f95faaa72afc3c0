//! A filter between socket and HTTP parser: passes only heads that [`strict_head`](sympozium_ipc::strict_head) accepts, and
//! enforces deadlines for heads, idle connections and writes.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sympozium_ipc::strict_head::{Framing, HeadError, Scanner, check_request};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::connections::Connection;

/// From the first byte of a head to its last.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may be open without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a peer may take to read a response, from the first write that blocks. The response stays in memory.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Per read of the socket.
const READ_BYTES: usize = 4096;
/// The method of the head that replaces a refused one. No client can send it, because it is not all capital letters.
pub const REFUSED_METHOD: &str = "!REFUSED";
/// Appended to the head of a chunked request: only the parser knows where the body ends, so nothing that follows it may
/// become a request.
const CLOSE: &[u8] = b"Connection: close\r\n\r\n";

/// The head that replaces a refused one; its target is the number of the error.
fn refused_head(error: HeadError) -> Vec<u8> {
    let number = error as usize;
    format!("{REFUSED_METHOD} /{number} HTTP/1.1\r\nHost: refused\r\nConnection: close\r\n\r\n").into_bytes()
}

pub struct StrictIo<S> {
    inner: S,
    connection: Arc<Connection>,
    /// Bytes of the peer; those from `passed` on have not been passed to the parser.
    buffer: Vec<u8>,
    passed: usize,
    /// The end of the bytes that may be passed on.
    allowed: usize,
    scanner: Scanner,
    phase: Phase,
    read_timer: Timer,
    write_timer: Timer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A head is expected.
    Head,
    /// The number of bytes of the body that have not been read.
    Body(u64),
    /// In a chunked body, after which the connection closes.
    Chunked,
    /// Nothing more is read.
    Refused,
}

impl<S: AsyncRead + Unpin> StrictIo<S> {
    /// Deadlines for reading do not apply while `connection` is busy.
    pub fn new(inner: S, connection: Arc<Connection>) -> Self {
        Self {
            inner,
            connection,
            buffer: Vec::new(),
            passed: 0,
            allowed: 0,
            scanner: Scanner::default(),
            phase: Phase::Head,
            read_timer: Timer::default(),
            write_timer: Timer::default(),
        }
    }

    /// Whether the peer may still be sending bytes of a request.
    pub fn has_unread_input(&self) -> bool {
        self.phase != Phase::Head || !self.buffer.is_empty()
    }

    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Checks the head in the buffer, if it is complete.
    fn check_head(&mut self) {
        let end = match self.scanner.find_end(&self.buffer) {
            Ok(None) => return,
            Ok(Some(end)) => end,
            Err(error) => return self.refuse(error),
        };
        self.read_timer.stop();
        match check_request(&self.buffer[..end]) {
            Err(error) => self.refuse(error),
            Ok(Framing::Chunked) => {
                self.buffer.splice(end - 2..end, CLOSE.iter().copied());
                self.allowed = self.buffer.len();
                self.phase = Phase::Chunked;
            }
            Ok(Framing::Length(length)) => {
                let buffered = (self.buffer.len() - end) as u64;
                let body = buffered.min(length);
                // The conversion cannot fail: `body` is at most the length of the buffer.
                self.allowed = end + usize::try_from(body).unwrap_or(0);
                self.phase = match length - body {
                    0 => Phase::Head,
                    rest => Phase::Body(rest),
                };
            }
        }
    }

    fn refuse(&mut self, error: HeadError) {
        self.buffer = refused_head(error);
        self.passed = 0;
        self.allowed = self.buffer.len();
        self.phase = Phase::Refused;
    }

    /// Passes allowed bytes to the parser; returns whether there were any.
    fn pass_allowed(&mut self, out: &mut ReadBuf<'_>) -> bool {
        let count = (self.allowed - self.passed).min(out.remaining());
        if count == 0 {
            return false;
        }
        out.put_slice(&self.buffer[self.passed..self.passed + count]);
        self.passed += count;
        if self.passed == self.allowed {
            // The rest belongs to the next head. Usually there is none, and an idle connection has no buffer.
            self.buffer = self.buffer.split_off(self.allowed);
            self.passed = 0;
            self.allowed = 0;
        }
        true
    }

    fn read_inner(&mut self, context: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut read = ReadBuf::new(bytes);
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut read))?;
        Poll::Ready(Ok(read.filled().len()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictIo<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut bytes = [0; READ_BYTES];
        loop {
            if this.pass_allowed(out) {
                return Poll::Ready(Ok(()));
            }
            match this.phase {
                Phase::Refused => return Poll::Pending,
                Phase::Chunked | Phase::Body(_) => {
                    let limit = match this.phase {
                        Phase::Body(rest) => usize::try_from(rest).unwrap_or(usize::MAX),
                        _ => usize::MAX,
                    };
                    let limit = limit.min(READ_BYTES).min(out.remaining());
                    let count = ready!(this.read_inner(context, &mut bytes[..limit]))?;
                    out.put_slice(&bytes[..count]);
                    if let Phase::Body(rest) = this.phase {
                        this.phase = match rest - count as u64 {
                            0 => Phase::Head,
                            rest => Phase::Body(rest),
                        };
                    }
                    return Poll::Ready(Ok(()));
                }
                Phase::Head => {
                    if !this.buffer.is_empty() {
                        this.check_head();
                        if this.allowed > 0 {
                            continue;
                        }
                    }
                    match this.read_inner(context, &mut bytes) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                        Poll::Ready(Ok(count)) => this.buffer.extend_from_slice(&bytes[..count]),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending if this.connection.is_busy() => {
                            this.read_timer.stop();
                            return Poll::Pending;
                        }
                        Poll::Pending if this.buffer.is_empty() => {
                            ready!(this.read_timer.poll(context, Wait::Idle));
                            return Poll::Ready(Ok(()));
                        }
                        Poll::Pending => {
                            ready!(this.read_timer.poll(context, Wait::Head));
                            this.refuse(HeadError::TimedOut);
                        }
                    }
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> StrictIo<S> {
    /// Replaces a pending write by an error after [`WRITE_TIMEOUT`]. Reading single bytes does not reset the timeout: only a
    /// completed flush does.
    fn apply_write_timeout(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            ready!(self.write_timer.poll(context, Wait::Write));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StrictIo<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.apply_write_timeout(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(context, slices);
        this.apply_write_timeout(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_flush(context))?;
        this.write_timer.stop();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

/// What the connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Idle,
    Head,
    Write,
}

impl Wait {
    fn timeout(self) -> Duration {
        match self {
            Self::Idle => IDLE_TIMEOUT,
            Self::Head => HEAD_DEADLINE,
            Self::Write => WRITE_TIMEOUT,
        }
    }
}

/// A timer for one kind of wait at a time, created on first use.
#[derive(Default)]
struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    current: Option<Wait>,
}

impl Timer {
    /// Ready when the current wait has lasted for its timeout.
    fn poll(&mut self, context: &mut Context<'_>, wait: Wait) -> Poll<()> {
        let deadline = Instant::now() + wait.timeout();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if self.current.replace(wait) != Some(wait) {
            sleep.as_mut().reset(deadline);
        }
        sleep.as_mut().poll(context)
    }

    /// The next `poll` starts a new wait.
    fn stop(&mut self) {
        self.current = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// What the parser reads of `sent` within ten minutes of paused time.
    async fn filter(sent: &[u8]) -> Vec<u8> {
        let (mut peer, socket) = duplex(1 << 20);
        peer.write_all(sent).await.unwrap();
        let mut io = StrictIo::new(socket, Arc::default());
        let mut read = Vec::new();
        let all = io.read_to_end(&mut read);
        let _ = tokio::time::timeout(Duration::from_secs(600), all).await;
        read
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn heads_and_bodies_pass_as_they_are() {
        let sent = [GET, POST, b"a\0\n", GET].concat();
        assert_eq!(filter(&sent).await, sent);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_head_after_a_good_one_is_replaced_and_nothing_follows_it() {
        let bad = b"GET / HTTP/1.1\nHost: x\r\n\r\n";
        let sent = [POST, b"abc", bad, GET].concat();
        let expected = [POST, b"abc", &refused_head(HeadError::LineEnding)].concat();
        assert_eq!(filter(&sent).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_chunked_request_the_connection_closes() {
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n";
        let sent = [head, &b"\r\n3\r\nabc\r\n0\r\n\r\n"[..]].concat();
        let expected = [head, CLOSE, b"3\r\nabc\r\n0\r\n\r\n"].concat();
        assert_eq!(filter(&sent).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_end_is_refused_in_time() {
        let started = Instant::now();
        let sent = b"GET / HTTP/1.1\r\nHost: x\r\n";
        let (mut peer, socket) = duplex(1024);
        peer.write_all(sent).await.unwrap();
        let mut io = StrictIo::new(socket, Arc::default());
        let mut bytes = vec![0; 1024];
        let count = io.read(&mut bytes).await.unwrap();
        assert_eq!(bytes[..count], refused_head(HeadError::TimedOut));
        assert_eq!(started.elapsed(), HEAD_DEADLINE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_ends_unless_it_is_busy() {
        let (_peer, socket) = duplex(1024);
        let connection = Arc::<Connection>::default();
        let mut io = StrictIo::new(socket, Arc::clone(&connection));
        let started = Instant::now();
        let mut bytes = [0; 16];
        {
            let _busy = connection.mark_busy();
            let long = tokio::time::timeout(10 * IDLE_TIMEOUT, io.read(&mut bytes)).await;
            assert!(long.is_err());
        }
        let after = started.elapsed();
        assert_eq!(io.read(&mut bytes).await.unwrap(), 0);
        assert_eq!(started.elapsed() - after, IDLE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_or_little_times_out() {
        let (mut peer, socket) = duplex(16);
        let mut io = StrictIo::new(socket, Arc::default());
        let started = Instant::now();
        let reading = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let _ = peer.read(&mut [0]).await;
            }
        };
        let error = tokio::select! {
            error = io.write_all(&[0; 4096]) => error.unwrap_err(),
            () = reading => unreachable!("it does not end"),
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < 2 * WRITE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_everything_in_time_gets_a_new_timeout() {
        let (mut peer, socket) = duplex(16);
        let mut io = StrictIo::new(socket, Arc::default());
        for _ in 0..3 {
            let reading = async {
                tokio::time::sleep(WRITE_TIMEOUT - Duration::from_secs(1)).await;
                peer.read_exact(&mut [0; 64]).await
            };
            let writing = async {
                io.write_all(&[0; 64]).await?;
                io.flush().await
            };
            let (read, written) = tokio::join!(reading, writing);
            assert!(read.is_ok() && written.is_ok());
        }
    }
}
