//! Names of an installation in a cluster: objects in the system namespace that its programs, its manifests and its
//! tests must name alike.

use crate::labels::SYSTEM_NAMESPACE;

/// The audience of the token that identifies a run's bridge. The Kubernetes API does not accept it.
pub const AUDIENCE: &str = "sympozium-gateway";

/// The controller: its ServiceAccount, Deployment and Lease.
pub const CONTROLLER: &str = "sympozium-controller";
/// The gateway: its ServiceAccount, Deployment and Service, and the value of `app.kubernetes.io/name` on its pods.
pub const GATEWAY: &str = "sympozium-gateway";
/// The label by which the Services select the pods.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";

/// The Secret of the CA that signs the gateway's certificate: `tls.crt` and `tls.key`. Only the controller reads it.
pub const AUTHORITY_SECRET: &str = "sympozium-authority";
/// The Secret of the gateway's TLS server: `tls.crt` (followed by the CA's certificate) and `tls.key`.
pub const GATEWAY_TLS_SECRET: &str = "sympozium-gateway-tls";
/// The Secret with the keys of gateway credentials, shared by controller and gateway: `keys`.
pub const GATEWAY_KEYS_SECRET: &str = "sympozium-gateway-keys";
/// The key in [`GATEWAY_KEYS_SECRET`]: a line for each key, as `sympozium_ipc::credential::KeyRing` reads them.
pub const KEYS: &str = "keys";

/// The port of the gateway that runs reach.
pub const GATEWAY_PORT: u16 = 8443;
/// The port that no run may reach: where it answers, NetworkPolicies are not enforced.
pub const CANARY_PORT: u16 = 8444;
/// The port of `/healthz`, `/readyz` and `/metrics` of controller and gateway.
pub const PROBE_PORT: u16 = 8081;

/// The name in the gateway's certificate.
pub fn gateway_host(system_namespace: &str) -> String {
    format!("{GATEWAY}.{system_namespace}.svc")
}

/// [`gateway_host`] in the default system namespace.
pub fn default_gateway_host() -> String {
    gateway_host(SYSTEM_NAMESPACE)
}
