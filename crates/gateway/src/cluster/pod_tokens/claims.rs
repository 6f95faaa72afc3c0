//! The claims of a token, which every client can forge: enough to refuse it, never enough to trust it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use sympozium_api::installation::AUDIENCE;
use sympozium_ipc::run_api::MAX_TOKEN;

/// Who a token for our audience claims to belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) namespace: String,
    /// The name of the service account.
    pub(super) account: String,
    /// The UID of the pod.
    pub(super) pod: String,
}

/// The payload of a service account token (KEP-1205).
#[derive(Debug, Deserialize)]
struct Payload {
    aud: Audiences,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

/// One or several (RFC 7519, 4.1.3).
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct Kubernetes {
    namespace: String,
    pod: BoundPod,
    serviceaccount: BoundAccount,
}

#[derive(Debug, Deserialize)]
struct BoundPod {
    uid: String,
}

#[derive(Debug, Deserialize)]
struct BoundAccount {
    name: String,
}

impl Claims {
    /// Parses the claims without verifying them.
    ///
    /// # Errors
    ///
    /// Returns an error if this is not a token of a pod for our audience.
    pub(super) fn parse(token: &str) -> Result<Self, &'static str> {
        let mut parts = token.split('.');
        let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err("it has not the form of a token");
        };
        if token.len() > MAX_TOKEN {
            return Err("it is longer than a token");
        }
        let payload = URL_SAFE_NO_PAD.decode(payload);
        let payload = payload.map_err(|_| "it has not the form of a token")?;
        let payload: Payload = serde_json::from_slice(&payload).map_err(|_| "it does not say that it is a pod's")?;
        let is_ours = match &payload.aud {
            Audiences::One(audience) => audience == AUDIENCE,
            Audiences::Several(audiences) => audiences.iter().any(|audience| audience == AUDIENCE),
        };
        if !is_ours {
            return Err("it does not say that it is for this gateway");
        }
        Ok(Self {
            namespace: payload.kubernetes.namespace,
            account: payload.kubernetes.serviceaccount.name,
            pod: payload.kubernetes.pod.uid,
        })
    }
}
