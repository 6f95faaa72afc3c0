//! The connection below HTTP, where it can be cut or be made to carry anything.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::reply::Then;

/// A connection that obeys its [`Control`].
pub struct Wire<S> {
    stream: S,
    control: Control,
}

/// How an answer, seen from above HTTP, says what happens below.
#[derive(Clone, Default)]
pub struct Control(Arc<Mutex<Orders>>);

#[derive(Default)]
struct Orders {
    /// Bytes that may still be written.
    left: Option<u64>,
    /// Cut as soon as all that was written has left.
    cut: bool,
    raw: Option<(Bytes, Then)>,
}

impl Control {
    /// From here on so many bytes are written, then the connection is cut; `None` for all of them.
    pub fn allow(&self, bytes: Option<u64>) {
        self.0.lock().left = bytes;
    }

    /// Cuts the connection once all that was written has left. HTTP flushes whenever a body has to wait, and that does it.
    pub fn cut(&self) {
        self.0.lock().cut = true;
    }

    /// Sends these bytes in place of whatever HTTP writes.
    pub fn send_raw(&self, bytes: Bytes, then: Then) {
        self.0.lock().raw = Some((bytes, then));
    }
}

impl<S> Wire<S> {
    pub fn new(stream: S, control: Control) -> Self {
        Self { stream, control }
    }
}

/// Ends the connection: HTTP drops it, with no word of goodbye by TLS.
fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "cut by the script")
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut orders = this.control.0.lock();
        let mut stream = Pin::new(&mut this.stream);
        if orders.raw.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let Some(left) = orders.left else {
            return stream.poll_write(context, bytes);
        };
        if left == 0 {
            ready!(stream.as_mut().poll_flush(context))?;
            return Poll::Ready(Err(broken()));
        }
        let allowed = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let written = ready!(stream.poll_write(context, &bytes[..allowed]))?;
        orders.left = Some(left.saturating_sub(written as u64));
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let orders = this.control.0.lock();
        if orders.raw.is_none() && orders.left.is_none() {
            return Pin::new(&mut this.stream).poll_write_vectored(context, buffers);
        }
        drop(orders);
        let first = buffers.iter().find(|buffer| !buffer.is_empty());
        let first = first.map_or(&[][..], |buffer| buffer);
        Pin::new(this).poll_write(context, first)
    }

    /// So that head, size and content of a chunk leave in one write.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut orders = this.control.0.lock();
        let mut stream = Pin::new(&mut this.stream);
        if let Some((bytes, _)) = &mut orders.raw {
            while !bytes.is_empty() {
                let written = ready!(stream.as_mut().poll_write(context, bytes))?;
                let _ = bytes.split_to(written);
            }
        }
        ready!(stream.poll_flush(context))?;
        match &orders.raw {
            Some((_, Then::Hang)) => return Poll::Pending,
            Some((_, Then::Close)) => return Poll::Ready(Err(broken())),
            None => {}
        }
        if orders.cut || orders.left == Some(0) {
            return Poll::Ready(Err(broken()));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
