//! Every bound of the gateway, and what its operator chooses.

use std::time::Duration;

/// Connections of clients at once, whoever they are.
pub const MAX_CONNECTIONS: usize = 4096;
/// Connections at once from one address, whoever they say they are: a pod must not take the room of all others.
pub const MAX_CONNECTIONS_OF_PEER: usize = 1024;
/// Of those, the ones that have shown no credential yet.
pub const MAX_UNAUTHENTICATED_OF_PEER: usize = 16;
/// How many times that an address may have that holds a connection with a good credential: the programs of a run open many at
/// a time, and its bridge stays connected for as long as the run lasts.
pub const KNOWN_PEER_FACTOR: usize = 8;
/// Tunnels and requests at once of one run.
pub const MAX_CONNECTIONS_OF_RUN: usize = 512;
/// Tunnels and requests at once of one credential.
pub const MAX_CONNECTIONS_OF_CREDENTIAL: usize = 256;
/// Bytes, both ways together, of one tunnel or request.
pub const MAX_BYTES_OF_CONNECTION: u64 = 16 << 30;
/// Bytes, both ways together, of one credential.
pub const MAX_BYTES_OF_CREDENTIAL: u64 = 64 << 30;
/// Bytes, both ways together, of one run.
pub const MAX_BYTES_OF_RUN: u64 = 128 << 30;
/// How long a tunnel or request may last.
pub const CONNECTION_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// How long a tunnel or request may go on without a byte.
pub const IDLE_LIMIT: Duration = Duration::from_secs(15 * 60);
/// From a connection's first byte of a head to its last; also from connecting to the first head.
pub const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may be kept without a next request.
pub const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(60);
/// How long finding a name's addresses may take.
pub const RESOLVE_DEADLINE: Duration = Duration::from_secs(10);
/// How long connecting to one address may take.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Addresses of one name. A name that has more is refused.
pub const MAX_ADDRESSES: usize = 32;
/// Events that are kept for watchers who come later or read slowly.
pub const MAX_EVENTS: usize = 4096;
/// Runs at once.
pub const MAX_RUNS: usize = 4096;
/// Runs that are over and remembered as such.
pub const MAX_ENDED_RUNS: usize = 16_384;
/// Rules of one credential.
pub const MAX_RULES: usize = 1024;

/// What can be chosen. The default of each bound is the constant of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// See [`MAX_CONNECTIONS`].
    pub connections: usize,
    /// See [`MAX_CONNECTIONS_OF_PEER`].
    pub connections_of_peer: usize,
    /// See [`MAX_UNAUTHENTICATED_OF_PEER`].
    pub unauthenticated_of_peer: usize,
    /// See [`MAX_CONNECTIONS_OF_RUN`].
    pub connections_of_run: usize,
    /// See [`MAX_CONNECTIONS_OF_CREDENTIAL`].
    pub connections_of_credential: usize,
    /// See [`MAX_BYTES_OF_CONNECTION`].
    pub bytes_of_connection: u64,
    /// See [`MAX_BYTES_OF_CREDENTIAL`].
    pub bytes_of_credential: u64,
    /// See [`MAX_BYTES_OF_RUN`].
    pub bytes_of_run: u64,
    /// See [`CONNECTION_LIMIT`].
    pub connection_limit: Duration,
    /// See [`IDLE_LIMIT`].
    pub idle_limit: Duration,
    /// See [`HEAD_DEADLINE`].
    pub head_deadline: Duration,
    /// See [`KEEP_ALIVE_LIMIT`].
    pub keep_alive_limit: Duration,
    /// See [`RESOLVE_DEADLINE`].
    pub resolve_deadline: Duration,
    /// See [`CONNECT_DEADLINE`].
    pub connect_deadline: Duration,
    /// See [`MAX_EVENTS`].
    pub events: usize,
    /// Whether a plan that names this machine's own addresses may reach them.
    pub loopback: Loopback,
}

/// Whether the machine that the gateway runs on may be reached by its own addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loopback {
    /// Never: in a cluster they are those of the gateway's own pod.
    Refused,
    /// When a plan names `localhost` or such an address: on a person's own machine, where their model runs.
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
            head_deadline: HEAD_DEADLINE,
            keep_alive_limit: KEEP_ALIVE_LIMIT,
            resolve_deadline: RESOLVE_DEADLINE,
            connect_deadline: CONNECT_DEADLINE,
            events: MAX_EVENTS,
            loopback: Loopback::Refused,
        }
    }
}
