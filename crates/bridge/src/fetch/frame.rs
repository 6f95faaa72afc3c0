//! Finds the end of a response body.

use sympozium_ipc::strict_head::Framing;

/// Maximum number of bytes of the line before a chunk.
pub const MAX_CHUNK_LINE_BYTES: usize = 256;
/// Maximum number of digits of a chunk size: larger than any body that is read, and without overflow.
const MAX_CHUNK_DIGITS: usize = 15;

/// A body that violates its framing or encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBody(pub(super) &'static str);

/// The state of a body that is being read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyFraming {
    /// This many bytes are left.
    Length(u64),
    Chunked(ChunkState),
    /// The body ends when the connection is closed.
    UntilClose,
}

/// The position within a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkState {
    /// In the line before a chunk.
    Line {
        /// The size as far as it is parsed.
        size: u64,
        /// Number of digits parsed.
        digits: usize,
        /// Number of bytes of the line so far.
        bytes: usize,
        /// The part of the line that the last byte belongs to.
        part: LinePart,
    },
    /// In the data of a chunk; this many bytes are left.
    Data(u64),
    /// After the data of a chunk; whether CR was read.
    AfterData(bool),
    /// After the last chunk.
    End,
}

/// The parts of the line before a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinePart {
    Size,
    /// A chunk extension, which is ignored.
    Extension,
    /// CR.
    CarriageReturn,
}

impl BodyFraming {
    /// The body that follows a head with this status and framing.
    pub fn new(status: u16, framing: Option<Framing>) -> Self {
        match (status, framing) {
            // These statuses have no body, whatever the head says.
            (204 | 304, _) => Self::Length(0),
            (_, Some(Framing::Length(length))) => Self::Length(length),
            (_, Some(Framing::Chunked)) => Self::Chunked(ChunkState::START),
            (_, None) => Self::UntilClose,
        }
    }

    /// Takes the next piece of the body from the start of `bytes`. `None` if they contain no data.
    ///
    /// # Errors
    ///
    /// Returns an error if the chunks violate RFC 9112.
    pub fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<&'b [u8]>, InvalidBody> {
        match self {
            Self::Length(left) => Ok(take_up_to(bytes, left)),
            Self::Chunked(chunk) => chunk.next(bytes),
            Self::UntilClose => {
                let mut whatever_comes = u64::MAX;
                Ok(take_up_to(bytes, &mut whatever_comes))
            }
        }
    }

    /// Whether the whole body has been read.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(ChunkState::End))
    }

    /// Whether the body is complete if the connection is closed now.
    pub fn may_close(&self) -> bool {
        self.is_complete() || *self == Self::UntilClose
    }
}

impl ChunkState {
    const START: Self = Self::Line { size: 0, digits: 0, bytes: 0, part: LinePart::Size };

    fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<&'b [u8]>, InvalidBody> {
        loop {
            if let Self::Data(left) = self {
                let piece = take_up_to(bytes, left);
                if *left == 0 {
                    *self = Self::AfterData(false);
                }
                return Ok(piece);
            }
            if *self == Self::End {
                // What follows are trailers, which are ignored.
                return Ok(None);
            }
            let Some((&byte, rest)) = bytes.split_first() else {
                return Ok(None);
            };
            *bytes = rest;
            *self = self.step(byte)?;
        }
    }

    /// Consumes one byte outside of the data.
    fn step(self, byte: u8) -> Result<Self, InvalidBody> {
        match (self, byte) {
            (Self::AfterData(false), b'\r') => Ok(Self::AfterData(true)),
            (Self::AfterData(true), b'\n') => Ok(Self::START),
            (Self::AfterData(_), _) => Err(InvalidBody("a chunk is longer than it says")),
            (Self::Line { bytes, .. }, _) if bytes == MAX_CHUNK_LINE_BYTES => {
                Err(InvalidBody("the line before a chunk is too long"))
            }
            (Self::Line { size, digits, bytes, part: at }, byte) => {
                let line = |size, digits, at| Self::Line { size, digits, bytes: bytes + 1, part: at };
                match (at, byte) {
                    (LinePart::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                        if digits == MAX_CHUNK_DIGITS {
                            return Err(InvalidBody("a chunk is too large"));
                        }
                        let digit = char::from(byte).to_digit(16).unwrap_or_default();
                        Ok(line(size * 16 + u64::from(digit), digits + 1, LinePart::Size))
                    }
                    (LinePart::Size, b';') if digits > 0 => Ok(line(size, digits, LinePart::Extension)),
                    (LinePart::Size, b'\r') if digits > 0 => Ok(line(size, digits, LinePart::CarriageReturn)),
                    (LinePart::Extension, b'\r') => Ok(line(size, digits, LinePart::CarriageReturn)),
                    (LinePart::Extension, b'\t' | b' '..=b'~' | 0x80..) => Ok(line(size, digits, LinePart::Extension)),
                    (LinePart::CarriageReturn, b'\n') if size == 0 => Ok(Self::End),
                    (LinePart::CarriageReturn, b'\n') => Ok(Self::Data(size)),
                    _ => Err(InvalidBody("the size of a chunk cannot be read")),
                }
            }
            (Self::Data(_) | Self::End, _) => unreachable!("the caller has seen to these"),
        }
    }
}

/// Takes as many bytes as there are, up to `left`.
fn take_up_to<'b>(bytes: &mut &'b [u8], left: &mut u64) -> Option<&'b [u8]> {
    let wanted = usize::try_from(*left).unwrap_or(usize::MAX);
    let (piece, rest) = bytes.split_at(bytes.len().min(wanted));
    *bytes = rest;
    *left -= piece.len() as u64;
    (!piece.is_empty()).then_some(piece)
}

#[cfg(test)]
mod tests;
