//! The gateway's address as it is given on the command line, and its resolution.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use crate::egress_client::GatewayAddress;

/// Maximum number of bytes of a host name (RFC 1035).
const MAX_HOST_BYTES: usize = 253;
/// Maximum number of bytes of a socket path (`sun_path` without its NUL byte).
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Maximum number of addresses of one name.
pub const MAX_ADDRESSES: usize = 8;

/// The gateway's address as it is given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayTarget {
    /// A host, as in the gateway's certificate, and a port.
    Tcp {
        /// A name or an IP address.
        host: String,
        port: u16,
    },
    /// A Unix socket, which works across network namespaces.
    Unix(PathBuf),
}

impl GatewayTarget {
    /// Parses `HOST:PORT`, `[ADDRESS]:PORT` or `unix:PATH`.
    ///
    /// # Errors
    ///
    /// Returns a message for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => Err("there is no path after `unix:`".to_owned()),
                _ if !path.starts_with('/') => Err("the path of a socket starts with /".to_owned()),
                1..=MAX_SOCKET_PATH_BYTES => Ok(Self::Unix(path.into())),
                _ => Err(format!("the path of a socket has {MAX_SOCKET_PATH_BYTES} bytes at most")),
            };
        }
        let no = || "it is neither HOST:PORT nor unix:PATH".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(no)?;
        let port = port.parse().map_err(|_| no())?;
        if port == 0 || !is_port_plain(text) {
            return Err(no());
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            let host = address.ip().to_string();
            return Ok(Self::Tcp { host, port });
        }
        let is_label = |label: &str| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && (label.bytes()).all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        // A host that ends in a number is an IP address, or a notation of one that programs parse differently.
        let last = host.rsplit('.').next().unwrap_or_default();
        let is_numeric = last.bytes().all(|byte| byte.is_ascii_digit());
        if host.len() > MAX_HOST_BYTES || is_numeric || !host.split('.').all(is_label) {
            return Err(no());
        }
        Ok(Self::Tcp { host: host.to_ascii_lowercase(), port })
    }

    /// Resolves the name. This happens only once.
    ///
    /// # Errors
    ///
    /// Returns an error if the name does not exist or has no address.
    pub fn resolve(&self) -> io::Result<GatewayAddress> {
        let (host, port) = match self {
            Self::Unix(path) => return Ok(GatewayAddress::Unix(path.clone())),
            Self::Tcp { host, port } => (host, *port),
        };
        let mut addresses = Vec::new();
        for address in (host.as_str(), port).to_socket_addrs()? {
            if !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(io::Error::other("the name has no address"));
        }
        Ok(GatewayAddress::Tcp { addresses, server_name: host.clone() })
    }
}

/// `u16::from_str` accepts a sign and leading zeros; an address has neither.
fn is_port_plain(text: &str) -> bool {
    let port = text.rsplit(':').next().unwrap_or_default();
    port.starts_with(|first: char| ('1'..='9').contains(&first))
}

impl fmt::Display for GatewayTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An accepted address has one notation, and parses to the same value again.
        #[test]
        fn whatever_is_typed(text in "(unix:/?)?[a-z0-9./:\\[\\]-]{0,24}(:[0-9]{1,5})?|\\PC{0,24}") {
            if let Ok(target) = GatewayTarget::parse(&text) {
                prop_assert_eq!(GatewayTarget::parse(&target.to_string()), Ok(target));
            }
        }
    }

    fn tcp(host: &str, port: u16) -> GatewayTarget {
        GatewayTarget::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn what_can_be_typed() {
        let longest = "a.".repeat(126) + "b";
        assert_eq!(longest.len(), MAX_HOST_BYTES);
        let longest = longest.as_str();
        for (text, target) in [
            ("gateway:8443", tcp("gateway", 8443)),
            ("Gateway.Sympozium-System.svc:1", tcp("gateway.sympozium-system.svc", 1)),
            ("10.0.0.1:65535", tcp("10.0.0.1", 65535)),
            ("[2001:db8::1]:443", tcp("2001:db8::1", 443)),
            ("unix:/run/gateway/socket", GatewayTarget::Unix("/run/gateway/socket".into())),
            (&format!("{longest}:1"), tcp(longest, 1)),
        ] {
            assert_eq!(GatewayTarget::parse(text), Ok(target.clone()), "{text}");
            assert_eq!(target.to_string(), text.to_ascii_lowercase());
        }
        for text in [
            "",
            ":",
            "gateway",
            "gateway:",
            "gateway:0",
            "gateway:+1",
            "gateway:01",
            "gateway:65536",
            ":1",
            "a b:1",
            "a_b:1",
            "-a:1",
            "a-:1",
            "a..b:1",
            ".a:1",
            "a.:1",
            "user@a:1",
            "http://a:1",
            "a:1/x",
            "1.2.3:1",
            "0x7f.1:1",
            "2001:db8::1:443",
            "[gateway]:1",
            "ü:1",
            "a\n:1",
            "unix:",
            "unix:run/socket",
            &format!("a{longest}:1"),
            &format!("unix:/{}", "a".repeat(MAX_SOCKET_PATH_BYTES)),
        ] {
            assert!(GatewayTarget::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_it_resolves_to() {
        let address = "127.0.0.1:8443".parse().unwrap();
        let resolved = GatewayTarget::parse("127.0.0.1:8443").unwrap().resolve().unwrap();
        let expected = GatewayAddress::Tcp { addresses: vec![address], server_name: "127.0.0.1".to_owned() };
        assert_eq!(resolved, expected);
        assert_eq!(resolved.tcp_ports(), [8443]);
        let unix = GatewayTarget::Unix("/run/socket".into()).resolve().unwrap();
        assert_eq!(unix, GatewayAddress::Unix("/run/socket".into()));
        assert_eq!(unix.tcp_ports(), [0; 0]);
    }
}
