//! Reasons of refusals and ends: each has a stable word, and an HTTP status with a text.

use serde::{Serialize, Serializer};
use sympozium_ipc::credential::CredentialError;
use sympozium_ipc::strict_head::HeadError;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $word:literal, $status:literal, $text:expr;)*) => {
        /// Why a request was refused, or a connection ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word in events and logs.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The HTTP status, if a response is still possible.
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// The text for the client. It is the same for all defects of a credential.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

/// One text for all of them: which part of a credential was wrong would only help to guess one.
const UNAUTHORISED: &str = "this proxy wants the credential of a part of a run\nhint: use the HTTP_PROXY of the part as it was given; it ends with the run";

reasons! {
    CredentialMissing, "credential-missing", 407, UNAUTHORISED;
    CredentialMalformed, "credential-malformed", 407, UNAUTHORISED;
    /// Signed with a key that is not in use.
    CredentialUnknownKey, "credential-unknown-key", 407, UNAUTHORISED;
    /// The password is wrong.
    CredentialForged, "credential-forged", 407, UNAUTHORISED;
    /// It has expired, possibly while a tunnel was open.
    CredentialExpired, "credential-expired", 407, UNAUTHORISED;
    /// No plan of this run is known.
    RunUnknown, "run-unknown", 407, UNAUTHORISED;
    /// The run's plan has no credential of this name.
    CredentialNotPlanned, "credential-not-planned", 407, UNAUTHORISED;
    RunOver, "run-over", 407, UNAUTHORISED;
    /// The head violates HTTP, or is ambiguous.
    HeadMalformed, "head-malformed", 400, "the head of the request could be read in more than one way";
    /// Too long, or too many fields.
    HeadTooLarge, "head-too-large", 431, "the head of the request is too large";
    HeadSlow, "head-slow", 408, "the head of the request did not arrive in time";
    /// The target is not a valid host and port.
    TargetMalformed, "target-malformed", 400, "the request does not name a host and a port in a plain way\nhint: CONNECT host:port, or a URL that begins with http://";
    HostMismatch, "host-mismatch", 400, "the Host header is not the host of the request";
    /// A CONNECT request with a body, or invalid framing.
    BodyMalformed, "body-malformed", 400, "the body of the request is not framed in a plain way";
    NotInPlan, "not-in-plan", 403, "the plan of this run does not let this part reach that host and port\nhint: a pack declares its hosts in sidecar.egress, and a policy allows them in networkPolicy.allowedEgress";
    /// A metadata service, which hands out credentials of machines.
    Metadata, "metadata", 403, "services that hand out the credentials of machines cannot be reached from a run";
    /// An address of the host is in a range that the plan does not allow.
    AddressNotAllowed, "address-not-allowed", 403, "the host has an address that this part may not reach\nhint: a plan opens a private host by its exact name or address, never by *.domain";
    TooManyAddresses, "too-many-addresses", 403, "the host has more addresses than can be checked";
    NameNotFound, "name-not-found", 502, "the host has no address";
    /// The name server failed.
    ResolveFailed, "resolve-failed", 502, "the address of the host could not be found";
    ResolveTimeout, "resolve-timeout", 504, "the address of the host could not be found in time";
    /// No address accepts the connection.
    ConnectFailed, "connect-failed", 502, "the host does not take the connection";
    ConnectTimeout, "connect-timeout", 504, "the host does not take the connection in time";
    /// The credential has too many connections.
    ConnectionsOfCredential, "connections-of-credential", 429, "this part has too many connections open";
    /// The run has too many connections.
    ConnectionsOfRun, "connections-of-run", 429, "this run has too many connections open";
    /// The runs of the namespace together have too many connections, while others compete.
    ConnectionsOfNamespace, "connections-of-namespace", 429, "the runs of this namespace have too many connections open\nhint: try again; a namespace gets more when others hold less";
    /// One address has too many connections.
    ConnectionsOfPeer, "connections-of-peer", 429, "too many connections are open from this address";
    /// One address has too many connections without a credential.
    UnauthenticatedOfPeer, "unauthenticated-of-peer", 429, "too many connections from this address have shown no credential\nhint: send the request as soon as the connection is open";
    /// All addresses together have too many connections without a credential.
    Unauthenticated, "unauthenticated", 503, "too many connections have shown no credential\nhint: try again";
    /// All clients together have too many connections.
    Connections, "connections", 503, "there are too many connections open";
    /// The connection has used up its byte limit.
    BytesOfConnection, "bytes-of-connection", 429, "this connection has passed on as much as it may";
    /// The credential has used up its byte limit.
    BytesOfCredential, "bytes-of-credential", 429, "this part has sent and received as much as it may";
    /// The run has used up its byte limit.
    BytesOfRun, "bytes-of-run", 429, "this run has sent and received as much as it may";
    /// The connection has reached its maximum duration.
    TooLong, "too-long", 504, "this connection has lasted as long as it may";
    Idle, "idle", 504, "nothing was sent for too long";
    /// A tunnel to a TLS port began with something else.
    NotTls, "not-tls", 403, "this tunnel is for TLS only";
    /// The ClientHello cannot be parsed.
    HelloMalformed, "hello-malformed", 403, "the first message of TLS cannot be read";
    /// The ClientHello has no server name.
    NoServerName, "no-server-name", 403, "the first message of TLS names no server";
    /// The ClientHello names another server.
    OtherServerName, "other-server-name", 403, "the first message of TLS names another server";
    /// The response of the host is not HTTP, or is ambiguous.
    AnswerMalformed, "answer-malformed", 502, "the answer of the host could be read in more than one way";
    /// The connection to the client or to the host broke.
    Broken, "broken", 502, "the connection broke";
    /// One side closed the connection.
    Closed, "closed", 200, "the connection was closed";
    /// The whole response was forwarded.
    Complete, "complete", 200, "all was passed on";
    /// The gateway shuts down.
    Ending, "gateway-ending", 503, "the gateway is ending";
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl From<CredentialError> for Reason {
    fn from(refused: CredentialError) -> Self {
        match refused {
            CredentialError::Malformed => Self::CredentialMalformed,
            CredentialError::UnknownKey => Self::CredentialUnknownKey,
            CredentialError::Forged => Self::CredentialForged,
            CredentialError::Expired => Self::CredentialExpired,
        }
    }
}

impl From<HeadError> for Reason {
    fn from(violation: HeadError) -> Self {
        match violation {
            HeadError::TooLong | HeadError::TooManyHeaders => Self::HeadTooLarge,
            HeadError::TimedOut => Self::HeadSlow,
            _ => Self::HeadMalformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_a_word_of_its_own_and_all_of_credentials_one_text() {
        let words: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        let plain = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(words.iter().all(plain), "{words:?}");
        let of_credentials = Reason::ALL.iter().filter(|reason| reason.status() == 407);
        let texts: BTreeSet<_> = of_credentials.map(|reason| reason.text()).collect();
        assert_eq!(texts.len(), 1);
    }
}
