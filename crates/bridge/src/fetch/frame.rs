//! Where the body of an answer ends.

use sympozium_ipc::strict_head::Framing;

/// Bytes of the line before a chunk.
pub const MAX_CHUNK_LINE_BYTES: usize = 256;
/// Digits of a chunk's size: more than any body that is read, and no overflow.
const MAX_CHUNK_DIGITS: usize = 15;

/// Not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Garbled(pub(super) &'static str);

/// What is left of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
    /// Until the connection ends.
    UntilTheEnd,
}

/// Where in the chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// In the line before one, with the size as far as it is known.
    Line {
        /// As far as it is known.
        size: u64,
        /// Digits of it.
        digits: usize,
        /// Bytes of the line.
        bytes: usize,
        /// What the last byte was part of.
        at: At,
    },
    /// In one, with so much to come.
    Data(u64),
    /// After one; whether CR has been there.
    After(bool),
    /// After the last.
    Over,
}

/// A place in the line before a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Its size.
    Size,
    /// What is said about it, and means nothing to us.
    Extension,
    /// CR.
    Return,
}

impl Frame {
    /// The body that follows a head.
    pub fn new(status: u16, framing: Option<Framing>) -> Self {
        match (status, framing) {
            // They have none, whatever they say.
            (204 | 304, _) => Self::Length(0),
            (_, Some(Framing::Length(length))) => Self::Length(length),
            (_, Some(Framing::Chunked)) => Self::Chunked(Chunk::START),
            (_, None) => Self::UntilTheEnd,
        }
    }

    /// The next piece of the body at the start of `bytes`, which is taken away. Nothing when there is none in them.
    ///
    /// # Errors
    ///
    /// When chunks are not written as the standard says.
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

    /// Whether all of it has been there.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunk::Over))
    }

    /// Whether it is whole if the connection ends now.
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
                // What follows are trailers, and nobody asked for them.
                return Ok(None);
            }
            let Some((&byte, rest)) = bytes.split_first() else {
                return Ok(None);
            };
            *bytes = rest;
            *self = self.after(byte)?;
        }
    }

    /// One byte of what is between the data.
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

/// As much as there is and is wanted.
fn take<'b>(bytes: &mut &'b [u8], left: &mut u64) -> Option<&'b [u8]> {
    let wanted = usize::try_from(*left).unwrap_or(usize::MAX);
    let (piece, rest) = bytes.split_at(bytes.len().min(wanted));
    *bytes = rest;
    *left -= piece.len() as u64;
    (!piece.is_empty()).then_some(piece)
}

#[cfg(test)]
mod tests;
