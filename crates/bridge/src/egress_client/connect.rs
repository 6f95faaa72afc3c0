//! Asks the gateway for a tunnel, and parses its answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sympozium_api::text::is_visible;
use sympozium_ipc::credential::Credential;
use sympozium_ipc::strict_head::{Fields, Framing, Scanner, read_response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

use super::{Stream, TunnelError};

/// Maximum number of bytes of the message of a refusal. The rest is dropped.
pub const MAX_REFUSAL_BYTES: usize = 1024;
/// Maximum number of bytes of the reason of a refusal.
pub const MAX_REASON_BYTES: usize = 64;
/// Maximum number of bytes of a host: of a DNS name, and the brackets of an address.
const MAX_HOST_BYTES: usize = 255;
/// Bytes per read.
const READ_BYTES: usize = 4096;
const REASON_HEADER: &str = "sympozium-reason";

/// `host:port` for the request line. The gateway decides what a valid host is; here it must not contain anything that
/// could end the line or be taken for something other than a host.
pub fn target_authority(host: &str, port: u16) -> Result<String, TunnelError> {
    let bare = without_brackets(host);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if bare.is_empty() || host.len() > MAX_HOST_BYTES || !bare.bytes().all(plain) {
        return Err(TunnelError::Host(host.to_owned()));
    }
    Ok(if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") })
}

/// The address without brackets.
pub fn without_brackets(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// Asks for a tunnel to `target`, and returns it if the gateway accepts.
pub async fn open_tunnel(mut gateway: Stream, credential: &Credential, target: &str) -> Result<Stream, TunnelError> {
    let head = connect_head(credential, target);
    let sent = gateway.write_all(head.as_bytes()).await;
    sent.map_err(TunnelError::Broken)?;
    gateway.flush().await.map_err(TunnelError::Broken)?;
    let early = read_answer(&mut gateway).await?;
    Ok(gateway.with_early(early))
}

fn connect_head(credential: &Credential, target: &str) -> Zeroizing<String> {
    let (user, password) = (&credential.user, &credential.password);
    // The full capacity from the start: reallocation would leave a copy of the password behind.
    let mut pair = Zeroizing::new(String::with_capacity(user.len() + 1 + password.len()));
    pair.push_str(user);
    pair.push(':');
    pair.push_str(password);
    let room = 2 * target.len() + pair.len().div_ceil(3) * 4 + 128;
    let mut head = Zeroizing::new(String::with_capacity(room));
    for piece in ["CONNECT ", target, " HTTP/1.1\r\nHost: ", target, "\r\nProxy-Authorization: Basic "] {
        head.push_str(piece);
    }
    STANDARD.encode_string(pair.as_bytes(), &mut head);
    head.push_str("\r\n\r\n");
    head
}

/// Reads the gateway's answer: the first bytes of the tunnel, or the refusal.
async fn read_answer<G>(gateway: &mut G) -> Result<Bytes, TunnelError>
where
    G: AsyncRead + AsyncWrite + Unpin,
{
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let mut scanner = Scanner::default();
    let end = loop {
        match scanner.find_end(&bytes) {
            Ok(Some(end)) => break end,
            Ok(None) => {}
            Err(_) => return Err(TunnelError::NotAProxy),
        }
        if read_some(gateway, &mut bytes).await? == 0 {
            return Err(TunnelError::NotAProxy);
        }
    };
    let rest = Bytes::copy_from_slice(&bytes[end..]);
    let head = read_response(&bytes[..end]).map_err(|_| TunnelError::NotAProxy)?;
    if head.status == 200 {
        return Ok(rest);
    }
    let length = match head.framing {
        Some(Framing::Length(length)) => usize::try_from(length).unwrap_or(usize::MAX),
        // Our gateway always sends a length; of another proxy, the status is enough.
        Some(Framing::Chunked) => 0,
        None => usize::MAX,
    };
    let mut body = rest.to_vec();
    let wanted = length.min(MAX_REFUSAL_BYTES);
    // An incomplete message must not hide the refusal.
    while body.len() < wanted && read_some(gateway, &mut body).await.is_ok_and(|count| count > 0) {}
    body.truncate(wanted);
    Err(TunnelError::Refused {
        status: head.status,
        reason: refusal_reason(&head.fields),
        message: refusal_message(&body, head.status),
    })
}

async fn read_some<G>(gateway: &mut G, bytes: &mut Vec<u8>) -> Result<usize, TunnelError>
where
    G: AsyncRead + Unpin,
{
    bytes.reserve(READ_BYTES);
    let mut limited = gateway.take(READ_BYTES as u64);
    limited.read_buf(bytes).await.map_err(TunnelError::Broken)
}

fn refusal_reason(fields: &Fields<'_>) -> Option<String> {
    let (_, word) = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(REASON_HEADER))?;
    let plain = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'-';
    let is_word = (1..=MAX_REASON_BYTES).contains(&word.len()) && word.iter().all(plain);
    is_word.then(|| String::from_utf8_lossy(word).into_owned())
}

/// The message line by line, without characters that a terminal or a model could interpret.
fn refusal_message(body: &[u8], status: u16) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim().trim_start_matches("error: ");
    let plain = |letter: &char| *letter == '\n' || is_visible(*letter);
    let text: String = text.chars().filter(plain).collect();
    if text.is_empty() { format!("the gateway answers {status}") } else { text }
}

#[cfg(test)]
mod tests;
