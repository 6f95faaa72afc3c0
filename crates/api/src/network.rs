//! Hosts outside of the run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::names::HostPattern;
use crate::schema;

/// A host, and the port at which it may be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Egress {
    /// The host's name or IPv4 address; `*.` and a domain for every host below it.
    pub host: HostPattern,
    /// The port; 443 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
}

impl Egress {
    /// The port of HTTPS, which is the default.
    pub const DEFAULT_PORT: i32 = 443;

    /// The port, or the default.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(Self::DEFAULT_PORT)
    }
}

/// What runs may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct NetworkPolicy {
    /// Whether nothing but `allowedEgress` and the model may be reached. Otherwise `fetch_url` reaches public hosts.
    #[serde(default = "crate::defaults::yes")]
    pub deny_all: bool,
    /// Whether runs may look names up. They never can: pods of runs have no DNS, and the gateway looks up the hosts that they
    /// may reach. `true` is warned about, `false` is met by every run.
    #[serde(default, rename = "allowDNS")]
    pub allow_dns: bool,
    /// Whether a run may send messages on the event bus, through the gateway.
    #[serde(default = "crate::defaults::yes")]
    pub allow_event_bus: bool,
    /// Hosts that may be reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::EGRESS))]
    pub allowed_egress: Vec<Egress>,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { deny_all: true, allow_dns: false, allow_event_bus: true, allowed_egress: Vec::new() }
    }
}
