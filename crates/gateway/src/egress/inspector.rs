//! Looks at the first bytes of a tunnel: TLS must be for the server that the tunnel was asked for.

use std::net::IpAddr;

use sympozium_plan::host::Host;

use super::client_hello::{self, Hello};
use crate::events::Reason;

/// The port where nothing but TLS is spoken.
pub const TLS_PORT: u16 = 443;
/// So many bytes tell whether a connection to another port is one of TLS.
const TELLING_BYTES: usize = 6;

/// Holds back what a client sends first, until it is known to be good.
#[derive(Debug)]
pub struct Inspector {
    expected: Host,
    tls_only: bool,
    held: Vec<u8>,
}

impl Inspector {
    /// For a tunnel to this host and port.
    pub fn new(expected: Host, port: u16) -> Self {
        Self { expected, tls_only: port == TLS_PORT, held: Vec::new() }
    }

    /// Takes what the client sent. Gives all of it back once it may go on, and is not asked again after that.
    ///
    /// # Errors
    ///
    /// When the tunnel must be cut.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, Reason> {
        self.held.extend_from_slice(bytes);
        let Some(first) = self.held.first() else {
            return Ok(None);
        };
        if self.tls_only {
            if !client_hello::may_be_tls(&[*first]) {
                return Err(Reason::NotTls);
            }
        } else if !client_hello::may_be_tls(&self.held) {
            return Ok(Some(std::mem::take(&mut self.held)));
        } else if self.held.len() < TELLING_BYTES {
            return Ok(None);
        }
        match client_hello::read(&self.held).map_err(|_| Reason::HelloMalformed)? {
            Hello::Incomplete => Ok(None),
            Hello::Complete(name) => {
                self.compare(name.as_deref())?;
                Ok(Some(std::mem::take(&mut self.held)))
            }
        }
    }

    fn compare(&self, name: Option<&str>) -> Result<(), Reason> {
        match (&self.expected, name) {
            (Host::Name(expected), Some(name)) if expected == name => Ok(()),
            (Host::Name(_), None) => Err(Reason::NoServerName),
            // RFC 6066 has no server names that are addresses, so clients send none, or what they were given.
            (Host::Address(_), None) => Ok(()),
            (Host::Address(expected), Some(name)) if name.parse::<IpAddr>().as_ref() == Ok(expected) => Ok(()),
            _ => Err(Reason::OtherServerName),
        }
    }
}
