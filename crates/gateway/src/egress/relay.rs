//! Relays bytes between two connections.
//!
//! An idle tunnel holds no buffer: buffers belong to the thread, and a tunnel has one only while it holds bytes that
//! the other side has not accepted yet.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::inspector::Inspector;
use super::meter::{Flow, Meter};
use crate::events::Reason;

/// Bytes per read, and the maximum that a stalled tunnel holds in each direction. With half of it, a tunnel has a tenth
/// less throughput.
const BUFFER_BYTES: usize = 128 * 1024;
/// Maximum number of idle buffers of a thread.
const MAX_POOLED_BUFFERS: usize = 4;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of full length.
fn take_buffer() -> Vec<u8> {
    let pooled = BUFFERS.with_borrow_mut(Vec::pop);
    pooled.unwrap_or_else(|| vec![0; BUFFER_BYTES])
}

fn return_buffer(buffer: Vec<u8>) {
    // A buffer of the inspector is smaller and not pooled.
    if buffer.len() == BUFFER_BYTES {
        BUFFERS.with_borrow_mut(|pool| {
            if pool.len() < MAX_POOLED_BUFFERS {
                pool.push(buffer);
            }
        });
    }
}

/// Relays bytes in both directions until both sides have ended, one fails, or `meter` reports a limit.
///
/// `first` is what the client has sent already. Nothing of the client passes before `inspector` has checked it.
pub async fn relay<C, S>(
    client: &mut C,
    server: &mut S,
    meter: &Meter,
    inspector: Inspector,
    first: Vec<u8>,
) -> Result<(), Reason>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = RelayHalf::new(Flow::Sent);
    let mut down = RelayHalf::new(Flow::Received);
    // Boxed, and dropped after the inspection: a tunnel may be open for hours.
    let mut inspector = Some(Box::new(inspector));
    up.push_inspected(&first, meter, &mut inspector)?;
    drop(first);
    poll_fn(|context| {
        let sent = up.poll(context, client, server, meter, &mut inspector)?;
        let received = down.poll(context, server, client, meter, &mut inspector)?;
        match (sent, received) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    })
    .await
}

/// The inspector, until it is done.
type InspectorSlot = Option<Box<Inspector>>;

struct RelayHalf {
    flow: Flow,
    /// Bytes that were read and not written, with the range that is left.
    pending: Option<(Vec<u8>, usize, usize)>,
    unflushed: bool,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The reading side has ended, and the writing side must be shut down.
    Closing,
    Closed,
}

impl RelayHalf {
    fn new(way: Flow) -> Self {
        Self { flow: way, pending: None, unflushed: false, phase: Phase::Open }
    }

    /// Takes bytes of the client that may have to be inspected.
    fn push_inspected(&mut self, bytes: &[u8], meter: &Meter, inspecting: &mut InspectorSlot) -> Result<(), Reason> {
        if bytes.is_empty() {
            return Ok(());
        }
        meter.count(self.flow, bytes.len())?;
        let passed = match inspecting {
            Some(inspector) => inspector.push(bytes)?,
            None => bytes.to_vec(),
        };
        if inspecting.as_ref().is_some_and(|inspector| inspector.is_done()) {
            *inspecting = None;
        }
        let length = passed.len();
        self.pending = (length > 0).then_some((passed, 0, length));
        Ok(())
    }

    fn poll<R, W>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        meter: &Meter,
        inspecting: &mut InspectorSlot,
    ) -> Result<Poll<()>, Reason>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            if let Some((buffer, from, to)) = &mut self.pending {
                let written = Pin::new(&mut *writer).poll_write(context, &buffer[*from..*to]);
                let Poll::Ready(written) = written else {
                    return Ok(Poll::Pending);
                };
                *from += check_written(written)?;
                self.unflushed = true;
                if from == to
                    && let Some((buffer, ..)) = self.pending.take()
                {
                    return_buffer(buffer);
                }
                continue;
            }
            match self.phase {
                Phase::Closed => return Ok(Poll::Ready(())),
                Phase::Closing => {
                    let Poll::Ready(ended) = Pin::new(&mut *writer).poll_shutdown(context) else {
                        return Ok(Poll::Pending);
                    };
                    // A peer that is gone already needs no shutdown.
                    let _ = ended;
                    self.phase = Phase::Closed;
                }
                Phase::Open => match self.poll_fill(context, reader, meter, inspecting)? {
                    Poll::Ready(()) => {}
                    Poll::Pending => {
                        if self.unflushed
                            && let Poll::Ready(flushed) = Pin::new(&mut *writer).poll_flush(context)
                        {
                            flushed.map_err(|_| Reason::Broken)?;
                            self.unflushed = false;
                        }
                        return Ok(Poll::Pending);
                    }
                },
            }
        }
    }

    fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        meter: &Meter,
        inspecting: &mut InspectorSlot,
    ) -> Result<Poll<()>, Reason> {
        let mut buffer = take_buffer();
        let read = poll_read_into(context, reader, &mut buffer);
        let count = match read {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Err(Reason::Broken),
            Poll::Pending => {
                return_buffer(buffer);
                return Ok(Poll::Pending);
            }
        };
        if count == 0 {
            return_buffer(buffer);
            // Bytes that the inspector still holds back never pass.
            self.phase = Phase::Closing;
        } else if self.flow == Flow::Sent && inspecting.is_some() {
            self.push_inspected(&buffer[..count], meter, inspecting)?;
            return_buffer(buffer);
        } else {
            if let Some(inspector) = inspecting {
                inspector.observe(&buffer[..count]);
                if inspector.is_done() {
                    *inspecting = None;
                }
            }
            meter.count(self.flow, count)?;
            self.pending = Some((buffer, 0, count));
        }
        Ok(Poll::Ready(()))
    }
}

fn poll_read_into<R: AsyncRead + Unpin>(
    context: &mut Context<'_>,
    reader: &mut R,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut read = ReadBuf::new(buffer);
    ready!(Pin::new(reader).poll_read(context, &mut read))?;
    Poll::Ready(Ok(read.filled().len()))
}

/// Treats a write of zero bytes as an error: the other side accepts no more.
fn check_written(written: io::Result<usize>) -> Result<usize, Reason> {
    match written {
        Ok(count @ 1..) => Ok(count),
        Ok(0) | Err(_) => Err(Reason::Broken),
    }
}
