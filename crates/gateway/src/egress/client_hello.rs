//! Parses a TLS ClientHello as far as it names the server.
//!
//! It may arrive in any number of records and pieces. Everything that is not exactly a ClientHello is refused: a server
//! that is more tolerant than this parser would otherwise see another name. With ECH the name here is the outer one,
//! which is the one that the network sees and that counts.

/// Maximum number of bytes of the message. Those with post-quantum keys and an encrypted inner hello have about three
/// thousand.
pub const MAX_HELLO_BYTES: usize = 16 * 1024;
/// Maximum number of bytes on the wire, including record headers: clients may split the message into small records.
pub const MAX_WIRE_BYTES: usize = 32 * 1024;
/// Maximum number of bytes of a record (RFC 8446).
const MAX_RECORD_BYTES: usize = 1 << 14;
/// Content types of records: change_cipher_spec, alert, handshake, application_data, heartbeat.
const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=24;
/// The major version in every record header since SSL 3.
const MAJOR_VERSION: u8 = 3;
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// The result of parsing the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// The beginning of a ClientHello.
    Incomplete,
    /// A ClientHello, possibly followed by more bytes.
    Complete {
        /// The server name in lower case.
        name: Option<String>,
        /// Bytes on the wire up to the end of its last record.
        length: usize,
    },
}

/// The bytes violate the TLS framing, or are not a ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no ClientHello")]
pub struct MalformedTls;

/// Whether bytes can be the beginning of a TLS record.
///
/// Two bytes decide, and every content type counts: some servers skip an empty record or a warning before the
/// ClientHello, and a connection to such a server must not pass as something other than TLS.
pub fn may_be_tls(bytes: &[u8]) -> bool {
    let kind = bytes.first();
    let major = bytes.get(1);
    kind.is_none_or(|kind| CONTENT_TYPES.contains(kind)) && major.is_none_or(|major| *major == MAJOR_VERSION)
}

/// The same for a handshake record.
fn may_be_handshake(bytes: &[u8]) -> bool {
    may_be_tls(bytes) && bytes.first().is_none_or(|byte| *byte == HANDSHAKE)
}

/// Parses the first bytes of a connection.
///
/// # Errors
///
/// Returns an error if they cannot become a ClientHello any more.
pub fn parse_hello(wire: &[u8]) -> Result<Hello, MalformedTls> {
    let mut message = Vec::new();
    let mut rest = wire;
    loop {
        let Some((head, after)) = rest.split_at_checked(5) else {
            // An incomplete record header. Its first bytes must be valid all the same.
            let fits = may_be_handshake(&rest[..rest.len().min(2)]);
            return check_incomplete(fits, wire);
        };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if !may_be_handshake(&head[..2]) || length == 0 || length > MAX_RECORD_BYTES {
            return Err(MalformedTls);
        }
        let whole = after.len() >= length;
        message.extend_from_slice(&after[..length.min(after.len())]);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(MalformedTls);
        }
        if let Some((head, body)) = message.split_at_checked(4) {
            let expected = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
            // A further message in the same record would pass without inspection.
            if expected > MAX_HELLO_BYTES || body.len() > expected {
                return Err(MalformedTls);
            }
            if body.len() == expected {
                // The record must end with the message, otherwise it contains more.
                let name = parse_body(body).filter(|_| whole).ok_or(MalformedTls)?;
                let length = wire.len() - after.len() + length;
                return Ok(Hello::Complete { name, length });
            }
        }
        if !whole {
            return check_incomplete(true, wire);
        }
        rest = &after[length..];
    }
}

fn check_incomplete(fits: bool, wire: &[u8]) -> Result<Hello, MalformedTls> {
    if fits && wire.len() < MAX_WIRE_BYTES { Ok(Hello::Incomplete) } else { Err(MalformedTls) }
}

/// The server name in a complete message, if it has one. `None` if the message is invalid.
#[expect(clippy::option_option, reason = "no message, and a message without a name, are two things")]
fn parse_body(body: &[u8]) -> Option<Option<String>> {
    let mut body = ByteReader(body);
    body.take(2 + 32)?;
    let session = body.read_u8_prefixed()?;
    let ciphers = body.read_u16_prefixed()?;
    let compressions = body.read_u8_prefixed()?;
    if session.len() > 32 || ciphers.is_empty() || ciphers.len() % 2 != 0 || compressions.is_empty() {
        return None;
    }
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = ByteReader(body.read_u16_prefixed()?);
    if !body.0.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.read_u16()?;
        let value = extensions.read_u16_prefixed()?;
        if kind == SERVER_NAME {
            let found = parse_server_name(value)?;
            // Servers differ in which of two names they use.
            if name.replace(found).is_some() {
                return None;
            }
        }
    }
    Some(name)
}

/// Parses a list of exactly one name.
fn parse_server_name(value: &[u8]) -> Option<String> {
    let mut value = ByteReader(value);
    let mut list = ByteReader(value.read_u16_prefixed()?);
    let &[kind] = list.take(1)? else { return None };
    let name = list.read_u16_prefixed()?;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    let is_name = !name.is_empty() && name.len() <= 255 && name.iter().all(plain);
    if kind != HOST_NAME || !is_name || !list.0.is_empty() || !value.0.is_empty() {
        return None;
    }
    Some(str::from_utf8(name).ok()?.to_ascii_lowercase())
}

/// A reader of the remaining bytes.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn read_u16(&mut self) -> Option<u16> {
        let &[high, low] = self.take(2)? else {
            return None;
        };
        Some(u16::from_be_bytes([high, low]))
    }

    /// A field with a length of one byte before it.
    fn read_u8_prefixed(&mut self) -> Option<&'a [u8]> {
        let &[length] = self.take(1)? else {
            return None;
        };
        self.take(usize::from(length))
    }

    /// A field with a length of two bytes before it.
    fn read_u16_prefixed(&mut self) -> Option<&'a [u8]> {
        let length = self.read_u16()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests;
