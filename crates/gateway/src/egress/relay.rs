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
use super::meter::{Meter, Way};
use crate::events::Reason;

/// Bytes per read, and the maximum that a stalled tunnel holds in each direction. With half of it, a tunnel has a tenth
/// less throughput.
const BUFFER_BYTES: usize = 128 * 1024;
/// Maximum number of idle buffers of a thread.
const KEPT_BUFFERS: usize = 4;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of full length.
fn borrow() -> Vec<u8> {
    let kept = BUFFERS.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| vec![0; BUFFER_BYTES])
}

fn give_back(buffer: Vec<u8>) {
    // A buffer of the inspector is smaller and not pooled.
    if buffer.len() == BUFFER_BYTES {
        BUFFERS.with_borrow_mut(|kept| {
            if kept.len() < KEPT_BUFFERS {
                kept.push(buffer);
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
    let mut up = Direction::new(Way::Sent);
    let mut down = Direction::new(Way::Received);
    // Boxed, and dropped after the inspection: a tunnel may be open for hours.
    let mut inspector = Some(Box::new(inspector));
    up.take(&first, meter, &mut inspector)?;
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
type Inspecting = Option<Box<Inspector>>;

struct Direction {
    way: Way,
    /// Bytes that were read and not written, with the range that is left.
    waiting: Option<(Vec<u8>, usize, usize)>,
    unflushed: bool,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The reading side has ended, and the writing side must be shut down.
    Ending,
    Over,
}

impl Direction {
    fn new(way: Way) -> Self {
        Self { way, waiting: None, unflushed: false, phase: Phase::Open }
    }

    /// Takes bytes of the client that may have to be inspected.
    fn take(&mut self, bytes: &[u8], meter: &Meter, inspecting: &mut Inspecting) -> Result<(), Reason> {
        if bytes.is_empty() {
            return Ok(());
        }
        meter.count(self.way, bytes.len())?;
        let passed = match inspecting {
            Some(inspector) => inspector.push(bytes)?,
            None => bytes.to_vec(),
        };
        if inspecting.as_ref().is_some_and(|it| it.is_done()) {
            *inspecting = None;
        }
        let length = passed.len();
        self.waiting = (length > 0).then_some((passed, 0, length));
        Ok(())
    }

    fn poll<R, W>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        meter: &Meter,
        inspecting: &mut Inspecting,
    ) -> Result<Poll<()>, Reason>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            if let Some((buffer, from, to)) = &mut self.waiting {
                let written = Pin::new(&mut *writer).poll_write(context, &buffer[*from..*to]);
                let Poll::Ready(written) = written else {
                    return Ok(Poll::Pending);
                };
                *from += some(written)?;
                self.unflushed = true;
                if from == to
                    && let Some((buffer, ..)) = self.waiting.take()
                {
                    give_back(buffer);
                }
                continue;
            }
            match self.phase {
                Phase::Over => return Ok(Poll::Ready(())),
                Phase::Ending => {
                    let Poll::Ready(ended) = Pin::new(&mut *writer).poll_shutdown(context) else {
                        return Ok(Poll::Pending);
                    };
                    // A peer that is gone already needs no shutdown.
                    let _ = ended;
                    self.phase = Phase::Over;
                }
                Phase::Open => match self.read(context, reader, meter, inspecting)? {
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

    fn read<R: AsyncRead + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        meter: &Meter,
        inspecting: &mut Inspecting,
    ) -> Result<Poll<()>, Reason> {
        let mut buffer = borrow();
        let read = read_into(context, reader, &mut buffer);
        let count = match read {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Err(Reason::Broken),
            Poll::Pending => {
                give_back(buffer);
                return Ok(Poll::Pending);
            }
        };
        if count == 0 {
            give_back(buffer);
            // Bytes that the inspector still holds back never pass.
            self.phase = Phase::Ending;
        } else if self.way == Way::Sent && inspecting.is_some() {
            self.take(&buffer[..count], meter, inspecting)?;
            give_back(buffer);
        } else {
            if let Some(inspector) = inspecting {
                inspector.observe(&buffer[..count]);
                if inspector.is_done() {
                    *inspecting = None;
                }
            }
            meter.count(self.way, count)?;
            self.waiting = Some((buffer, 0, count));
        }
        Ok(Poll::Ready(()))
    }
}

fn read_into<R: AsyncRead + Unpin>(
    context: &mut Context<'_>,
    reader: &mut R,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut read = ReadBuf::new(buffer);
    ready!(Pin::new(reader).poll_read(context, &mut read))?;
    Poll::Ready(Ok(read.filled().len()))
}

/// Treats a write of zero bytes as an error: the other side accepts no more.
fn some(written: io::Result<usize>) -> Result<usize, Reason> {
    match written {
        Ok(count @ 1..) => Ok(count),
        Ok(0) | Err(_) => Err(Reason::Broken),
    }
}
