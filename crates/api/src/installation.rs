//! What an installation in a cluster is called: objects in the system namespace that its programs, its manifests and its
//! tests all have to name alike.

use crate::labels::SYSTEM_NAMESPACE;

/// The audience of the token with which a run's bridge says whose it is. It is worth nothing at the Kubernetes API.
pub const AUDIENCE: &str = "sympozium-gateway";

/// The controller: its ServiceAccount, Deployment and Lease.
pub const CONTROLLER: &str = "sympozium-controller";
/// The gateway: its ServiceAccount, Deployment and Service, and the value of `app.kubernetes.io/name` on its pods.
pub const GATEWAY: &str = "sympozium-gateway";
/// The label by which the Services find the pods.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";

/// The Secret of the authority that signs the gateway's certificate: `tls.crt` and `tls.key`. The controller's alone.
pub const AUTHORITY_SECRET: &str = "sympozium-authority";
/// The Secret that the gateway serves TLS with: `tls.crt` (with the authority's behind it) and `tls.key`.
pub const GATEWAY_TLS_SECRET: &str = "sympozium-gateway-tls";
/// The Secret with the keys of gateway credentials, shared by controller and gateway: `keys`.
pub const GATEWAY_KEYS_SECRET: &str = "sympozium-gateway-keys";
/// The key in [`GATEWAY_KEYS_SECRET`]: a line for each key, as `sympozium_ipc::credential::KeyRing` reads them.
pub const KEYS: &str = "keys";

/// The port of the gateway that runs reach.
pub const GATEWAY_PORT: u16 = 8443;
/// The port that nobody may reach: where it answers, nothing enforces NetworkPolicies.
pub const CANARY_PORT: u16 = 8444;
/// The port at which controller and gateway answer `/healthz`, `/readyz` and `/metrics`.
pub const PROBE_PORT: u16 = 8081;

/// The name in the gateway's certificate.
pub fn gateway_host(system_namespace: &str) -> String {
    format!("{GATEWAY}.{system_namespace}.svc")
}

/// [`gateway_host`] in the usual namespace.
pub fn default_gateway_host() -> String {
    gateway_host(SYSTEM_NAMESPACE)
}
