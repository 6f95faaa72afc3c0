//! Finds the end of a response body.

use sympozium_ipc::strict_head::Framing;

/// Maximum number of bytes of the line before a chunk.
pub const MAX_CHUNK_LINE_BYTES: usize = 256;
/// Maximum number of digits of a chunk size: larger than any body that is read, and without overflow.
const MAX_CHUNK_DIGITS: usize = 15;

/// A body that violates its framing or encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Garbled(pub(super) &'static str);

/// The state of a body that is being read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// This many bytes are left.
    Length(u64),
    Chunked(Chunk),
    /// The body ends when the connection is closed.
    UntilTheEnd,
}

/// The position within a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// In the line before a chunk.
    Line {
        /// The size as far as it is parsed.
        size: u64,
        /// Number of digits parsed.
        digits: usize,
        /// Number of bytes of the line so far.
        bytes: usize,
        /// The part of the line that the last byte belongs to.
        at: At,
    },
    /// In the data of a chunk; this many bytes are left.
    Data(u64),
    /// After the data of a chunk; whether CR was read.
    After(bool),
    /// After the last chunk.
    Over,
}

/// The parts of the line before a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Size,
    /// A chunk extension, which is ignored.
    Extension,
    /// CR.
    Return,
}

impl Frame {
    /// The body that follows a head with this status and framing.
    pub fn new(status: u16, framing: Option<Framing>) -> Self {
        match (status, framing) {
            // These statuses have no body, whatever the head says.
            (204 | 304, _) => Self::Length(0),
            (_, Some(Framing::Length(length))) => Self::Length(length),
            (_, Some(Framing::Chunked)) => Self::Chunked(Chunk::START),
            (_, None) => Self::UntilTheEnd,
        }
    }

    /// Takes the next piece of the body from the start of `bytes`. `None` if they contain no data.
    ///
    /// # Errors
    ///
    /// Returns an error if the chunks violate RFC 9112.
    pub fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<&'b [u8]>, Garbled> {
        match self {
            Self::Length(left) => Ok(take(bytes, left)),
            Self::Chunked(chunk) => chunk.next(bytes),
            Self::UntilTheEnd => {
                let mut whatever_comes = u64::MAX;
                Ok(take(bytes, &mut whatever_comes))
            }
        }
    }

    /// Whether the whole body has been read.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunk::Over))
    }

    /// Whether the body is complete if the connection is closed now.
    pub fn may_end(&self) -> bool {
        self.is_over() || *self == Self::UntilTheEnd
    }
}

impl Chunk {
    const START: Self = Self::Line { size: 0, digits: 0, bytes: 0, at: At::Size };

    fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<&'b [u8]>, Garbled> {
        loop {
            if let Self::Data(left) = self {
                let piece = take(bytes, left);
                if *left == 0 {
                    *self = Self::After(false);
                }
                return Ok(piece);
            }
            if *self == Self::Over {
                // What follows are trailers, which are ignored.
                return Ok(None);
            }
            let Some((&byte, rest)) = bytes.split_first() else {
                return Ok(None);
            };
            *bytes = rest;
            *self = self.after(byte)?;
        }
    }

    /// Consumes one byte outside of the data.
    fn after(self, byte: u8) -> Result<Self, Garbled> {
        match (self, byte) {
            (Self::After(false), b'\r') => Ok(Self::After(true)),
            (Self::After(true), b'\n') => Ok(Self::START),
            (Self::After(_), _) => Err(Garbled("a chunk is longer than it says")),
            (Self::Line { bytes, .. }, _) if bytes == MAX_CHUNK_LINE_BYTES => {
                Err(Garbled("the line before a chunk is too long"))
            }
            (Self::Line { size, digits, bytes, at }, byte) => {
                let line = |size, digits, at| Self::Line { size, digits, bytes: bytes + 1, at };
                match (at, byte) {
                    (At::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                        if digits == MAX_CHUNK_DIGITS {
                            return Err(Garbled("a chunk is too large"));
                        }
                        let digit = char::from(byte).to_digit(16).unwrap_or_default();
                        Ok(line(size * 16 + u64::from(digit), digits + 1, At::Size))
                    }
                    (At::Size, b';') if digits > 0 => Ok(line(size, digits, At::Extension)),
                    (At::Size, b'\r') if digits > 0 => Ok(line(size, digits, At::Return)),
                    (At::Extension, b'\r') => Ok(line(size, digits, At::Return)),
                    (At::Extension, b'\t' | b' '..=b'~' | 0x80..) => Ok(line(size, digits, At::Extension)),
                    (At::Return, b'\n') if size == 0 => Ok(Self::Over),
                    (At::Return, b'\n') => Ok(Self::Data(size)),
                    _ => Err(Garbled("the size of a chunk cannot be read")),
                }
            }
            (Self::Data(_) | Self::Over, _) => unreachable!("the caller has seen to these"),
        }
    }
}

/// Takes as many bytes as there are, up to `left`.
fn take<'b>(bytes: &mut &'b [u8], left: &mut u64) -> Option<&'b [u8]> {
    let wanted = usize::try_from(*left).unwrap_or(usize::MAX);
    let (piece, rest) = bytes.split_at(bytes.len().min(wanted));
    *bytes = rest;
    *left -= piece.len() as u64;
    (!piece.is_empty()).then_some(piece)
}

#[cfg(test)]
mod tests;
