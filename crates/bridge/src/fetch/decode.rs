//! Decompresses a body, never more of it than the limit.
//!
//! Bytes are decoded as they arrive, and memory holds the output up to the limit: a small body that becomes a large
//! page stops there. A body that goes on without producing output has a limit of its own.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use super::frame::InvalidBody;

/// How many more bytes a compressed body may have than its output: incompressible data becomes slightly longer.
pub const ENCODED_SLACK: usize = 64 * 1024;
/// Size of the output buffer of a decoder.
const OUTPUT_BUFFER_BYTES: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 1950, or RFC 1951 without the zlib header, which some servers send.
    Deflate,
}

impl Encoding {
    /// Parses the values of `Content-Encoding`. `None` unless it is exactly one encoding that we support.
    pub fn from_headers<'v>(mut values: impl Iterator<Item = &'v [u8]>) -> Option<Self> {
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

/// Whether the decoder takes more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeProgress {
    More,
    /// The page is longer than the limit.
    Full,
}

/// Decodes a body piece by piece.
pub struct Decoder {
    state: DecoderState,
    max_bytes: usize,
    /// Bytes of input so far.
    consumed: usize,
}

enum DecoderState {
    Identity(Sink),
    // In boxes: their windows are large.
    Gzip(Box<MultiGzDecoder<Sink>>),
    /// zlib or raw deflate; the first two bytes decide.
    Undecided(Vec<u8>, Sink),
    Deflate(Box<Inflate>),
}

struct Inflate {
    state: Decompress,
    ended: bool,
    sink: Sink,
}

const INVALID_ENCODING: InvalidBody = InvalidBody("the body is not compressed as its head says");

impl Decoder {
    /// `most` limits the bytes of output.
    pub fn new(encoding: Encoding, most: usize) -> Self {
        let sink = Sink { bytes: Vec::new(), max_bytes: most, full: false };
        let kind = match encoding {
            Encoding::Identity => DecoderState::Identity(sink),
            Encoding::Gzip => DecoderState::Gzip(Box::new(MultiGzDecoder::new(sink))),
            Encoding::Deflate => DecoderState::Undecided(Vec::new(), sink),
        };
        Self { state: kind, max_bytes: most, consumed: 0 }
    }

    /// Decodes the next bytes. After `DecodeProgress::Full`, further bytes are ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not valid in this encoding.
    pub fn push(&mut self, bytes: &[u8]) -> Result<DecodeProgress, InvalidBody> {
        if self.sink().full {
            return Ok(DecodeProgress::Full);
        }
        let left = match self.state {
            // The limit of the sink applies.
            DecoderState::Identity(_) => bytes.len(),
            _ => self.max_bytes.saturating_add(ENCODED_SLACK) - self.consumed,
        };
        let too_many = bytes.len() > left;
        let bytes = &bytes[..bytes.len().min(left)];
        self.consumed += bytes.len();
        let pushed = self.decode(bytes);
        let sink = self.sink();
        sink.full |= too_many;
        match pushed {
            // Output that does not fit is reported as an error of the sink.
            _ if sink.full => Ok(DecodeProgress::Full),
            Ok(()) => Ok(DecodeProgress::More),
            Err(garbled) => Err(garbled),
        }
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<(), InvalidBody> {
        match &mut self.state {
            DecoderState::Identity(sink) => sink.write_all(bytes).map_err(|_| INVALID_ENCODING),
            DecoderState::Gzip(decoder) => decoder.write_all(bytes).map_err(|_| INVALID_ENCODING),
            DecoderState::Deflate(inflate) => inflate.push(bytes),
            DecoderState::Undecided(first, sink) => {
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
                    self.state = DecoderState::Deflate(inflate);
                    return pushed;
                }
                Ok(())
            }
        }
    }

    /// The page, and whether it was longer than the limit.
    ///
    /// # Errors
    ///
    /// Returns an error if the input is incomplete.
    pub fn finish(mut self) -> Result<(Vec<u8>, bool), InvalidBody> {
        let (taken, stopped) = (self.consumed, self.sink().full);
        let sink = match self.state {
            DecoderState::Identity(sink) => sink,
            DecoderState::Undecided(first, sink) if first.is_empty() => sink,
            DecoderState::Undecided(..) => return Err(INVALID_ENCODING),
            DecoderState::Gzip(mut decoder) => {
                // Responses without a body have the header too.
                let whole = taken == 0 || stopped || decoder.try_finish().is_ok();
                let sink = std::mem::take(decoder.get_mut());
                if !whole && !sink.full {
                    return Err(INVALID_ENCODING);
                }
                sink
            }
            DecoderState::Deflate(inflate) => {
                if !inflate.ended && !stopped {
                    return Err(INVALID_ENCODING);
                }
                inflate.sink
            }
        };
        Ok((sink.bytes, sink.full))
    }

    fn sink(&mut self) -> &mut Sink {
        match &mut self.state {
            DecoderState::Identity(sink) | DecoderState::Undecided(_, sink) => sink,
            DecoderState::Gzip(decoder) => decoder.get_mut(),
            DecoderState::Deflate(inflate) => &mut inflate.sink,
        }
    }
}

impl Inflate {
    fn push(&mut self, mut bytes: &[u8]) -> Result<(), InvalidBody> {
        let mut piece = vec![0; OUTPUT_BUFFER_BYTES];
        // Bytes after the end of the stream are ignored.
        while !self.ended {
            let (read, written) = (self.state.total_in(), self.state.total_out());
            let state = &mut self.state;
            let status = state.decompress(bytes, &mut piece, FlushDecompress::None);
            let status = status.map_err(|_| INVALID_ENCODING)?;
            let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            bytes = &bytes[count(self.state.total_in(), read)..];
            let written = count(self.state.total_out(), written);
            let fits = self.sink.write_all(&piece[..written]);
            fits.map_err(|_| INVALID_ENCODING)?;
            match status {
                Status::StreamEnd => self.ended = true,
                // While the buffer was filled, the decoder may hold more output.
                _ if bytes.is_empty() && written < piece.len() => break,
                Status::Ok => {}
                Status::BufError if written == 0 => return Err(INVALID_ENCODING),
                Status::BufError => {}
            }
        }
        Ok(())
    }
}

/// Stores bytes up to a limit, and fails on the first one that does not fit.
#[derive(Debug, Default)]
struct Sink {
    bytes: Vec<u8>,
    max_bytes: usize,
    full: bool,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.max_bytes - self.bytes.len();
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
