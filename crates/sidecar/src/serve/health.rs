//! Asking a server how it is, as an exec probe does.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use sympozium_program::Failure;

/// What is read of the answer.
const MAX_ANSWER_BYTES: u64 = 4096;

/// Asks the server that listens on `address` for `/healthz`, and waits for the answer no longer than `timeout`.
///
/// # Errors
/// When there is no answer in time, or it is not `ok`.
pub fn healthcheck(address: SocketAddr, timeout: Duration) -> Result<(), Failure> {
    ask(address, timeout)
        .with_context(|| format!("the server on {address} is not healthy"))
        .map_err(|error| Failure::new(error, "is `skill-sidecar serve` running, and on this address?"))
}

fn ask(address: SocketAddr, timeout: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + timeout;
    let left = || {
        let left = end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "it did not answer within {timeout:?}");
        Ok(left)
    };
    // What listens everywhere is asked here.
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let mut stream = TcpStream::connect_timeout(&(host, address.port()).into(), left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut bytes = [0; 512];
    while (answer.len() as u64) < MAX_ANSWER_BYTES {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut bytes)? {
            0 => break,
            count => answer.extend_from_slice(&bytes[..count]),
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split_ascii_whitespace().nth(1).unwrap_or_default();
    if status != "200" || !answer.ends_with("\r\n\r\nok") {
        bail!("it answered with status {status:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn asked(answer: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer);
        });
        let asked = ask(address, Duration::from_secs(60)).map_err(|error| format!("{error:#}"));
        server.join().unwrap();
        asked
    }

    #[test]
    fn only_ok_is_healthy() {
        assert_eq!(asked(b"HTTP/1.1 200 OK\r\n\r\nok"), Ok(()));
        let status = |status: &str| Err(format!("it answered with status {status:?}"));
        assert_eq!(asked(b"HTTP/1.1 503 No\r\n\r\nok"), status("503"));
        assert_eq!(asked(b"HTTP/1.1 200 OK\r\n\r\nno"), status("200"));
        assert_eq!(asked(b""), status(""));
    }

    #[test]
    fn silence_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(ask(address, Duration::from_millis(20)).is_err());
        drop(listener);
        assert!(ask(address, Duration::from_secs(20)).is_err());
    }
}
