//! Parses the heads of HTTP messages as strictly as the standard allows.
//!
//! Requests are smuggled through two programs that parse one stream of bytes differently. Whatever RFC 9112 lets a
//! recipient tolerate is refused here, so that only one interpretation of a message is left. The sidecar checks
//! requests with this before its HTTP library does; the gateway parses everything that it forwards with it.

use std::fmt;

/// Limit for a request head, from the request line to the empty line, in bytes.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Limit for the header fields of a message.
pub const MAX_HEADERS: usize = 64;
/// Limit for the digits of a Content-Length: more than any accepted body needs, and no overflow.
const MAX_LENGTH_DIGITS: usize = 15;

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// LF without CR, or CR without LF.
    LineEnding,
    /// A byte that is not allowed in a head.
    ControlCharacter,
    /// The first line is not `METHOD SP target SP HTTP/1.x`, or in a response not `HTTP/1.x SP status SP reason`.
    RequestLine,
    /// A line is not `name: value`.
    HeaderLine,
    /// A line continues the previous one (obsolete line folding).
    FoldedLine,
    /// Content-Length is not one number, or is there twice.
    ContentLength,
    /// Transfer-Encoding is not exactly `chunked`, is there twice, or in HTTP/1.0.
    TransferEncoding,
    /// Both Content-Length and Transfer-Encoding are there.
    BothLengths,
    /// HTTP/1.1 without exactly one Host.
    Host,
    /// It has more than [`MAX_HEADERS`] fields.
    TooManyHeaders,
    /// It is longer than [`MAX_HEAD_BYTES`].
    TooLong,
    /// It did not arrive in time.
    TimedOut,
}

impl HeadError {
    /// All variants; the index of each is its number when it is passed through the parser.
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
        Self::TimedOut,
    ];

    /// The HTTP status of the answer.
    pub fn status(self) -> u16 {
        match self {
            Self::TooManyHeaders | Self::TooLong => 431,
            Self::TimedOut => 408,
            _ => 400,
        }
    }
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineEnding => f.write_str("a line of the request head does not end with CR LF"),
            Self::ControlCharacter => f.write_str("the request head contains a control character"),
            Self::RequestLine => f.write_str("the request line is malformed"),
            Self::HeaderLine => f.write_str("a header line is malformed"),
            Self::FoldedLine => f.write_str("a header is folded over several lines"),
            Self::ContentLength => f.write_str("Content-Length is not exactly one number"),
            Self::TransferEncoding => f.write_str("Transfer-Encoding is not exactly chunked"),
            Self::BothLengths => f.write_str("the request has both Content-Length and Transfer-Encoding"),
            Self::Host => f.write_str("the request does not have exactly one Host header"),
            Self::TooManyHeaders => {
                write!(f, "the request has more than {MAX_HEADERS} headers")
            }
            Self::TooLong => write!(f, "the request head exceeds {MAX_HEAD_BYTES} bytes"),
            Self::TimedOut => f.write_str("the request head did not arrive in time"),
        }
    }
}

/// How the body after a head is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// By its length in bytes.
    Length(u64),
    /// By chunks.
    Chunked,
}

/// Finds the end of a head in bytes that arrive in parts; each byte is examined once.
#[derive(Debug, Default)]
pub struct Scanner {
    scanned: usize,
}

impl Scanner {
    /// The length of the head at the start of `bytes`, once it is complete.
    ///
    /// `bytes` must start with the bytes of the previous call. Line endings and control characters are checked here, so
    /// that a head which can never be valid is refused at once.
    ///
    /// # Errors
    /// The first rule that a byte violates, or that the head is too long.
    pub fn find_end(&mut self, bytes: &[u8]) -> Result<Option<usize>, HeadError> {
        let limit = bytes.len().min(MAX_HEAD_BYTES);
        while self.scanned < limit {
            let at = self.scanned;
            let before = at.checked_sub(1).map(|at| bytes[at]);
            match bytes[at] {
                b'\n' if before != Some(b'\r') => return Err(HeadError::LineEnding),
                _ if before == Some(b'\r') && bytes[at] != b'\n' => {
                    return Err(HeadError::LineEnding);
                }
                b'\r' | b'\n' | b'\t' | b' '..=b'~' | 0x80.. => {}
                _ => return Err(HeadError::ControlCharacter),
            }
            self.scanned += 1;
            if bytes[..self.scanned].ends_with(b"\r\n\r\n") {
                let length = self.scanned;
                self.scanned = 0;
                return Ok(Some(length));
            }
        }
        if bytes.len() >= MAX_HEAD_BYTES {
            return Err(HeadError::TooLong);
        }
        Ok(None)
    }
}

/// Which forms of target a request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetForm {
    /// A path or an `http` URL, as for servers.
    Server,
    /// An `http` URL or, after `CONNECT`, a host and its port, as for proxies. The proxy has to check which of them it
    /// is, and whether it is valid; here it is a word of visible characters.
    Proxy,
}

/// The versions of HTTP that have heads of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Without chunks, and Host is optional.
    Http10,
    /// With chunks, and Host is required.
    Http11,
}

/// Header fields in their order, names as they were written, values without surrounding white space.
pub type Fields<'a> = Vec<(&'a str, &'a [u8])>;

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The method, in capital letters.
    pub method: &'a str,
    /// The request target.
    pub target: &'a str,
    /// The client's version.
    pub version: Version,
    /// All header fields.
    pub fields: Fields<'a>,
    /// How the body is delimited.
    pub framing: Framing,
}

/// The head of a response.
#[derive(Debug, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    /// The status code, three digits.
    pub status: u16,
    /// The reason phrase.
    pub reason: &'a [u8],
    /// All header fields.
    pub fields: Fields<'a>,
    /// How the body is delimited. `None`: it ends with the connection.
    pub framing: Option<Framing>,
}

/// Checks a complete head of a request to a server, including its empty line, and returns how the body is delimited.
///
/// # Errors
/// The first rule that it violates.
pub fn check_request(head: &[u8]) -> Result<Framing, HeadError> {
    read_request(head, TargetForm::Server).map(|head| head.framing)
}

/// Parses the complete head of a request, including its empty line.
///
/// # Errors
/// The first rule that it violates.
pub fn read_request(head: &[u8], targets: TargetForm) -> Result<RequestHead<'_>, HeadError> {
    let mut lines = split_lines(head)?;
    let (method, target, version) = parse_request_line(lines.next().unwrap_or_default(), targets)?;
    let read = parse_fields(lines, version)?;
    if read.hosts > 1 || (read.hosts == 0 && version == Version::Http11) {
        return Err(HeadError::Host);
    }
    Ok(RequestHead {
        method,
        target,
        version,
        fields: read.fields,
        framing: read.framing.unwrap_or(Framing::Length(0)),
    })
}

/// Parses the complete head of a response, including its empty line.
///
/// # Errors
/// The first rule that it violates.
pub fn read_response(head: &[u8]) -> Result<ResponseHead<'_>, HeadError> {
    let mut lines = split_lines(head)?;
    let (version, status, reason) = parse_status_line(lines.next().unwrap_or_default())?;
    let read = parse_fields(lines, version)?;
    Ok(ResponseHead { status, reason, fields: read.fields, framing: read.framing })
}

fn split_lines(head: &[u8]) -> Result<impl Iterator<Item = &[u8]>, HeadError> {
    let lines = head.strip_suffix(b"\r\n\r\n").ok_or(HeadError::LineEnding)?;
    let lines = lines.split(|&byte| byte == b'\n');
    Ok(lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)))
}

struct ParsedFields<'a> {
    fields: Fields<'a>,
    framing: Option<Framing>,
    hosts: usize,
}

fn parse_fields<'a>(lines: impl Iterator<Item = &'a [u8]>, version: Version) -> Result<ParsedFields<'a>, HeadError> {
    let (mut length, mut chunked, mut hosts) = (None, false, 0);
    let mut fields = Vec::new();
    for line in lines {
        if fields.len() == MAX_HEADERS {
            return Err(HeadError::TooManyHeaders);
        }
        let (name, value) = parse_header(line)?;
        if name.eq_ignore_ascii_case("content-length") {
            let number = parse_content_length(value).ok_or(HeadError::ContentLength)?;
            if length.replace(number).is_some() {
                return Err(HeadError::ContentLength);
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || version == Version::Http10 || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(HeadError::TransferEncoding);
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case("host") {
            hosts += 1;
        }
        fields.push((name, value));
    }
    let framing = match (length, chunked) {
        (Some(_), true) => return Err(HeadError::BothLengths),
        (None, true) => Some(Framing::Chunked),
        (length, false) => length.map(Framing::Length),
    };
    Ok(ParsedFields { fields, framing, hosts })
}

/// `METHOD SP target SP HTTP/1.x`, the method in capital letters.
fn parse_request_line(line: &[u8], targets: TargetForm) -> Result<(&str, &str, Version), HeadError> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HeadError::RequestLine);
    };
    let is_method = (1..=16).contains(&method.len()) && method.iter().all(u8::is_ascii_uppercase);
    let is_target = match targets {
        TargetForm::Server => target.starts_with(b"/") || target.starts_with(b"http://"),
        TargetForm::Proxy => !target.is_empty(),
    };
    let is_target = is_target && target.iter().all(u8::is_ascii_graphic);
    let version = parse_version(version).ok_or(HeadError::RequestLine)?;
    match (str::from_utf8(method), str::from_utf8(target)) {
        (Ok(method), Ok(target)) if is_method && is_target => Ok((method, target, version)),
        _ => Err(HeadError::RequestLine),
    }
}

/// `HTTP/1.x SP status SP reason`, the reason possibly empty.
fn parse_status_line(line: &[u8]) -> Result<(Version, u16, &[u8]), HeadError> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let (Some(version), Some(status)) = (parts.next(), parts.next()) else {
        return Err(HeadError::RequestLine);
    };
    let version = parse_version(version).ok_or(HeadError::RequestLine)?;
    let &[first @ b'1'..=b'9', second @ b'0'..=b'9', third @ b'0'..=b'9'] = status else {
        return Err(HeadError::RequestLine);
    };
    let digit = |byte: u8| u16::from(byte - b'0');
    let status = digit(first) * 100 + digit(second) * 10 + digit(third);
    Ok((version, status, parts.next().unwrap_or_default()))
}

fn parse_version(word: &[u8]) -> Option<Version> {
    match word {
        b"HTTP/1.1" => Some(Version::Http11),
        b"HTTP/1.0" => Some(Version::Http10),
        _ => None,
    }
}

fn parse_header(line: &[u8]) -> Result<(&str, &[u8]), HeadError> {
    if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
        return Err(HeadError::FoldedLine);
    }
    let colon = line.iter().position(|&byte| byte == b':');
    let (name, value) = line.split_at(colon.ok_or(HeadError::HeaderLine)?);
    if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) {
        return Err(HeadError::HeaderLine);
    }
    let name = str::from_utf8(name).map_err(|_| HeadError::HeaderLine)?;
    Ok((name, value[1..].trim_ascii()))
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn parse_content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > MAX_LENGTH_DIGITS || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Framing, HeadError> {
        let end = Scanner::default().find_end(text.as_bytes())?;
        check_request(&text.as_bytes()[..end.expect("the head is whole")])
    }

    #[test]
    fn ordinary_heads_pass_and_say_how_long_their_body_is() {
        for (text, framing) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", Framing::Length(0)),
            ("GET http://x/a HTTP/1.0\r\n\r\n", Framing::Length(0)),
            ("POST /skill/x HTTP/1.1\r\nhost:x\r\ncontent-LENGTH:  12 \r\n\r\n", Framing::Length(12)),
            ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n", Framing::Chunked),
        ] {
            assert_eq!(read(text), Ok(framing), "{text:?}");
        }
    }

    #[test]
    fn whatever_could_be_read_in_two_ways_is_refused() {
        use HeadError::*;
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
            ("GET /\u{e9} HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), RequestLine),
            (post("A : b"), HeaderLine),
            (post(": b"), HeaderLine),
            (post("A"), HeaderLine),
            (post("A: b\r\n c"), FoldedLine),
            (post("A: b\r\n\tc"), FoldedLine),
            (post("Content-Length: 1\r\nContent-Length: 1"), ContentLength),
            (post("Content-Length: 1, 1"), ContentLength),
            (post("Content-Length: +1"), ContentLength),
            (post("Content-Length: 0x1"), ContentLength),
            (post("Content-Length:"), ContentLength),
            (post("Content-Length: 1111111111111111"), ContentLength),
            (post("Transfer-Encoding: gzip, chunked"), TransferEncoding),
            (post("Transfer-Encoding: \u{b}chunked"), ControlCharacter),
            (post("Transfer-Encoding: xchunked"), TransferEncoding),
            (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), TransferEncoding),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), TransferEncoding),
            (post("Content-Length: 1\r\nTransfer-Encoding: chunked"), BothLengths),
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
    fn proxies_are_asked_for_hosts() {
        let head = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n";
        assert_eq!(check_request(head), Err(HeadError::RequestLine));
        assert_eq!(
            read_request(head, TargetForm::Proxy),
            Ok(RequestHead {
                method: "CONNECT",
                target: "a.example:443",
                version: Version::Http11,
                fields: vec![("Host", b"a.example:443")],
                framing: Framing::Length(0),
            })
        );
    }

    #[test]
    fn responses_are_read_as_strictly() {
        let head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\nX: y\r\n\r\n";
        assert_eq!(
            read_response(head),
            Ok(ResponseHead {
                status: 404,
                reason: b"Not Found",
                fields: vec![("Content-Length", b"7"), ("X", b"y")],
                framing: Some(Framing::Length(7)),
            })
        );
        for (first, status) in [("HTTP/1.0 200", 200), ("HTTP/1.1 204 ", 204)] {
            let head = format!("{first}\r\n\r\n");
            let read = read_response(head.as_bytes()).map(|response| (response.status, response.framing));
            assert_eq!(read, Ok((status, None)), "{first}");
        }
        for first in ["HTTP/1.1", "HTTP/1.1 20", "HTTP/1.1 2000 x", "HTTP/1.1 020 x", "HTTP/2 200 x", "ICY 200 OK"] {
            let head = format!("{first}\r\n\r\n");
            assert_eq!(read_response(head.as_bytes()), Err(HeadError::RequestLine), "{first}");
        }
        let head = b"HTTP/1.1 200 x\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(read_response(head), Err(HeadError::BothLengths));
    }

    #[test]
    fn bytes_may_arrive_one_by_one() {
        let text = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nrest";
        let head = text.len() - 4;
        let mut scanner = Scanner::default();
        for length in 0..head {
            assert_eq!(scanner.find_end(&text[..length]), Ok(None));
        }
        assert_eq!(scanner.find_end(text), Ok(Some(head)));
        // And the next one is searched from its own start.
        assert_eq!(scanner.find_end(text), Ok(Some(head)));
    }

    #[test]
    fn numbers_of_violations_are_their_places() {
        for (place, violation) in HeadError::ALL.into_iter().enumerate() {
            assert_eq!(violation as usize, place);
        }
    }
}
