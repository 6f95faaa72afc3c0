//! Forwards one plain request to its host, and the response back.
//!
//! The host gets a head that is written here from the parsed one, never the client's bytes, and without hop-by-hop
//! fields. Each request has its own connection to the host, so each one is decided about.

use std::sync::atomic::{AtomicBool, Ordering};

use sympozium_ipc::strict_head::{
    Fields, Framing, MAX_HEAD_BYTES, RequestHead, ResponseHead, Scanner, Version, read_response,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, split};

use super::body::{BodyEncoding, BodyError, BodyForwarder, BodySource};
use super::client::Client;
use super::meter::{Flow, Meter};
use super::target::{Target, TargetKind};
use crate::events::Reason;

/// Maximum number of interim responses such as `100 Continue`.
const MAX_INTERIM: usize = 8;

/// A request as it is forwarded.
#[derive(Debug, PartialEq, Eq)]
pub struct OutgoingRequest {
    head: Vec<u8>,
    framing: Framing,
    /// The client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
    is_head: bool,
    version: Version,
    /// The client wants to send another request on this connection.
    keep_alive: bool,
}

/// What happens with the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// It may be used for another request.
    KeepAlive,
    Close,
}

/// A request without a complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardFailure {
    pub reason: Reason,
    /// Whether the client can still get an answer from us.
    pub can_answer: bool,
}

impl OutgoingRequest {
    /// Builds the head for the host.
    pub fn new(head: &RequestHead<'_>, target: &Target) -> Self {
        let TargetKind::Request { method, path } = &target.kind else {
            unreachable!("tunnels are not passed on as requests");
        };
        let mut out = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", target.authority()).into_bytes();
        write_fields(&mut out, &head.fields);
        // A request without any framing has no body, but an explicit length of zero is forwarded.
        let says = |field: &(&str, &[u8])| field.0.eq_ignore_ascii_case("content-length");
        match head.framing {
            Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Framing::Length(length) if head.fields.iter().any(says) => {
                out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
            }
            Framing::Length(_) => {}
        }
        out.extend_from_slice(b"Connection: close\r\n\r\n");
        let listed = |wanted: &str| list_items(&head.fields, "connection").any(|item| item == wanted);
        let proxy_closes = list_items(&head.fields, "proxy-connection").any(|item| item == "close");
        Self {
            head: out,
            framing: head.framing,
            expects_continue: list_items(&head.fields, "expect").any(|item| item == "100-continue"),
            is_head: method == "HEAD",
            version: head.version,
            keep_alive: head.version == Version::Http11 && !listed("close") && !proxy_closes,
        }
    }
}

/// Forwards a request and its response.
///
/// # Errors
///
/// Returns an error if one of them could not be forwarded to its end.
pub async fn forward<C, S>(
    client: &mut Client<C>,
    mut server: S,
    request: &OutgoingRequest,
    meter: &Meter,
) -> Result<Persistence, ForwardFailure>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Until a byte of a response has been written.
    let silent = AtomicBool::new(true);
    let untold = |reason| ForwardFailure { reason, can_answer: true };
    meter.count(Flow::Sent, request.head.len()).map_err(untold)?;
    if server.write_all(&request.head).await.is_err() {
        return Err(untold(Reason::Broken));
    }
    let (client_reader, mut client_writer) = split(&mut client.stream);
    let (server_reader, server_writer) = split(server);
    if request.expects_continue && request.framing != Framing::Length(0) {
        let leave = client_writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await;
        leave.map_err(|_| untold(Reason::Broken))?;
    }
    let mut up = BodyForwarder {
        source: BodySource { reader: client_reader, buffered: &mut client.buffered },
        sink: server_writer,
        meter,
        flow: Flow::Sent,
    };
    let uploading = async {
        match request.framing {
            Framing::Length(length) => up.forward_exact(length).await,
            Framing::Chunked => up.forward_chunked(BodyEncoding::Chunked).await,
        }
    };
    let mut answer_bytes = Vec::new();
    let answering = forward_response(
        BodySource { reader: server_reader, buffered: &mut answer_bytes },
        client_writer,
        request,
        meter,
        &silent,
    );
    tokio::pin!(uploading, answering);
    let mut uploaded = None;
    let answered = loop {
        tokio::select! {
            // Whether everything was sent decides whether the connection can be reused.
            biased;
            result = &mut uploading, if uploaded.is_none() => match result {
                // A host that does not read the rest may respond all the same.
                Ok(()) | Err(BodyError::Sink) => uploaded = Some(result),
                Err(fault) => break Err(match fault {
                    BodyError::Malformed => Reason::BodyMalformed,
                    BodyError::Limit(reason) => reason,
                    BodyError::Source | BodyError::Sink => Reason::Broken,
                }),
            },
            result = &mut answering => break result,
        }
    };
    match answered {
        Err(reason) => Err(ForwardFailure { reason, can_answer: silent.load(Ordering::Relaxed) }),
        Ok(Persistence::KeepAlive) if uploaded == Some(Ok(())) => Ok(Persistence::KeepAlive),
        Ok(_) => Ok(Persistence::Close),
    }
}

/// Reads a response and forwards it.
async fn forward_response<R, W>(
    mut source: BodySource<'_, R>,
    client: W,
    request: &OutgoingRequest,
    meter: &Meter,
    silent: &AtomicBool,
) -> Result<Persistence, Reason>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let bytes = read_final_head(&mut source).await?;
    let head = read_response(&bytes).map_err(|_| Reason::AnswerMalformed)?;
    let body = ResponseBody::new(&head, request)?;
    let again = request.keep_alive && body != ResponseBody::UntilClose(BodyEncoding::Plain);
    let out = response_head(&head, body, again);
    meter.count(Flow::Received, bytes.len())?;
    let mut passing = BodyForwarder { source, sink: client, meter, flow: Flow::Received };
    silent.store(false, Ordering::Relaxed);
    let written = passing.sink.write_all(&out).await;
    written.map_err(|_| Reason::Broken)?;
    let passed = match body {
        ResponseBody::None => Ok(()),
        ResponseBody::Length(length) => passing.forward_exact(length).await,
        ResponseBody::Chunked(encode) => passing.forward_chunked(encode).await,
        ResponseBody::UntilClose(encode) => passing.forward_until_end(encode).await,
    };
    let flushed = passing.sink.flush().await;
    match passed {
        Ok(()) => flushed.map_err(|_| Reason::Broken)?,
        Err(BodyError::Malformed) => return Err(Reason::AnswerMalformed),
        Err(BodyError::Limit(reason)) => return Err(reason),
        Err(BodyError::Source | BodyError::Sink) => return Err(Reason::Broken),
    }
    Ok(if again { Persistence::KeepAlive } else { Persistence::Close })
}

/// Reads the head of the final response, after interim ones.
async fn read_final_head<R: AsyncRead + Unpin>(source: &mut BodySource<'_, R>) -> Result<Vec<u8>, Reason> {
    for _ in 0..=MAX_INTERIM {
        let mut scanner = Scanner::default();
        let end = loop {
            match scanner.find_end(source.buffered) {
                Ok(Some(end)) => break end,
                Ok(None) => {}
                Err(_) => return Err(Reason::AnswerMalformed),
            }
            match source.read_more().await {
                Ok(true) => {}
                Ok(false) if source.buffered.is_empty() => return Err(Reason::Broken),
                Ok(false) => return Err(Reason::AnswerMalformed),
                Err(_) => return Err(Reason::Broken),
            }
        };
        debug_assert!(end <= MAX_HEAD_BYTES);
        let rest = source.buffered.split_off(end);
        let bytes = std::mem::replace(source.buffered, rest);
        match read_response(&bytes).map_err(|_| Reason::AnswerMalformed)?.status {
            // `Upgrade` is not forwarded, so no other protocol was requested.
            101 => return Err(Reason::AnswerMalformed),
            100..200 => {}
            _ => return Ok(bytes),
        }
    }
    Err(Reason::AnswerMalformed)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseBody {
    None,
    Length(u64),
    Chunked(BodyEncoding),
    UntilClose(BodyEncoding),
}

impl ResponseBody {
    fn new(head: &ResponseHead<'_>, request: &OutgoingRequest) -> Result<Self, Reason> {
        if request.is_head || matches!(head.status, 204 | 304) {
            return Ok(Self::None);
        }
        // HTTP/1.0 clients do not know chunks: for them the body ends with the connection.
        let encode = match request.version {
            Version::Http11 => BodyEncoding::Chunked,
            Version::Http10 => BodyEncoding::Plain,
        };
        Ok(match head.framing {
            Some(Framing::Length(length)) => Self::Length(length),
            Some(Framing::Chunked) => Self::Chunked(encode),
            None => Self::UntilClose(encode),
        })
    }
}

fn response_head(head: &ResponseHead<'_>, body: ResponseBody, again: bool) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {} ", head.status).into_bytes();
    out.extend_from_slice(head.reason);
    out.extend_from_slice(b"\r\n");
    write_fields(&mut out, &head.fields);
    match (body, head.framing) {
        (ResponseBody::Length(length), _) | (ResponseBody::None, Some(Framing::Length(length))) => {
            out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        (ResponseBody::Chunked(BodyEncoding::Chunked) | ResponseBody::UntilClose(BodyEncoding::Chunked), _) => {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        _ => {}
    }
    let connection: &[u8] = if again { b"keep-alive" } else { b"close" };
    out.extend_from_slice(&[b"Connection: ", connection, b"\r\n\r\n"].concat());
    out
}

/// Hop-by-hop fields, and those that are written again.
const HOP_BY_HOP_FIELDS: &[&str] =
    &["connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Writes the end-to-end fields: none of a proxy, and none that `Connection` names.
fn write_fields(out: &mut Vec<u8>, fields: &Fields<'_>) {
    let named: Vec<String> = list_items(fields, "connection").collect();
    for (name, value) in fields {
        let lower = name.to_ascii_lowercase();
        if HOP_BY_HOP_FIELDS.contains(&lower.as_str()) || lower.starts_with("proxy-") || named.contains(&lower) {
            continue;
        }
        out.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
}

/// The items of a list field, in lower case.
fn list_items<'a>(fields: &'a Fields<'_>, name: &'a str) -> impl Iterator<Item = String> + 'a {
    let of_name = fields.iter().filter(move |(field, _)| field.eq_ignore_ascii_case(name));
    let words = of_name.flat_map(|(_, value)| value.split(|byte| *byte == b','));
    words.map(|word| String::from_utf8_lossy(word.trim_ascii()).to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use sympozium_ipc::strict_head::{TargetForm, read_request};

    use super::*;

    fn outgoing(head: &str) -> OutgoingRequest {
        let head = read_request(head.as_bytes(), TargetForm::Proxy).unwrap();
        OutgoingRequest::new(&head, &Target::parse(&head).unwrap())
    }

    #[test]
    fn the_host_gets_what_is_for_it_and_nothing_else() {
        let out = outgoing(
            "POST http://a.example:8080/x?y HTTP/1.1\r\nHost: a.example:8080\r\nProxy-Authorization: Basic c2VjcmV0\r\n\
             Proxy-Connection: keep-alive\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nX-End: 2\r\nTE: trailers\r\n\
             Upgrade: websocket\r\nExpect: 100-continue\r\nKeep-Alive: 5\r\nTrailer: x\r\nAuthorization: Bearer t\r\n\
             Content-Length: 3\r\n\r\n",
        );
        assert_eq!(
            String::from_utf8_lossy(&out.head),
            "POST /x?y HTTP/1.1\r\nHost: a.example:8080\r\nX-End: 2\r\nAuthorization: Bearer t\r\n\
             Content-Length: 3\r\nConnection: close\r\n\r\n"
        );
        assert!(out.expects_continue && out.keep_alive);
    }

    #[test]
    fn clients_that_close_are_not_kept() {
        let get = |version: &str, field: &str| {
            let head = format!("GET http://a/ HTTP/{version}\r\nHost: a\r\n{field}\r\n\r\n");
            outgoing(&head).keep_alive
        };
        assert!(get("1.1", "X: y"));
        assert!(!get("1.1", "Connection: Close"));
        assert!(!get("1.1", "Proxy-Connection: close"));
        assert!(!get("1.0", "Connection: keep-alive"));
    }

    #[test]
    fn answers_are_framed_anew() {
        let request = outgoing("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n");
        for (head, body, expected) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n",
                ResponseBody::Length(3),
                "HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n",
            ),
            (
                "HTTP/1.0 200\r\nProxy-Authenticate: Basic\r\n\r\n",
                ResponseBody::UntilClose(BodyEncoding::Chunked),
                "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n",
            ),
            (
                "HTTP/1.1 304 x\r\nContent-Length: 9\r\n\r\n",
                ResponseBody::None,
                "HTTP/1.1 304 x\r\nContent-Length: 9\r\nConnection: keep-alive\r\n\r\n",
            ),
        ] {
            let read = read_response(head.as_bytes()).unwrap();
            assert_eq!(ResponseBody::new(&read, &request), Ok(body));
            let out = response_head(&read, body, true);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}
