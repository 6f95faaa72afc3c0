//! One HTTP/2 connection of the run API: bounded in everything, and for one run.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{ClaimResult, MAX_CONNECTIONS_OF_RUN, MAX_HEAD, MAX_STREAMS, RunApiService};
use crate::connection_limits::ConnectionSlot;
use crate::plans::Run;

/// The HTTP/2 client preface.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Flow-control window of a stream.
const STREAM_WINDOW: u32 = 64 << 10;
/// Flow-control window of a connection.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Maximum number of bytes of a frame.
const MAX_FRAME: u32 = 16 << 10;
/// Maximum number of buffered answer bytes of a stream.
const SEND_BUFFER: usize = 64 << 10;
/// Size of the HPACK table.
const HEADER_TABLE: u32 = 4 << 10;
/// Maximum number of streams that a peer resets before they are accepted. One more ends the connection.
const MAX_RESET_BY_PEER: usize = 32;
/// Maximum number of streams that we reset for an error. One more ends the connection.
const MAX_RESET_BY_US: usize = 64;
/// How long pending answers may take after the run has ended.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// The run that a connection belongs to: none before a token was authenticated, then one run for good.
#[derive(Debug)]
pub(crate) struct ConnectionOwner {
    /// The number of the connection, for events.
    pub(super) connection: u64,
    run: watch::Sender<Option<Arc<Run>>>,
    slot: Mutex<ConnectionSlot>,
}

impl ConnectionOwner {
    fn new(connection: u64, permit: ConnectionSlot) -> Self {
        Self { connection, run: watch::Sender::new(None), slot: Mutex::new(permit) }
    }

    /// Claims the connection for this run, unless it has an owner.
    pub(super) fn claim(&self, run: &Arc<Run>) -> ClaimResult {
        let mut claim = ClaimResult::Claimed;
        self.run.send_if_modified(|owner| match owner {
            Some(owner) => {
                if !Arc::ptr_eq(owner, run) {
                    claim = ClaimResult::OtherRun;
                }
                false
            }
            None => {
                let more = |count: usize| (count < MAX_CONNECTIONS_OF_RUN).then_some(count + 1);
                let order = Ordering::Relaxed;
                let count = &run.state.connections;
                if count.fetch_update(order, order, more).is_err() {
                    claim = ClaimResult::TooManyConnections;
                    return false;
                }
                let mut permit = self.slot.lock();
                if let Err(reason) = permit.authenticate(run.namespace(), run.uid()) {
                    count.fetch_sub(1, order);
                    claim = ClaimResult::NoShare(reason);
                    return false;
                }
                *owner = Some(Arc::clone(run));
                true
            }
        });
        claim
    }
}

impl Drop for ConnectionOwner {
    fn drop(&mut self) {
        if let Some(run) = self.run.borrow().as_ref() {
            run.state.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Serves a connection until the client closes it, the run ends, the gateway shuts down, or no token arrives in time.
pub(crate) async fn serve<C>(
    served: Arc<dyn RunApiService>,
    stream: C,
    (connection, permit): (u64, ConnectionSlot),
    mut ending: watch::Receiver<bool>,
    patience: Duration,
) where
    C: AsyncRead + AsyncWrite + Unpin + Send,
{
    let whose = Arc::new(ConnectionOwner::new(connection, permit));
    let mut owner = whose.run.subscribe();
    let service = service_fn(move |request| {
        let answering = Arc::clone(&served).answer(request, Arc::clone(&whose));
        async move { Ok::<_, Infallible>(answering.await) }
    });
    let serving = http2_builder().serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let mut ended = pin!(async { drop(ending.wait_for(|ending| *ending).await) });
    let owned = async {
        let owned = timeout(patience, owner.wait_for(Option::is_some)).await;
        owned.ok()?.ok()?.clone()
    };
    let run = tokio::select! {
        biased;
        () = &mut ended => return,
        served = &mut serving => return log_end(connection, served),
        run = owned => run,
    };
    let Some(run) = run else {
        tracing::debug!(connection, "the connection ended without a valid token");
        return;
    };
    tokio::select! {
        biased;
        () = &mut ended => return,
        served = &mut serving => return log_end(connection, served),
        () = run.wait_end() => {}
    }
    serving.as_mut().graceful_shutdown();
    tokio::select! {
        biased;
        () = &mut ended => {}
        served = timeout(CLOSE_GRACE, serving) => log_end(connection, served.unwrap_or(Ok(()))),
    }
}

fn log_end(connection: u64, served: hyper::Result<()>) {
    if let Err(error) = served {
        tracing::debug!(connection, %error, "a connection of the run API broke");
    }
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .max_frame_size(MAX_FRAME)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .header_table_size(HEADER_TABLE)
        .max_pending_accept_reset_streams(MAX_RESET_BY_PEER)
        .max_local_error_reset_streams(MAX_RESET_BY_US)
        .auto_date_header(false);
    builder
}

/// A stream with bytes that were read before.
#[derive(Debug)]
pub(crate) struct PrefixedStream<C> {
    prefix: Vec<u8>,
    consumed: usize,
    stream: C,
}

impl<C> PrefixedStream<C> {
    pub(crate) fn new(first: Vec<u8>, stream: C) -> Self {
        Self { prefix: first, consumed: 0, stream }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for PrefixedStream<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.prefix[self.consumed..];
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        self.consumed += count;
        if self.consumed == self.prefix.len() {
            self.prefix = Vec::new();
            self.consumed = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
