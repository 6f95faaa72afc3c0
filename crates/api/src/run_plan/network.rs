//! What may be reached. The gateway is the only way out, and each request to it needs a credential.

use serde::{Deserialize, Serialize};

use super::part::PartName;

/// What one part may reach for one purpose. A part has no other network, except the API server where it has an
/// identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayCredential {
    /// The name at the gateway: `model`, `web`, or the part's name.
    pub name: String,
    /// The part that holds it.
    pub part: PartName,
    /// The hosts that it allows.
    pub reach: AllowedHosts,
}

/// Allowed hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllowedHosts {
    /// Whether every public host may be reached, at any port.
    #[serde(default)]
    pub public: bool,
    /// Further destinations, public or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<Destination>,
}

/// A host or the hosts below a domain, at a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// The host's name in lower case or its address; `*.` and a domain for every host below it.
    pub host: String,
    /// The port; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}
