//! Forwards bodies of requests and responses by the framing in their heads, and no byte beyond it.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::meter::{Flow, Meter};
use crate::events::Reason;

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Maximum number of digits of a chunk size: larger than any chunk, and without overflow.
const MAX_SIZE_DIGITS: usize = 15;
/// Maximum number of bytes of trailers. They are dropped.
const MAX_TRAILER_BYTES: usize = 8 * 1024;

/// Why a body was not forwarded to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    /// The sender broke off.
    Source,
    /// The receiver does not accept it.
    Sink,
    /// It violates its framing.
    Malformed,
    /// A byte limit is exceeded.
    Limit(Reason),
}

/// How a body is framed for the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEncoding {
    Plain,
    Chunked,
}

/// The sender of a body, with what has been read of it already.
pub struct BodySource<'a, R> {
    pub reader: R,
    /// Bytes that were read and not parsed.
    pub buffered: &'a mut Vec<u8>,
}

/// Forwards a body and counts its bytes.
pub struct BodyForwarder<'a, R, W> {
    pub source: BodySource<'a, R>,
    pub sink: W,
    pub meter: &'a Meter,
    pub flow: Flow,
}

impl<R: AsyncRead + Unpin> BodySource<'_, R> {
    /// Reads more. Returns `false` at the end.
    pub async fn read_more(&mut self) -> Result<bool, BodyError> {
        self.buffered.reserve(READ_BYTES);
        let read = self.reader.read_buf(self.buffered).await;
        read.map(|count| count > 0).map_err(|_| BodyError::Source)
    }
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> BodyForwarder<'_, R, W> {
    /// Forwards exactly this many bytes.
    pub async fn forward_exact(&mut self, mut left: u64) -> Result<(), BodyError> {
        while left > 0 {
            if self.source.buffered.is_empty() && !self.source.read_more().await? {
                return Err(BodyError::Source);
            }
            let here = self.source.buffered.len();
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(here);
            self.forward_buffered(count).await?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Forwards chunks, each parsed and written again: the output has only one notation.
    pub async fn forward_chunked(&mut self, encode: BodyEncoding) -> Result<(), BodyError> {
        loop {
            let line = self.read_line(MAX_SIZE_DIGITS + 2).await?;
            let digits = str::from_utf8(&line).map_err(|_| BodyError::Malformed)?;
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !plain {
                return Err(BodyError::Malformed);
            }
            let size = u64::from_str_radix(digits, 16).map_err(|_| BodyError::Malformed)?;
            if size == 0 {
                self.skip_trailers().await?;
                return self.write_last_chunk(encode).await;
            }
            if encode == BodyEncoding::Chunked {
                self.write_raw(format!("{size:x}\r\n").as_bytes()).await?;
            }
            self.forward_exact(size).await?;
            if !self.read_line(2).await?.is_empty() {
                return Err(BodyError::Malformed);
            }
            if encode == BodyEncoding::Chunked {
                self.write_raw(b"\r\n").await?;
            }
        }
    }

    /// Forwards everything until the sender closes.
    pub async fn forward_until_end(&mut self, encode: BodyEncoding) -> Result<(), BodyError> {
        loop {
            if self.source.buffered.is_empty() && !self.source.read_more().await? {
                return self.write_last_chunk(encode).await;
            }
            let count = self.source.buffered.len();
            if encode == BodyEncoding::Chunked {
                self.write_raw(format!("{count:x}\r\n").as_bytes()).await?;
            }
            self.forward_buffered(count).await?;
            if encode == BodyEncoding::Chunked {
                self.write_raw(b"\r\n").await?;
            }
        }
    }

    async fn write_last_chunk(&mut self, encode: BodyEncoding) -> Result<(), BodyError> {
        match encode {
            BodyEncoding::Plain => Ok(()),
            BodyEncoding::Chunked => self.write_raw(b"0\r\n\r\n").await,
        }
    }

    async fn skip_trailers(&mut self) -> Result<(), BodyError> {
        let mut left = MAX_TRAILER_BYTES;
        loop {
            let line = self.read_line(left).await?;
            if line.is_empty() {
                return Ok(());
            }
            left = left.saturating_sub(line.len() + 2);
        }
    }

    /// A line of at most `most` bytes including its CR LF, which is removed. It contains neither inside.
    async fn read_line(&mut self, most: usize) -> Result<Vec<u8>, BodyError> {
        loop {
            let buffered = &mut *self.source.buffered;
            if let Some(end) = buffered.iter().position(|byte| *byte == b'\n') {
                let rest = buffered.split_off(end + 1);
                let mut line = std::mem::replace(buffered, rest);
                let ended = line.len() <= most && line.ends_with(b"\r\n");
                line.truncate(line.len().saturating_sub(2));
                let plain = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
                if !ended || !line.iter().all(plain) {
                    return Err(BodyError::Malformed);
                }
                return Ok(line);
            }
            if buffered.len() >= most {
                return Err(BodyError::Malformed);
            }
            if !self.source.read_more().await? {
                return Err(BodyError::Source);
            }
        }
    }

    /// Forwards the first `count` buffered bytes.
    async fn forward_buffered(&mut self, count: usize) -> Result<(), BodyError> {
        let counted = self.meter.count(self.flow, count);
        counted.map_err(BodyError::Limit)?;
        let taken = &self.source.buffered[..count];
        self.sink.write_all(taken).await.map_err(|_| BodyError::Sink)?;
        if count == self.source.buffered.len() {
            self.source.buffered.clear();
        } else {
            self.source.buffered.drain(..count);
        }
        self.sink.flush().await.map_err(|_| BodyError::Sink)
    }

    async fn write_raw(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        self.sink.write_all(bytes).await.map_err(|_| BodyError::Sink)?;
        self.sink.flush().await.map_err(|_| BodyError::Sink)
    }
}
