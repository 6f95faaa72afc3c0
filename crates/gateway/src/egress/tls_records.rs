//! Walks over the TLS records after the first ClientHello, without buffering them.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod examples;

use super::client_hello::{HANDSHAKE, MalformedTls, may_be_tls};

/// Bytes of a record header.
const HEAD_BYTES: usize = 5;
/// Maximum number of bytes of an encrypted record (RFC 5246); TLS 1.3 allows less.
const MAX_ENCRYPTED_BYTES: usize = (1 << 14) + 2048;
const ALERT: u8 = 21;
const SERVER_HELLO: u8 = 2;
/// Bytes of a ServerHello up to the end of its random: message header, version, random.
const RANDOM_END: usize = 4 + 2 + 32;
/// The random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
pub(super) const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The position in a stream of records.
#[derive(Debug, Default)]
pub struct RecordWalker {
    head: [u8; HEAD_BYTES],
    filled: usize,
    /// Remaining bytes of the current record.
    remaining: usize,
}

impl RecordWalker {
    /// Walks over bytes up to the beginning of a handshake record, and returns its offset.
    ///
    /// # Errors
    ///
    /// Returns an error if these are not TLS records.
    pub fn skip_to_handshake(&mut self, bytes: &[u8]) -> Result<Option<usize>, MalformedTls> {
        let mut at = 0;
        while at < bytes.len() {
            if self.remaining > 0 {
                let step = self.remaining.min(bytes.len() - at);
                self.remaining -= step;
                at += step;
            } else if self.filled == 0 && bytes[at] == HANDSHAKE {
                return Ok(Some(at));
            } else {
                self.push_header_byte(bytes[at])?;
                at += 1;
            }
        }
        Ok(None)
    }

    /// Takes one byte of a record header. Returns whether it was the last one.
    fn push_header_byte(&mut self, byte: u8) -> Result<bool, MalformedTls> {
        self.head[self.filled] = byte;
        self.filled += 1;
        if !may_be_tls(&self.head[..self.filled.min(2)]) {
            return Err(MalformedTls);
        }
        if self.filled < HEAD_BYTES {
            return Ok(false);
        }
        self.filled = 0;
        self.remaining = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
        if self.remaining > MAX_ENCRYPTED_BYTES {
            return Err(MalformedTls);
        }
        Ok(true)
    }
}

/// The server's answer to a ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerAnswer {
    /// Not decided yet.
    Incomplete,
    HelloRetryRequest,
    /// The server continues, or does not use TLS: it does not accept another unencrypted ClientHello.
    Other,
}

/// The beginning of the server's first message.
#[derive(Debug, Default)]
pub struct ServerHello {
    records: RecordWalker,
    message: Vec<u8>,
}

impl ServerHello {
    /// Reads more of what the server sends, from its first byte on, until the answer is decided.
    pub fn push(&mut self, bytes: &[u8]) -> ServerAnswer {
        let mut rest = bytes;
        while let Some((first, after)) = rest.split_first() {
            if self.records.remaining == 0 {
                if self.records.push_header_byte(*first).is_err() {
                    return ServerAnswer::Other;
                }
                rest = after;
                continue;
            }
            let (body, after) = rest.split_at(self.records.remaining.min(rest.len()));
            self.records.remaining -= body.len();
            rest = after;
            match self.records.head[0] {
                // A warning, for example about an unknown name, may come first.
                ALERT => {}
                HANDSHAKE => {
                    let missing = RANDOM_END - self.message.len();
                    self.message.extend_from_slice(&body[..missing.min(body.len())]);
                }
                _ => return ServerAnswer::Other,
            }
            if self.message.first().is_some_and(|kind| *kind != SERVER_HELLO) {
                return ServerAnswer::Other;
            }
            if self.message.len() == RANDOM_END {
                return if self.message.ends_with(&RETRY_RANDOM) {
                    ServerAnswer::HelloRetryRequest
                } else {
                    ServerAnswer::Other
                };
            }
        }
        ServerAnswer::Incomplete
    }
}
