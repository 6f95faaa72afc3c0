//! Inspects the first bytes of a tunnel: TLS must be for the server that the tunnel was requested for.
//!
//! A server may answer the ClientHello with a HelloRetryRequest (RFC 8446, 4.1.4) and accept a second ClientHello,
//! which must name the same server. So a tunnel is inspected until the server has answered otherwise, or the second one
//! was checked.

use std::net::IpAddr;

use sympozium_plan::host::Host;

use super::client_hello::{self, Hello};
use super::tls_records::{RecordWalker, ServerAnswer, ServerHello};
use crate::events::Reason;

/// On this port only TLS is allowed.
pub const TLS_PORT: u16 = 443;
/// On other ports, this many bytes decide whether a connection is TLS.
const DETECTION_BYTES: usize = 2;

/// Holds back what a client sends until it was checked.
#[derive(Debug)]
pub struct Inspector {
    expected: Host,
    tls_only: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The first ClientHello is incomplete.
    FirstHello { held: Vec<u8>, server_spoke: bool },
    /// It has passed, and the server has not answered.
    AwaitingAnswer { client: RecordWalker, server: ServerHello },
    /// The server has asked for a second ClientHello.
    Retry { client: RecordWalker },
    /// The second ClientHello is incomplete.
    SecondHello { held: Vec<u8> },
    /// The inspection is complete.
    Done,
}

impl Inspector {
    pub fn new(expected: Host, port: u16) -> Self {
        let held = Vec::new();
        Self { expected, tls_only: port == TLS_PORT, state: State::FirstHello { held, server_spoke: false } }
    }

    /// Whether everything passes from now on.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Takes bytes of the client, and returns what may be sent to the server: nothing while it is held back.
    ///
    /// # Errors
    ///
    /// Returns an error if the tunnel must be cut.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Reason> {
        match &mut self.state {
            State::Done => Ok(bytes.to_vec()),
            State::FirstHello { held, server_spoke } => {
                held.extend_from_slice(bytes);
                let (held, server_spoke) = (std::mem::take(held), *server_spoke);
                self.inspect_first(held, server_spoke)
            }
            State::AwaitingAnswer { client, .. } => {
                // The server would read it after its answer, which has not been seen yet.
                match client.skip_to_handshake(bytes) {
                    Ok(None) => Ok(bytes.to_vec()),
                    Ok(Some(_)) | Err(_) => Err(Reason::HelloMalformed),
                }
            }
            State::Retry { client } => {
                let walked = client.skip_to_handshake(bytes).map_err(|_| Reason::HelloMalformed)?;
                let Some(begins) = walked else {
                    return Ok(bytes.to_vec());
                };
                let (passed, second) = bytes.split_at(begins);
                let second = self.inspect_second(second.to_vec())?;
                Ok([passed, &second].concat())
            }
            State::SecondHello { held } => {
                held.extend_from_slice(bytes);
                let held = std::mem::take(held);
                self.inspect_second(held)
            }
        }
    }

    /// Inspects bytes of the server, which pass in any case.
    pub fn observe(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::FirstHello { server_spoke, .. } => *server_spoke = true,
            State::AwaitingAnswer { client, server } => match server.push(bytes) {
                ServerAnswer::Incomplete => {}
                ServerAnswer::HelloRetryRequest => {
                    let client = std::mem::take(client);
                    self.state = State::Retry { client };
                }
                ServerAnswer::Other => self.state = State::Done,
            },
            State::Retry { .. } | State::SecondHello { .. } | State::Done => {}
        }
    }

    fn inspect_first(&mut self, held: Vec<u8>, server_spoke: bool) -> Result<Vec<u8>, Reason> {
        let hold = |held| State::FirstHello { held, server_spoke };
        let is_tls = client_hello::may_be_tls(&held);
        if !is_tls && self.tls_only {
            return Err(Reason::NotTls);
        } else if !is_tls {
            self.state = State::Done;
            return Ok(held);
        } else if held.len() < DETECTION_BYTES {
            self.state = hold(held);
            return Ok(Vec::new());
        }
        match client_hello::parse_hello(&held).map_err(|_| Reason::HelloMalformed)? {
            Hello::Incomplete => {
                self.state = hold(held);
                Ok(Vec::new())
            }
            Hello::Complete { name, length } => {
                self.check_server_name(name.as_deref())?;
                // No TLS server sends first, so this is not one, and there is no answer to wait for.
                self.state = if server_spoke {
                    State::Done
                } else {
                    let mut client = RecordWalker::default();
                    if client.skip_to_handshake(&held[length..]) != Ok(None) {
                        return Err(Reason::HelloMalformed);
                    }
                    let server = ServerHello::default();
                    State::AwaitingAnswer { client, server }
                };
                Ok(held)
            }
        }
    }

    fn inspect_second(&mut self, held: Vec<u8>) -> Result<Vec<u8>, Reason> {
        match client_hello::parse_hello(&held).map_err(|_| Reason::HelloMalformed)? {
            Hello::Incomplete => {
                self.state = State::SecondHello { held };
                Ok(Vec::new())
            }
            Hello::Complete { name, .. } => {
                self.check_server_name(name.as_deref())?;
                // A server asks once: clients refuse a second HelloRetryRequest.
                self.state = State::Done;
                Ok(held)
            }
        }
    }

    fn check_server_name(&self, name: Option<&str>) -> Result<(), Reason> {
        match (&self.expected, name) {
            (Host::Name(expected), Some(name)) if expected == name => Ok(()),
            (Host::Name(_), None) => Err(Reason::NoServerName),
            // RFC 6066 has no server names that are addresses, so clients send none, or the address itself.
            (Host::Address(_), None) => Ok(()),
            (Host::Address(expected), Some(name)) if name.parse::<IpAddr>().as_ref() == Ok(expected) => Ok(()),
            _ => Err(Reason::OtherServerName),
        }
    }
}

#[cfg(test)]
mod tests;
