//! The target of a request: a tunnel to a host and port, or a URL.

use sympozium_ipc::strict_head::{Fields, Framing, RequestHead, Version};
use sympozium_plan::host::{Endpoint, Host};

use crate::events::{Reason, RequestTarget};

/// Maximum number of characters of an invalid target in a log.
const MAX_LOGGED_CHARS: usize = 120;

/// Where a request wants to connect, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub host: Host,
    pub port: u16,
    pub kind: TargetKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetKind {
    Tunnel,
    /// One request for this path and query.
    Request {
        method: String,
        /// Begins with `/`.
        path: String,
    },
}

impl Target {
    /// Parses the target. There is one notation of each host and port; ambiguous ones are refused.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not valid, or if the Host header names another host.
    pub fn parse(head: &RequestHead<'_>) -> Result<Self, Reason> {
        let target = if head.method == "CONNECT" {
            if head.framing != Framing::Length(0) || has_field(&head.fields, "content-length") {
                return Err(Reason::BodyMalformed);
            }
            let (host, port) = parse_authority(head.target).ok_or(Reason::TargetMalformed)?;
            Self { host, port: port.ok_or(Reason::TargetMalformed)?, kind: TargetKind::Tunnel }
        } else {
            let endpoint = Endpoint::parse(head.target).map_err(|_| Reason::TargetMalformed)?;
            // An https request would end its encryption here.
            if endpoint.encrypted || head.target.contains('#') {
                return Err(Reason::TargetMalformed);
            }
            let path = match endpoint.path.as_bytes().first() {
                Some(b'/') => endpoint.path,
                _ => format!("/{}", endpoint.path),
            };
            Self {
                host: endpoint.host,
                port: endpoint.port,
                kind: TargetKind::Request { method: head.method.to_owned(), path },
            }
        };
        target.check_host(head)?;
        Ok(target)
    }

    /// Checks that the Host header names the same host. Without a port it means the default one, or for a tunnel the
    /// tunnel's.
    fn check_host(&self, head: &RequestHead<'_>) -> Result<(), Reason> {
        let mut hosts = head.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host"));
        let Some((_, value)) = hosts.next() else {
            // The strict parser guarantees that only HTTP/1.0 can lack it.
            return match head.version {
                Version::Http10 => Ok(()),
                Version::Http11 => Err(Reason::HostMismatch),
            };
        };
        let written = str::from_utf8(value).ok().and_then(parse_authority);
        let (host, port) = written.ok_or(Reason::HostMismatch)?;
        let usual = match self.kind {
            TargetKind::Tunnel => self.port,
            TargetKind::Request { .. } => 80,
        };
        if host == self.host && port.unwrap_or(usual) == self.port { Ok(()) } else { Err(Reason::HostMismatch) }
    }

    pub fn event_target(&self) -> RequestTarget {
        RequestTarget {
            method: match &self.kind {
                TargetKind::Tunnel => "CONNECT".to_owned(),
                TargetKind::Request { method, .. } => method.clone(),
            },
            host: self.host.to_string(),
            port: self.port,
        }
    }

    /// As in a Host header.
    pub fn authority(&self) -> String {
        match self.port {
            80 => self.host.to_string(),
            port => format!("{}:{port}", self.host),
        }
    }
}

/// The part of an invalid target that may be logged: no path, query, user name or password.
pub(crate) fn loggable_target(target: &str) -> String {
    let after_scheme = target.split_once("://").map_or(target, |(_, rest)| rest);
    let end = after_scheme.find(['/', '?', '#', '\\']);
    let authority = &after_scheme[..end.unwrap_or(after_scheme.len())];
    let host = authority.rsplit('@').next().unwrap_or_default();
    host.chars().take(MAX_LOGGED_CHARS).collect()
}

fn has_field(fields: &Fields<'_>, wanted: &str) -> bool {
    fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
}

/// Parses `host` or `host:port`, with IPv6 addresses in brackets.
pub(crate) fn parse_authority(text: &str) -> Option<(Host, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        // A colon inside of brackets is part of an address.
        Some((_, after)) if after.contains(']') => (text, None),
        Some((host, port)) => (host, Some(self::parse_port(port)?)),
        None => (text, None),
    };
    // An IPv6 address without brackets was split at its last colon.
    if host.contains(':') && !host.starts_with('[') {
        return None;
    }
    Some((Host::parse(host).ok()?, port))
}

/// One notation: decimal, without leading zeros.
fn parse_port(text: &str) -> Option<u16> {
    let plain = text.len() <= 5 && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use sympozium_ipc::strict_head::{TargetForm, read_request};

    use super::*;

    fn read(method: &str, target: &str, host: &str) -> Result<(String, String), Reason> {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let head = read_request(head.as_bytes(), TargetForm::Proxy).map_err(Reason::from)?;
        let target = Target::parse(&head)?;
        let path = match &target.kind {
            TargetKind::Tunnel => String::new(),
            TargetKind::Request { path, .. } => path.clone(),
        };
        Ok((format!("{}:{}", target.host, target.port), path))
    }

    #[test]
    fn tunnels_and_pages() {
        for (method, target, host, expected, path) in [
            ("CONNECT", "A.example:443", "a.EXAMPLE:443", "a.example:443", ""),
            ("CONNECT", "a.example:22", "a.example", "a.example:22", ""),
            ("CONNECT", "[::1]:443", "[0::1]:443", "[::1]:443", ""),
            ("CONNECT", "10.0.0.1:1", "10.0.0.1:1", "10.0.0.1:1", ""),
            ("GET", "http://a.example", "a.example", "a.example:80", "/"),
            ("GET", "http://a.example:80/x?y", "a.example", "a.example:80", "/x?y"),
            ("GET", "http://a.example?y=http://b", "a.example:80", "a.example:80", "/?y=http://b"),
            ("GET", "http://a.example:8080/", "a.example:8080", "a.example:8080", "/"),
        ] {
            let expected = Ok((expected.to_owned(), path.to_owned()));
            assert_eq!(read(method, target, host), expected, "{method} {target}");
        }
    }

    #[test]
    fn what_programs_read_differently_is_no_target() {
        for (method, target) in [
            ("CONNECT", "a.example"),
            ("CONNECT", "a.example:"),
            ("CONNECT", "a.example:0"),
            ("CONNECT", "a.example:0443"),
            ("CONNECT", "a.example:65536"),
            ("CONNECT", "a.example:+443"),
            ("CONNECT", "a.example:443/"),
            ("CONNECT", "http://a.example:443"),
            ("CONNECT", "user@a.example:443"),
            ("CONNECT", "a.example:443:443"),
            ("CONNECT", "::1:443"),
            ("CONNECT", "[::1]"),
            ("CONNECT", "[::1:443"),
            ("CONNECT", "[fe80::1%eth0]:443"),
            ("CONNECT", "[fe80::1%25eth0]:443"),
            ("CONNECT", "[127.0.0.1]:443"),
            ("CONNECT", "2130706433:443"),
            ("CONNECT", "0x7f000001:443"),
            ("CONNECT", "0177.0.0.1:443"),
            ("CONNECT", "127.1:443"),
            ("CONNECT", "127.0.0.1.:443"),
            ("CONNECT", "a.example.:443"),
            ("CONNECT", "a_b.example:443"),
            ("CONNECT", "a%2eexample:443"),
            ("CONNECT", "*:443"),
            ("CONNECT", ":443"),
            ("GET", "/"),
            ("GET", "*"),
            ("GET", "a.example:80"),
            ("GET", "https://a.example/"),
            ("GET", "HTTP://a.example/"),
            ("GET", "ftp://a.example/"),
            ("GET", "http://u:p@a.example/"),
            ("GET", "http://a.example\\@b.example/"),
            ("GET", "http://a.example/#x"),
            ("GET", "http:///x"),
            ("GET", "http://0x7f.1/"),
        ] {
            let refused = read(method, target, "a.example");
            assert_eq!(refused, Err(Reason::TargetMalformed), "{method} {target}");
        }
    }

    #[test]
    fn what_a_log_has_of_a_target_is_no_secret() {
        for (target, expected) in [
            ("http://user:password@a.example/p?token=x", "a.example"),
            ("user:password@0x7f.1:80", "0x7f.1:80"),
            ("https://a.example\\@secret", "a.example"),
            ("/secret", ""),
        ] {
            assert_eq!(loggable_target(target), expected, "{target}");
        }
        assert_eq!(loggable_target(&"x".repeat(9999)).len(), MAX_LOGGED_CHARS);
    }

    #[test]
    fn the_host_header_is_the_host() {
        for (method, target, host) in [
            ("CONNECT", "a.example:443", "b.example:443"),
            ("CONNECT", "a.example:443", "a.example:80"),
            ("CONNECT", "a.example:443", ""),
            ("GET", "http://a.example/", "b.example"),
            ("GET", "http://a.example/", "a.example:8080"),
            ("GET", "http://a.example:8080/", "a.example"),
            ("GET", "http://a.example/", "a.example, b.example"),
            ("GET", "http://a.example/", "a.example@b.example"),
        ] {
            let refused = read(method, target, host);
            assert_eq!(refused, Err(Reason::HostMismatch), "{target} {host}");
        }
        let with_body = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nContent-Length: 0\r\n\r\n";
        let head = read_request(with_body, TargetForm::Proxy).unwrap();
        assert_eq!(Target::parse(&head), Err(Reason::BodyMalformed));
        let old = b"CONNECT a.example:443 HTTP/1.0\r\n\r\n";
        let head = read_request(old, TargetForm::Proxy).unwrap();
        assert!(Target::parse(&head).is_ok());
    }
}
