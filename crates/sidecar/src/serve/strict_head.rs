//! The head of an HTTP request, read as strictly as the standard allows, before the real parser sees it.
//!
//! Two programs that read one stream of bytes in two ways are how requests are smuggled. Whatever RFC 9112 lets a
//! server be tolerant about is refused here, so there is only one way left to read a request.

use std::fmt;

/// Bytes of a request head, from the request line to the empty line.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Header fields of a request.
pub const MAX_HEADERS: usize = 64;
/// Digits of a Content-Length: more than any body that is accepted, and no overflow.
const MAX_LENGTH_DIGITS: usize = 15;

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// LF without CR, CR without LF.
    LineEnding,
    /// A byte that no head may contain.
    ControlCharacter,
    /// The first line is not `METHOD SP target SP HTTP/1.x`.
    RequestLine,
    /// A line that is not `name: value`.
    HeaderLine,
    /// A line that goes on the one before.
    FoldedLine,
    /// A Content-Length that is not one number, or comes twice.
    ContentLength,
    /// A Transfer-Encoding that is not exactly `chunked`, comes twice, or in HTTP/1.0.
    TransferEncoding,
    /// Both of them.
    BothLengths,
    /// HTTP/1.1 without exactly one Host.
    Host,
    /// More than [`MAX_HEADERS`].
    TooManyHeaders,
    /// More than [`MAX_HEAD_BYTES`].
    TooLong,
    /// It did not arrive in time.
    Slow,
}

impl Violation {
    /// All of them; the place of each is its number on the way through the parser.
    pub const ALL: [Self; 12] = [
        Self::LineEnding,
        Self::ControlCharacter,
        Self::RequestLine,
        Self::HeaderLine,
        Self::FoldedLine,
        Self::ContentLength,
        Self::TransferEncoding,
        Self::BothLengths,
        Self::Host,
        Self::TooManyHeaders,
        Self::TooLong,
        Self::Slow,
    ];

    /// The status that answers it.
    pub fn status(self) -> u16 {
        match self {
            Self::TooManyHeaders | Self::TooLong => 431,
            Self::Slow => 408,
            _ => 400,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineEnding => f.write_str("a line of the request head does not end with CR LF"),
            Self::ControlCharacter => f.write_str("the request head contains a control character"),
            Self::RequestLine => f.write_str("the request line is malformed"),
            Self::HeaderLine => f.write_str("a header line is malformed"),
            Self::FoldedLine => f.write_str("a header is folded over several lines"),
            Self::ContentLength => f.write_str("Content-Length is not exactly one number"),
            Self::TransferEncoding => f.write_str("Transfer-Encoding is not exactly chunked"),
            Self::BothLengths => {
                f.write_str("the request has both Content-Length and Transfer-Encoding")
            }
            Self::Host => f.write_str("the request does not have exactly one Host header"),
            Self::TooManyHeaders => {
                write!(f, "the request has more than {MAX_HEADERS} headers")
            }
            Self::TooLong => write!(f, "the request head exceeds {MAX_HEAD_BYTES} bytes"),
            Self::Slow => f.write_str("the request head did not arrive in time"),
        }
    }
}

/// How the body that follows a head is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// By its length.
    Length(u64),
    /// By chunks.
    Chunked,
}

/// Looks for the end of a head in bytes that arrive bit by bit, each looked at once.
#[derive(Debug, Default)]
pub struct Scanner {
    scanned: usize,
}

impl Scanner {
    /// The length of the head at the start of `bytes`, once all of it is there.
    ///
    /// `bytes` must start with what the last call was given. Line endings and control characters are judged here, so
    /// that a head which can never end properly is refused at once.
    ///
    /// # Errors
    /// The first rule that a byte breaks, or that the head is too long.
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let limit = bytes.len().min(MAX_HEAD_BYTES);
        while self.scanned < limit {
            let at = self.scanned;
            let before = at.checked_sub(1).map(|at| bytes[at]);
            match bytes[at] {
                b'\n' if before != Some(b'\r') => return Err(Violation::LineEnding),
                _ if before == Some(b'\r') && bytes[at] != b'\n' => {
                    return Err(Violation::LineEnding);
                }
                b'\r' | b'\n' | b'\t' | b' '..=b'~' | 0x80.. => {}
                _ => return Err(Violation::ControlCharacter),
            }
            self.scanned += 1;
            if bytes[..self.scanned].ends_with(b"\r\n\r\n") {
                let length = self.scanned;
                self.scanned = 0;
                return Ok(Some(length));
            }
        }
        if bytes.len() >= MAX_HEAD_BYTES {
            return Err(Violation::TooLong);
        }
        Ok(None)
    }
}

/// Checks a whole head, its empty line included, and says what follows it.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(head: &[u8]) -> Result<Framing, Violation> {
    let lines = head
        .strip_suffix(b"\r\n\r\n")
        .ok_or(Violation::LineEnding)?;
    let lines = lines.split(|&byte| byte == b'\n');
    let mut lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let version = request_line(lines.next().unwrap_or_default())?;
    let (mut length, mut chunked, mut hosts, mut count) = (None, false, 0, 0);
    for line in lines {
        count += 1;
        if count > MAX_HEADERS {
            return Err(Violation::TooManyHeaders);
        }
        let (name, value) = header(line)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            let number = content_length(value).ok_or(Violation::ContentLength)?;
            if length.replace(number).is_some() {
                return Err(Violation::ContentLength);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || version == Version::Http10 || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Violation::TransferEncoding);
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        }
    }
    if hosts > 1 || (hosts == 0 && version == Version::Http11) {
        return Err(Violation::Host);
    }
    match (length, chunked) {
        (Some(_), true) => Err(Violation::BothLengths),
        (None, true) => Ok(Framing::Chunked),
        (length, false) => Ok(Framing::Length(length.unwrap_or(0))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

/// `METHOD SP target SP HTTP/1.x`, the method in capital letters, the target a path or an `http` URL.
fn request_line(line: &[u8]) -> Result<Version, Violation> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Violation::RequestLine);
    };
    let is_method = (1..=16).contains(&method.len()) && method.iter().all(u8::is_ascii_uppercase);
    let is_target = (target.starts_with(b"/") || target.starts_with(b"http://"))
        && target.iter().all(u8::is_ascii_graphic);
    match version {
        b"HTTP/1.1" if is_method && is_target => Ok(Version::Http11),
        b"HTTP/1.0" if is_method && is_target => Ok(Version::Http10),
        _ => Err(Violation::RequestLine),
    }
}

fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    if line
        .first()
        .is_some_and(|byte| matches!(byte, b' ' | b'\t'))
    {
        return Err(Violation::FoldedLine);
    }
    let colon = line.iter().position(|&byte| byte == b':');
    let (name, value) = line.split_at(colon.ok_or(Violation::HeaderLine)?);
    if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) {
        return Err(Violation::HeaderLine);
    }
    Ok((name, value[1..].trim_ascii()))
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > MAX_LENGTH_DIGITS || !value.iter().all(u8::is_ascii_digit)
    {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Framing, Violation> {
        let end = Scanner::default().end(text.as_bytes())?;
        check(&text.as_bytes()[..end.expect("the head is whole")])
    }

    #[test]
    fn ordinary_heads_pass_and_say_how_long_their_body_is() {
        for (text, framing) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", Framing::Length(0)),
            ("GET http://x/a HTTP/1.0\r\n\r\n", Framing::Length(0)),
            (
                "POST /skill/x HTTP/1.1\r\nhost:x\r\ncontent-LENGTH:  12 \r\n\r\n",
                Framing::Length(12),
            ),
            (
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n",
                Framing::Chunked,
            ),
        ] {
            assert_eq!(read(text), Ok(framing), "{text:?}");
        }
    }

    #[test]
    fn whatever_could_be_read_in_two_ways_is_refused() {
        use Violation::*;
        let post = |headers: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n");
        let cases = [
            ("GET / HTTP/1.1\nHost: x\n\n".to_owned(), LineEnding),
            ("GET / HTTP/1.1\r\nA: b\rc\r\n\r\n".to_owned(), LineEnding),
            ("\n".to_owned(), LineEnding),
            (post("A: \0"), ControlCharacter),
            (post("A: \x7f"), ControlCharacter),
            ("\r\n\r\n".to_owned(), RequestLine),
            ("GET  / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), RequestLine),
            ("GET / HTTP/1.1 \r\nHost: x\r\n\r\n".to_owned(), RequestLine),
            ("GET / HTTP/2.0\r\nHost: x\r\n\r\n".to_owned(), RequestLine),
            ("get / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), RequestLine),
            ("GET x HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), RequestLine),
            (
                "GET /\u{e9} HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
                RequestLine,
            ),
            (post("A : b"), HeaderLine),
            (post(": b"), HeaderLine),
            (post("A"), HeaderLine),
            (post("A: b\r\n c"), FoldedLine),
            (post("A: b\r\n\tc"), FoldedLine),
            (
                post("Content-Length: 1\r\nContent-Length: 1"),
                ContentLength,
            ),
            (post("Content-Length: 1, 1"), ContentLength),
            (post("Content-Length: +1"), ContentLength),
            (post("Content-Length: 0x1"), ContentLength),
            (post("Content-Length:"), ContentLength),
            (post("Content-Length: 1111111111111111"), ContentLength),
            (post("Transfer-Encoding: gzip, chunked"), TransferEncoding),
            (post("Transfer-Encoding: \u{b}chunked"), ControlCharacter),
            (post("Transfer-Encoding: xchunked"), TransferEncoding),
            (
                post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
                TransferEncoding,
            ),
            (
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
                TransferEncoding,
            ),
            (
                post("Content-Length: 1\r\nTransfer-Encoding: chunked"),
                BothLengths,
            ),
            (post("Host: y"), Host),
            ("GET / HTTP/1.1\r\nA: b\r\n\r\n".to_owned(), Host),
            (post(&"A: b\r\n".repeat(MAX_HEADERS)), TooManyHeaders),
            (post(&format!("A: {}", "b".repeat(MAX_HEAD_BYTES))), TooLong),
        ];
        for (text, violation) in cases {
            assert_eq!(read(&text), Err(violation), "{text:?}");
        }
    }

    #[test]
    fn bytes_may_arrive_one_by_one() {
        let text = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nrest";
        let head = text.len() - 4;
        let mut scanner = Scanner::default();
        for length in 0..head {
            assert_eq!(scanner.end(&text[..length]), Ok(None));
        }
        assert_eq!(scanner.end(text), Ok(Some(head)));
        // And the next one is looked for from its own start.
        assert_eq!(scanner.end(text), Ok(Some(head)));
    }

    #[test]
    fn numbers_of_violations_are_their_places() {
        for (place, violation) in Violation::ALL.into_iter().enumerate() {
            assert_eq!(violation as usize, place);
        }
    }
}
