//! Why something was refused or ended: one word each, which stays the same, and the answer that goes with it.

use serde::{Serialize, Serializer};
use sympozium_ipc::credential::Refused;
use sympozium_ipc::strict_head::Violation;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $word:literal, $status:literal, $text:expr;)*) => {
        /// Why.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word of it, in events and logs.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The status that answers it, where an answer is still possible.
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// What whoever asked is told. The same for everything that is wrong with a credential.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

/// One text for all of them: which part of a credential was wrong would help only whoever guesses.
const UNAUTHORISED: &str = "this proxy wants the credential of a part of a run\nhint: use the HTTP_PROXY of the part as it was given; it ends with the run";

reasons! {
    /// No credential was sent.
    CredentialMissing, "credential-missing", 407, UNAUTHORISED;
    /// What was sent is none.
    CredentialMalformed, "credential-malformed", 407, UNAUTHORISED;
    /// It was signed with a key that is not in use.
    CredentialUnknownKey, "credential-unknown-key", 407, UNAUTHORISED;
    /// Its password is not the right one.
    CredentialForged, "credential-forged", 407, UNAUTHORISED;
    /// It was good once; or it ran out while a tunnel was open.
    CredentialExpired, "credential-expired", 407, UNAUTHORISED;
    /// No plan of such a run is known.
    RunUnknown, "run-unknown", 407, UNAUTHORISED;
    /// The run's plan has no credential of this name.
    CredentialNotPlanned, "credential-not-planned", 407, UNAUTHORISED;
    /// The run is over.
    RunOver, "run-over", 407, UNAUTHORISED;
    /// The head of the request breaks a rule.
    HeadMalformed, "head-malformed", 400, "the head of the request could be read in more than one way";
    /// It is too long or has too many fields.
    HeadTooLarge, "head-too-large", 431, "the head of the request is too large";
    /// It did not arrive in time.
    HeadSlow, "head-slow", 408, "the head of the request did not arrive in time";
    /// What is asked for is no host and port.
    TargetMalformed, "target-malformed", 400, "the request does not name a host and a port in a plain way\nhint: CONNECT host:port, or a URL that begins with http://";
    /// The Host header names another host.
    HostMismatch, "host-mismatch", 400, "the Host header is not the host of the request";
    /// A tunnel was asked for, with a body.
    BodyMalformed, "body-malformed", 400, "the body of the request is not framed in a plain way";
    /// The plan does not list it.
    NotInPlan, "not-in-plan", 403, "the plan of this run does not let this part reach that host and port\nhint: a pack declares its hosts in sidecar.egress, and a policy allows them in networkPolicy.allowedEgress";
    /// A service that hands out credentials of machines.
    Metadata, "metadata", 403, "services that hand out the credentials of machines cannot be reached from a run";
    /// The address, or one of the name's, is of a range that the plan does not open.
    AddressNotAllowed, "address-not-allowed", 403, "the host has an address that this part may not reach\nhint: a plan opens a private host by its exact name or address, never by *.domain";
    /// The name has too many addresses.
    TooManyAddresses, "too-many-addresses", 403, "the host has more addresses than can be checked";
    /// There is no such name.
    NameNotFound, "name-not-found", 502, "the host has no address";
    /// Nobody could say.
    ResolveFailed, "resolve-failed", 502, "the address of the host could not be found";
    /// Nobody said in time.
    ResolveTimeout, "resolve-timeout", 504, "the address of the host could not be found in time";
    /// Nobody answers at any of the addresses.
    ConnectFailed, "connect-failed", 502, "the host does not take the connection";
    /// As before, in time.
    ConnectTimeout, "connect-timeout", 504, "the host does not take the connection in time";
    /// The credential has too many connections.
    ConnectionsOfCredential, "connections-of-credential", 429, "this part has too many connections open";
    /// The run has.
    ConnectionsOfRun, "connections-of-run", 429, "this run has too many connections open";
    /// All runs of its namespace have, while others want some too.
    ConnectionsOfNamespace, "connections-of-namespace", 429, "the runs of this namespace have too many connections open\nhint: try again; a namespace gets more when others hold less";
    /// An address has.
    ConnectionsOfPeer, "connections-of-peer", 429, "too many connections are open from this address";
    /// An address has too many that have shown no credential.
    UnauthenticatedOfPeer, "unauthenticated-of-peer", 429, "too many connections from this address have shown no credential\nhint: send the request as soon as the connection is open";
    /// All addresses together have.
    Unauthenticated, "unauthenticated", 503, "too many connections have shown no credential\nhint: try again";
    /// All together have.
    Connections, "connections", 503, "there are too many connections open";
    /// The connection has passed on as much as it may.
    BytesOfConnection, "bytes-of-connection", 429, "this connection has passed on as much as it may";
    /// The credential has.
    BytesOfCredential, "bytes-of-credential", 429, "this part has sent and received as much as it may";
    /// The run has.
    BytesOfRun, "bytes-of-run", 429, "this run has sent and received as much as it may";
    /// It has lasted as long as it may.
    TooLong, "too-long", 504, "this connection has lasted as long as it may";
    /// Nothing was sent for too long.
    Idle, "idle", 504, "nothing was sent for too long";
    /// A tunnel to a port of TLS began with something else.
    NotTls, "not-tls", 403, "this tunnel is for TLS only";
    /// The first message of TLS cannot be read.
    HelloMalformed, "hello-malformed", 403, "the first message of TLS cannot be read";
    /// It has no server name.
    NoServerName, "no-server-name", 403, "the first message of TLS names no server";
    /// It has another one.
    OtherServerName, "other-server-name", 403, "the first message of TLS names another server";
    /// What the host answered is no HTTP, or could be read in more than one way.
    AnswerMalformed, "answer-malformed", 502, "the answer of the host could be read in more than one way";
    /// The connection to the client or to the host broke.
    Broken, "broken", 502, "the connection broke";
    /// One side closed it.
    Closed, "closed", 200, "the connection was closed";
    /// All was passed on.
    Complete, "complete", 200, "all was passed on";
    /// The gateway ends.
    Ending, "gateway-ending", 503, "the gateway is ending";
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl From<Refused> for Reason {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Malformed => Self::CredentialMalformed,
            Refused::UnknownKey => Self::CredentialUnknownKey,
            Refused::Forged => Self::CredentialForged,
            Refused::Expired => Self::CredentialExpired,
        }
    }
}

impl From<Violation> for Reason {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::TooLong | Violation::TooManyHeaders => Self::HeadTooLarge,
            Violation::Slow => Self::HeadSlow,
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
        let words: BTreeSet<_> = Reason::ALL.iter().map(|it| it.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        let plain = |word: &&str| word.bytes().all(|it| it.is_ascii_lowercase() || it == b'-');
        assert!(words.iter().all(plain), "{words:?}");
        let of_credentials = Reason::ALL.iter().filter(|it| it.status() == 407);
        let texts: BTreeSet<_> = of_credentials.map(|it| it.text()).collect();
        assert_eq!(texts.len(), 1);
    }
}
