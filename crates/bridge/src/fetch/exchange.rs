//! One request and its response, on a connection of their own.

use std::io;

use sympozium_ipc::strict_head::{Fields, HeadError, Scanner, read_response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::address::Address;
use super::decode::{DecodeProgress, Decoder, Encoding};
use super::frame::{BodyFraming, InvalidBody};
use super::headers::Headers;

/// Maximum number of interim (1xx) responses.
pub const MAX_INTERIM_ANSWERS: usize = 4;
/// Maximum number of bytes of a `Content-Type`. A longer one is ignored.
pub const MAX_CONTENT_TYPE_BYTES: usize = 256;
/// Bytes per read.
const READ_BYTES: usize = 16 * 1024;

/// Why a response cannot be read. The messages follow the name of the host.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("broke the connection: {0}")]
    Connection(#[source] io::Error),
    /// The server closed the connection early.
    #[error("ended the connection before its answer was whole")]
    Closed,
    /// The head is ambiguous or invalid.
    #[error("gave an answer whose head cannot be read")]
    Head,
    /// The head has too many bytes or headers.
    #[error("gave an answer whose head is too large")]
    LargeHead,
    #[error("gave more than {MAX_INTERIM_ANSWERS} answers that are none")]
    TooManyInterim,
    /// A switch to another protocol, which was not requested.
    #[error("changed the protocol without being asked to")]
    ProtocolSwitch,
    /// An encoding that was not requested.
    #[error("compressed its answer in a way that was not asked for")]
    Encoding,
    #[error("gave an answer whose body cannot be read: {0}")]
    Body(#[from] InvalidBody),
}

impl ResponseError {
    fn from_violation(violation: HeadError) -> Self {
        match violation {
            HeadError::TooLong | HeadError::TooManyHeaders => Self::LargeHead,
            _ => Self::Head,
        }
    }
}

/// A response whose head has been read.
pub struct PageResponse<S> {
    stream: S,
    status: u16,
    location: Option<Vec<u8>>,
    content_type: Option<String>,
    encoding: Option<Encoding>,
    frame: BodyFraming,
    /// The beginning of the body, which was read together with the head.
    buffered: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub status: u16,
    /// The `Content-Type`, if it is printable and not too long.
    pub content_type: Option<String>,
    /// The decompressed body.
    pub body: Vec<u8>,
    /// Whether the body was longer than the limit.
    pub truncated: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PageResponse<S> {
    /// Sends a request, and reads the head of the response.
    pub async fn send(mut stream: S, address: &Address, headers: &Headers) -> Result<Self, ResponseError> {
        let head = headers.request_head(address);
        let sent = stream.write_all(head.as_bytes()).await;
        sent.map_err(ResponseError::Connection)?;
        stream.flush().await.map_err(ResponseError::Connection)?;
        Self::read_head(stream).await
    }

    async fn read_head(mut stream: S) -> Result<Self, ResponseError> {
        let mut bytes = Vec::new();
        let mut scanner = Scanner::default();
        let mut interim = 0;
        loop {
            let Some(end) = scanner.find_end(&bytes).map_err(ResponseError::from_violation)? else {
                if read_some(&mut stream, &mut bytes).await? == 0 {
                    return Err(ResponseError::Closed);
                }
                continue;
            };
            let rest = bytes.split_off(end);
            let head = read_response(&bytes).map_err(ResponseError::from_violation)?;
            match head.status {
                101 => return Err(ResponseError::ProtocolSwitch),
                100..200 if interim == MAX_INTERIM_ANSWERS => return Err(ResponseError::TooManyInterim),
                100..200 => interim += 1,
                status => {
                    let encodings = header_values(&head.fields, "content-encoding");
                    let mut locations = header_values(&head.fields, "location");
                    let location = locations.next().map(<[u8]>::to_vec);
                    if locations.next().is_some() {
                        // Clients differ in which one they follow.
                        return Err(ResponseError::Head);
                    }
                    return Ok(Self {
                        status,
                        location,
                        content_type: content_type(&head.fields),
                        encoding: Encoding::from_headers(encodings),
                        frame: BodyFraming::new(status, head.framing),
                        buffered: rest,
                        stream,
                    });
                }
            }
            bytes = rest;
        }
    }

    /// The target of a redirect.
    pub fn location(&self) -> Option<&[u8]> {
        let redirects = matches!(self.status, 301 | 302 | 303 | 307 | 308);
        self.location.as_deref().filter(|_| redirects)
    }

    /// Reads the body, at most `most` bytes after decompression.
    pub async fn read_page(mut self, most: usize) -> Result<Page, ResponseError> {
        let encoding = self.encoding.ok_or(ResponseError::Encoding)?;
        let mut decoder = Decoder::new(encoding, most);
        let mut bytes = std::mem::take(&mut self.buffered);
        'reading: loop {
            let mut unread = &*bytes;
            while let Some(piece) = self.frame.next(&mut unread)? {
                if decoder.push(piece)? == DecodeProgress::Full {
                    break 'reading;
                }
            }
            if self.frame.is_complete() {
                break;
            }
            bytes.clear();
            match read_some(&mut self.stream, &mut bytes).await {
                Ok(1..) => {}
                Ok(0) if self.frame.may_close() => break,
                Ok(0) => return Err(ResponseError::Closed),
                Err(error) => return Err(error),
            }
        }
        let (body, truncated) = decoder.finish()?;
        Ok(Page { status: self.status, content_type: self.content_type, body, truncated })
    }
}

async fn read_some<S>(stream: &mut S, bytes: &mut Vec<u8>) -> Result<usize, ResponseError>
where
    S: AsyncRead + Unpin,
{
    bytes.reserve(READ_BYTES);
    let mut limited = stream.take(READ_BYTES as u64);
    limited.read_buf(bytes).await.map_err(ResponseError::Connection)
}

fn header_values<'f, 'h: 'f>(fields: &'f Fields<'h>, wanted: &'static str) -> impl Iterator<Item = &'h [u8]> + 'f {
    let wanted = move |name: &str| name.eq_ignore_ascii_case(wanted);
    fields.iter().filter(move |(name, _)| wanted(name)).map(|(_, value)| *value)
}

fn content_type(fields: &Fields<'_>) -> Option<String> {
    let value = header_values(fields, "content-type").next()?;
    let visible = |byte: &u8| matches!(byte, b' '..=b'~');
    let plain = (1..=MAX_CONTENT_TYPE_BYTES).contains(&value.len()) && value.iter().all(visible);
    plain.then(|| String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests;
