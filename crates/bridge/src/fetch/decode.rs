//! What a body is without its compression, never more of it than is wanted.
//!
//! Bytes go in as they come, and memory holds what came out of them, up to the bound: a small body that becomes a large
//! page stops where the bound is. One that goes on without becoming anything stops at a bound of its own.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use super::frame::Garbled;

/// Bytes that a compressed body may have beyond those that it becomes: what cannot be compressed becomes a little longer.
pub const ENCODED_SLACK: usize = 64 * 1024;
/// What comes out of a decoder at a time.
const PIECE_BYTES: usize = 16 * 1024;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Not at all.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 1950, or without its head RFC 1951, which some servers take it for.
    Deflate,
}

impl Encoding {
    /// What the values of `Content-Encoding` say, if it is one that we read: one only, once.
    pub fn of<'v>(mut values: impl Iterator<Item = &'v [u8]>) -> Option<Self> {
        let value = match (values.next(), values.next()) {
            (None, _) => return Some(Self::Identity),
            (Some(value), None) => value.to_ascii_lowercase(),
            (Some(_), Some(_)) => return None,
        };
        match &*value {
            b"" | b"identity" => Some(Self::Identity),
            b"gzip" | b"x-gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            _ => None,
        }
    }
}

/// Whether more is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is.
    More,
    /// There is more than is wanted.
    Full,
}

/// Takes a body piece by piece.
pub struct Decoder {
    kind: Kind,
    most: usize,
    /// Bytes that came in.
    taken: usize,
}

enum Kind {
    Identity(Sink),
    // In boxes: their windows are large.
    Gzip(Box<MultiGzDecoder<Sink>>),
    /// Which of the two it is, the first two bytes tell.
    Undecided(Vec<u8>, Sink),
    Deflate(Box<Inflate>),
}

struct Inflate {
    state: Decompress,
    ended: bool,
    sink: Sink,
}

const NOT_DECODED: Garbled = Garbled("the body is not compressed as its head says");

impl Decoder {
    /// Of a body so compressed, no more than `most` bytes of what it becomes.
    pub fn new(encoding: Encoding, most: usize) -> Self {
        let sink = Sink { bytes: Vec::new(), most, full: false };
        let kind = match encoding {
            Encoding::Identity => Kind::Identity(sink),
            Encoding::Gzip => Kind::Gzip(Box::new(MultiGzDecoder::new(sink))),
            Encoding::Deflate => Kind::Undecided(Vec::new(), sink),
        };
        Self { kind, most, taken: 0 }
    }

    /// Takes the next bytes. After [`Progress::Full`] nothing more is taken.
    ///
    /// # Errors
    ///
    /// When they are not compressed as they should be.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Progress, Garbled> {
        if self.sink().full {
            return Ok(Progress::Full);
        }
        let left = match self.kind {
            // Its own bound is the one that counts.
            Kind::Identity(_) => bytes.len(),
            _ => self.most.saturating_add(ENCODED_SLACK) - self.taken,
        };
        let too_many = bytes.len() > left;
        let bytes = &bytes[..bytes.len().min(left)];
        self.taken += bytes.len();
        let pushed = self.decode(bytes);
        let sink = self.sink();
        sink.full |= too_many;
        match pushed {
            // What does not fit is an error of the sink's own.
            _ if sink.full => Ok(Progress::Full),
            Ok(()) => Ok(Progress::More),
            Err(garbled) => Err(garbled),
        }
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<(), Garbled> {
        match &mut self.kind {
            Kind::Identity(sink) => sink.write_all(bytes).map_err(|_| NOT_DECODED),
            Kind::Gzip(decoder) => decoder.write_all(bytes).map_err(|_| NOT_DECODED),
            Kind::Deflate(inflate) => inflate.push(bytes),
            Kind::Undecided(first, sink) => {
                first.extend_from_slice(bytes);
                if let &[first_byte, second_byte, ..] = &**first {
                    let head = u16::from_be_bytes([first_byte, second_byte]);
                    // RFC 1950, section 2.2: method 8, and a multiple of 31.
                    let has_head = first_byte & 15 == 8 && head.is_multiple_of(31);
                    let first = std::mem::take(first);
                    let mut inflate = Box::new(Inflate {
                        state: Decompress::new(has_head),
                        ended: false,
                        sink: std::mem::take(sink),
                    });
                    let pushed = inflate.push(&first);
                    self.kind = Kind::Deflate(inflate);
                    return pushed;
                }
                Ok(())
            }
        }
    }

    /// The page, and whether there is more of it.
    ///
    /// # Errors
    ///
    /// When what came in is only the beginning of something.
    pub fn finish(mut self) -> Result<(Vec<u8>, bool), Garbled> {
        let (taken, stopped) = (self.taken, self.sink().full);
        let sink = match self.kind {
            Kind::Identity(sink) => sink,
            Kind::Undecided(first, sink) if first.is_empty() => sink,
            Kind::Undecided(..) => return Err(NOT_DECODED),
            Kind::Gzip(mut decoder) => {
                // Answers without a body have the header too.
                let whole = taken == 0 || stopped || decoder.try_finish().is_ok();
                let sink = std::mem::take(decoder.get_mut());
                if !whole && !sink.full {
                    return Err(NOT_DECODED);
                }
                sink
            }
            Kind::Deflate(inflate) => {
                if !inflate.ended && !stopped {
                    return Err(NOT_DECODED);
                }
                inflate.sink
            }
        };
        Ok((sink.bytes, sink.full))
    }

    fn sink(&mut self) -> &mut Sink {
        match &mut self.kind {
            Kind::Identity(sink) | Kind::Undecided(_, sink) => sink,
            Kind::Gzip(decoder) => decoder.get_mut(),
            Kind::Deflate(inflate) => &mut inflate.sink,
        }
    }
}

impl Inflate {
    fn push(&mut self, mut bytes: &[u8]) -> Result<(), Garbled> {
        let mut piece = vec![0; PIECE_BYTES];
        // What follows the end means nothing.
        while !self.ended {
            let (read, written) = (self.state.total_in(), self.state.total_out());
            let state = &mut self.state;
            let status = state.decompress(bytes, &mut piece, FlushDecompress::None);
            let status = status.map_err(|_| NOT_DECODED)?;
            let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            bytes = &bytes[count(self.state.total_in(), read)..];
            let written = count(self.state.total_out(), written);
            let fits = self.sink.write_all(&piece[..written]);
            fits.map_err(|_| NOT_DECODED)?;
            match status {
                Status::StreamEnd => self.ended = true,
                // There may be more inside for as long as the piece was filled.
                _ if bytes.is_empty() && written < piece.len() => break,
                Status::Ok => {}
                Status::BufError if written == 0 => return Err(NOT_DECODED),
                Status::BufError => {}
            }
        }
        Ok(())
    }
}

/// Keeps so many bytes, and says no to the first that does not fit.
#[derive(Debug, Default)]
struct Sink {
    bytes: Vec<u8>,
    most: usize,
    full: bool,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.most - self.bytes.len();
        if room == 0 && !bytes.is_empty() {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        let fits = bytes.len().min(room);
        self.bytes.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
