//! The limits of the gateway, and what its operator can configure.

use std::time::Duration;

/// Connections of all clients.
pub const MAX_CONNECTIONS: usize = 4096;
/// Connections from one address: one pod must not use up the room of all others.
pub const MAX_CONNECTIONS_OF_PEER: usize = 1024;
/// Connections from one address without a credential.
pub const MAX_UNAUTHENTICATED_OF_PEER: usize = 16;
/// The factor for an address with an authenticated connection: the programs of a run open many connections at a time,
/// and its bridge is connected for as long as the run.
pub const KNOWN_PEER_FACTOR: usize = 8;
/// Concurrent tunnels and requests of one run.
pub const MAX_CONNECTIONS_OF_RUN: usize = 512;
/// Concurrent tunnels and requests of one credential.
pub const MAX_CONNECTIONS_OF_CREDENTIAL: usize = 256;
/// Bytes, both directions together, of one tunnel or request.
pub const MAX_BYTES_OF_CONNECTION: u64 = 16 << 30;
/// Bytes, both directions together, of one credential.
pub const MAX_BYTES_OF_CREDENTIAL: u64 = 64 << 30;
/// Bytes, both directions together, of one run.
pub const MAX_BYTES_OF_RUN: u64 = 128 << 30;
/// Maximum duration of a tunnel or request.
pub const CONNECTION_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Maximum time of a tunnel or request without a byte.
pub const IDLE_LIMIT: Duration = Duration::from_secs(15 * 60);
/// From the first byte of a head to its last; also from connecting to the first head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time between two requests on a connection.
pub const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(60);
/// Timeout for resolving a name.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for connecting to one address.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Addresses of one name. A name with more is refused.
pub const MAX_ADDRESSES: usize = 32;
/// Events that are stored for late or slow watchers.
pub const MAX_EVENTS: usize = 4096;
/// Active runs.
pub const MAX_RUNS: usize = 4096;
/// Ended runs that are remembered.
pub const MAX_ENDED_RUNS: usize = 16_384;
/// Rules of one credential.
pub const MAX_RULES: usize = 1024;

/// The configuration. The default of each limit is the constant of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub connections: usize,
    pub connections_of_peer: usize,
    pub unauthenticated_of_peer: usize,
    pub connections_of_run: usize,
    pub connections_of_credential: usize,
    pub bytes_of_connection: u64,
    pub bytes_of_credential: u64,
    pub bytes_of_run: u64,
    pub connection_limit: Duration,
    pub idle_limit: Duration,
    pub head_timeout: Duration,
    pub keep_alive_limit: Duration,
    pub resolve_timeout: Duration,
    pub connect_timeout: Duration,
    pub events: usize,
    pub loopback: Loopback,
}

/// Whether runs may reach loopback addresses of the gateway's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loopback {
    /// Never: in a cluster they belong to the gateway's own pod.
    Refused,
    /// If a plan names `localhost` or such an address: on a developer's machine, where the model may run.
    AsPlanned,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: MAX_CONNECTIONS,
            connections_of_peer: MAX_CONNECTIONS_OF_PEER,
            unauthenticated_of_peer: MAX_UNAUTHENTICATED_OF_PEER,
            connections_of_run: MAX_CONNECTIONS_OF_RUN,
            connections_of_credential: MAX_CONNECTIONS_OF_CREDENTIAL,
            bytes_of_connection: MAX_BYTES_OF_CONNECTION,
            bytes_of_credential: MAX_BYTES_OF_CREDENTIAL,
            bytes_of_run: MAX_BYTES_OF_RUN,
            connection_limit: CONNECTION_LIMIT,
            idle_limit: IDLE_LIMIT,
            head_timeout: HEAD_TIMEOUT,
            keep_alive_limit: KEEP_ALIVE_LIMIT,
            resolve_timeout: RESOLVE_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            events: MAX_EVENTS,
            loopback: Loopback::Refused,
        }
    }
}
