//! The client of `/healthz`, for exec probes.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use sympozium_program::Failure;

const MAX_RESPONSE_BYTES: u64 = 4096;

/// Requests `/healthz` from the server on `address`.
///
/// # Errors
/// When there is no response within `timeout`, or it is not `ok`.
pub fn healthcheck(address: SocketAddr, timeout: Duration) -> Result<(), Failure> {
    request_health(address, timeout)
        .with_context(|| format!("the server on {address} is not healthy"))
        .map_err(|error| Failure::new(error, "check that `skill-sidecar serve` runs, and listens on this address"))
}

fn request_health(address: SocketAddr, timeout: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    let remaining = || {
        let remaining = deadline.saturating_duration_since(Instant::now());
        ensure!(!remaining.is_zero(), "no response within {timeout:?}");
        Ok(remaining)
    };
    // A server that listens on every address is reached on the loopback address.
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let mut stream = TcpStream::connect_timeout(&(host, address.port()).into(), remaining()?)?;
    stream.set_write_timeout(Some(remaining()?))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    let mut bytes = [0; 512];
    while (response.len() as u64) < MAX_RESPONSE_BYTES {
        stream.set_read_timeout(Some(remaining()?))?;
        match stream.read(&mut bytes)? {
            0 => break,
            count => response.extend_from_slice(&bytes[..count]),
        }
    }
    let response = String::from_utf8_lossy(&response);
    let status = response.split_ascii_whitespace().nth(1).unwrap_or_default();
    if status != "200" || !response.ends_with("\r\n\r\nok") {
        bail!("the response has status {status:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn check_with(response: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(response);
        });
        let result = request_health(address, Duration::from_secs(60)).map_err(|error| format!("{error:#}"));
        server.join().unwrap();
        result
    }

    #[test]
    fn only_ok_is_healthy() {
        assert_eq!(check_with(b"HTTP/1.1 200 OK\r\n\r\nok"), Ok(()));
        let status = |status: &str| Err(format!("the response has status {status:?}"));
        assert_eq!(check_with(b"HTTP/1.1 503 No\r\n\r\nok"), status("503"));
        assert_eq!(check_with(b"HTTP/1.1 200 OK\r\n\r\nno"), status("200"));
        assert_eq!(check_with(b""), status(""));
    }

    #[test]
    fn a_server_without_a_response_is_unhealthy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(request_health(address, Duration::from_millis(20)).is_err());
        drop(listener);
        assert!(request_health(address, Duration::from_secs(20)).is_err());
    }
}
