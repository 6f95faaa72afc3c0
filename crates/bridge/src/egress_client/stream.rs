//! A connection to the gateway or through it, over any transport.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

#[derive(Debug)]
pub struct Stream {
    /// Bytes that arrived together with the gateway's answer. They are read first.
    early: Bytes,
    layer: Layer,
}

#[derive(Debug)]
enum Layer {
    Unix(UnixStream),
    // In boxes: the TLS state is large, and streams are moved.
    Gateway(Box<TlsStream<TcpStream>>),
    EndToEnd(Box<TlsStream<Stream>>),
}

impl Stream {
    pub(super) fn unix(stream: UnixStream) -> Self {
        Self::from_layer(Layer::Unix(stream))
    }

    pub(super) fn gateway(stream: TlsStream<TcpStream>) -> Self {
        Self::from_layer(Layer::Gateway(Box::new(stream)))
    }

    pub(super) fn end_to_end(stream: TlsStream<Stream>) -> Self {
        Self::from_layer(Layer::EndToEnd(Box::new(stream)))
    }

    /// Adds bytes that are read before all others.
    pub(super) fn with_early(self, early: Bytes) -> Self {
        debug_assert!(self.early.is_empty(), "there is one answer");
        Self { early, ..self }
    }

    fn from_layer(layer: Layer) -> Self {
        Self { early: Bytes::new(), layer }
    }
}

/// Applies an expression to each kind of layer.
macro_rules! on_layer {
    ($stream:expr, $layer:ident => $action:expr) => {
        match &mut $stream.get_mut().layer {
            Layer::Unix($layer) => $action,
            Layer::Gateway($layer) => $action,
            Layer::EndToEnd($layer) => $action,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let count = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early.split_to(count));
            return Poll::Ready(Ok(()));
        }
        on_layer!(self, layer => Pin::new(layer).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_layer!(self, layer => Pin::new(layer).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_layer!(self, layer => Pin::new(layer).poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.layer {
            Layer::Unix(layer) => layer.is_write_vectored(),
            Layer::Gateway(layer) => layer.is_write_vectored(),
            Layer::EndToEnd(layer) => layer.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_layer!(self, layer => Pin::new(layer).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_layer!(self, layer => Pin::new(layer).poll_shutdown(context))
    }
}
