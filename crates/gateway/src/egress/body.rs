//! Forwards bodies of requests and responses by the framing in their heads, and no byte beyond it.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::meter::{Meter, Way};
use crate::events::Reason;

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Maximum number of digits of a chunk size: larger than any chunk, and without overflow.
const MAX_SIZE_DIGITS: usize = 15;
/// Maximum number of bytes of trailers. They are dropped.
const MAX_TRAILER_BYTES: usize = 8 * 1024;

/// Why a body was not forwarded to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
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
pub enum Encode {
    Plain,
    Chunks,
}

/// The sender of a body, with what has been read of it already.
pub struct Source<'a, R> {
    pub reader: R,
    /// Bytes that were read and not parsed.
    pub buffered: &'a mut Vec<u8>,
}

/// Forwards a body and counts its bytes.
pub struct Passing<'a, R, W> {
    pub source: Source<'a, R>,
    pub sink: W,
    pub meter: &'a Meter,
    pub way: Way,
}

impl<R: AsyncRead + Unpin> Source<'_, R> {
    /// Reads more. Returns `false` at the end.
    pub async fn more(&mut self) -> Result<bool, Fault> {
        self.buffered.reserve(READ_BYTES);
        let read = self.reader.read_buf(self.buffered).await;
        read.map(|count| count > 0).map_err(|_| Fault::Source)
    }
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Passing<'_, R, W> {
    /// Forwards exactly this many bytes.
    pub async fn length(&mut self, mut left: u64) -> Result<(), Fault> {
        while left > 0 {
            if self.source.buffered.is_empty() && !self.source.more().await? {
                return Err(Fault::Source);
            }
            let here = self.source.buffered.len();
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(here);
            self.write(count).await?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Forwards chunks, each parsed and written again: the output has only one notation.
    pub async fn chunked(&mut self, encode: Encode) -> Result<(), Fault> {
        loop {
            let line = self.line(MAX_SIZE_DIGITS + 2).await?;
            let digits = str::from_utf8(&line).map_err(|_| Fault::Malformed)?;
            let plain = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_hexdigit());
            if !plain {
                return Err(Fault::Malformed);
            }
            let size = u64::from_str_radix(digits, 16).map_err(|_| Fault::Malformed)?;
            if size == 0 {
                self.trailers().await?;
                return self.last_chunk(encode).await;
            }
            if encode == Encode::Chunks {
                self.sink(format!("{size:x}\r\n").as_bytes()).await?;
            }
            self.length(size).await?;
            if !self.line(2).await?.is_empty() {
                return Err(Fault::Malformed);
            }
            if encode == Encode::Chunks {
                self.sink(b"\r\n").await?;
            }
        }
    }

    /// Forwards everything until the sender closes.
    pub async fn until_end(&mut self, encode: Encode) -> Result<(), Fault> {
        loop {
            if self.source.buffered.is_empty() && !self.source.more().await? {
                return self.last_chunk(encode).await;
            }
            let count = self.source.buffered.len();
            if encode == Encode::Chunks {
                self.sink(format!("{count:x}\r\n").as_bytes()).await?;
            }
            self.write(count).await?;
            if encode == Encode::Chunks {
                self.sink(b"\r\n").await?;
            }
        }
    }

    async fn last_chunk(&mut self, encode: Encode) -> Result<(), Fault> {
        match encode {
            Encode::Plain => Ok(()),
            Encode::Chunks => self.sink(b"0\r\n\r\n").await,
        }
    }

    async fn trailers(&mut self) -> Result<(), Fault> {
        let mut left = MAX_TRAILER_BYTES;
        loop {
            let line = self.line(left).await?;
            if line.is_empty() {
                return Ok(());
            }
            left = left.saturating_sub(line.len() + 2);
        }
    }

    /// A line of at most `most` bytes including its CR LF, which is removed. It contains neither inside.
    async fn line(&mut self, most: usize) -> Result<Vec<u8>, Fault> {
        loop {
            let buffered = &mut *self.source.buffered;
            if let Some(end) = buffered.iter().position(|byte| *byte == b'\n') {
                let rest = buffered.split_off(end + 1);
                let mut line = std::mem::replace(buffered, rest);
                let ended = line.len() <= most && line.ends_with(b"\r\n");
                line.truncate(line.len().saturating_sub(2));
                let plain = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
                if !ended || !line.iter().all(plain) {
                    return Err(Fault::Malformed);
                }
                return Ok(line);
            }
            if buffered.len() >= most {
                return Err(Fault::Malformed);
            }
            if !self.source.more().await? {
                return Err(Fault::Source);
            }
        }
    }

    /// Forwards the first `count` buffered bytes.
    async fn write(&mut self, count: usize) -> Result<(), Fault> {
        let counted = self.meter.count(self.way, count);
        counted.map_err(Fault::Limit)?;
        let taken = &self.source.buffered[..count];
        self.sink.write_all(taken).await.map_err(|_| Fault::Sink)?;
        if count == self.source.buffered.len() {
            self.source.buffered.clear();
        } else {
            self.source.buffered.drain(..count);
        }
        self.sink.flush().await.map_err(|_| Fault::Sink)
    }

    async fn sink(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.sink.write_all(bytes).await.map_err(|_| Fault::Sink)?;
        self.sink.flush().await.map_err(|_| Fault::Sink)
    }
}
