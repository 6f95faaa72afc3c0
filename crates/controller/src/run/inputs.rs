//! Fills the Secrets that parts read: credentials for the gateway, and tokens of identities.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use sympozium_api::RunPlan;
use sympozium_ipc::credential::{Claims, Credential};
use sympozium_plan::render::names::ObjectNames;
use sympozium_plan::render::{Object, PendingSecret, Rendered, SecretPurpose, key};

use super::error::Error;
use super::retry::retry;
use super::stored::StoredRun;
use crate::cluster_info::ClusterInfo;
use crate::conditions::elapsed_since;
use crate::context::Context;
use crate::status::patch_params;

/// Seconds beyond the run's ceiling for which a credential is valid: clocks differ, and the last answer may be long.
const CREDENTIAL_SLACK: u64 = 600;

/// Fills the Secrets whose content is known before they are created: what parts read at `/run/sympozium`.
///
/// # Errors
///
/// When a credential cannot be signed.
pub fn fill_secrets(plan: &RunPlan, rendered: &mut Rendered, cluster_info: &ClusterInfo) -> Result<(), Error> {
    for skeleton in &rendered.pending_secrets {
        let SecretPurpose::Input { part } = &skeleton.purpose else {
            continue;
        };
        let mut data = BTreeMap::new();
        for name in &skeleton.keys {
            let value = if name == key::GATEWAY_CERTIFICATE {
                cluster_info.gateway_authority.clone()
            } else if name == key::CERTIFICATES {
                cluster_info.render.certificates.clone().unwrap_or_default()
            } else if name == key::PROXY {
                let credential = plan.credentials.iter().find(|credential| credential.part == *part);
                let credential = credential.ok_or_else(|| Error::WithoutCredential(part.0.clone()))?;
                let gateway = &cluster_info.render.gateway;
                let authority = format!("{}:{}", gateway.name, gateway.port);
                sign(plan, credential.name.as_str(), cluster_info)?.proxy_url(&authority).to_string()
            } else {
                let own = name.strip_prefix(key::CREDENTIAL).unwrap_or(name);
                let signed = sign(plan, own, cluster_info)?;
                format!("{}:{}", signed.user, *signed.password)
            };
            data.insert(name.clone(), value);
        }
        let secrets = rendered.objects.iter_mut().map(|item| &mut item.object);
        for object in secrets {
            if let Object::Secret(secret) = object
                && secret.metadata.name.as_deref() == Some(skeleton.secret.as_str())
            {
                secret.string_data = Some(data.clone());
            }
        }
    }
    Ok(())
}

fn sign(plan: &RunPlan, name: &str, cluster_info: &ClusterInfo) -> Result<Credential, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since_epoch| since_epoch.as_secs());
    let ceiling = plan.deadlines.ceiling_seconds;
    Ok(cluster_info.keys.sign(&Claims {
        run: plan.run.uid.as_str().to_owned(),
        name: name.to_owned(),
        expires: now.saturating_add(ceiling).saturating_add(CREDENTIAL_SLACK),
    })?)
}

/// Requests a token that is bound to its Secret, and writes it there. An existing token is replaced: the controller
/// never reads Secrets of runs, not even to see whether they are filled.
///
/// # Errors
///
/// When the API server rejects a request.
pub async fn write_token(
    plan: &RunPlan,
    skeleton: &PendingSecret,
    secret_uid: &str,
    cluster_info: &ClusterInfo,
    context: &Context,
) -> Result<(), Error> {
    let SecretPurpose::Token { service_account, seconds, .. } = &skeleton.purpose else {
        return Ok(());
    };
    let namespace = plan.run.namespace.as_str();
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: i64::try_from(*seconds).ok(),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: Some(skeleton.secret.clone()),
                uid: Some(secret_uid.to_owned()),
            }),
        },
        ..TokenRequest::default()
    };
    context.metrics.count_write("ServiceAccount", "token");
    let parameters = PostParams::default();
    let answer = retry(|| accounts.create_token_request(service_account, &parameters, &request)).await;
    let answer = answer.map_err(Error::api("ask for a token of", "ServiceAccount", service_account))?;
    let status = answer.status.ok_or(Error::Waiting("the API server returns a token"))?;

    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({
        "metadata": { "uid": secret_uid },
        "stringData": {
            key::IDENTITY_TOKEN: status.token,
            key::API_SERVER_CERTIFICATE: cluster_info.api_server_authority,
            key::NAMESPACE: namespace,
        },
    });
    context.metrics.count_write("Secret", "patch");
    let (parameters, patch) = (patch_params(), Patch::Merge(&patch));
    let written = retry(|| secrets.patch(&skeleton.secret, &parameters, &patch)).await;
    written.map_err(Error::api("fill", "Secret", &skeleton.secret))?;
    Ok(())
}

/// The share of a token's lifetime after which it is renewed.
const RENEW_FRACTION: f64 = 0.6;

/// When tokens of runs were last written, by the run's UID.
#[derive(Debug, Default)]
pub struct TokenRenewals {
    times: Mutex<HashMap<String, Instant>>,
}

impl TokenRenewals {
    /// The age of a run's tokens, as far as this process knows.
    fn age(&self, uid: &str) -> Option<Duration> {
        let times = self.times.lock();
        times.get(uid).map(Instant::elapsed)
    }

    pub fn mark_renewed(&self, uid: &str) {
        let mut times = self.times.lock();
        times.insert(uid.to_owned(), Instant::now());
    }

    pub fn forget(&self, uid: &str) {
        let mut times = self.times.lock();
        times.remove(uid);
    }
}

/// Whose tokens are renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalScope {
    All,
    /// Those of hooks: the agent has ended, and the tokens of skills are revoked.
    Hooks,
}

/// Renews the tokens of a run when they are due. Returns the time until they are due again.
///
/// # Errors
///
/// When the API server rejects a request.
pub async fn renew_tokens(
    run: &StoredRun,
    plan: &RunPlan,
    whose: RenewalScope,
    cluster_info: &ClusterInfo,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let identities = plan.identities.iter();
    let identities = identities.filter(|identity| whose == RenewalScope::All || identity.pack.is_none());
    let shortest = identities.clone().map(|identity| identity.token_seconds).min();
    let Some(shortest) = shortest else {
        return Ok(None);
    };
    let due = Duration::from_secs(shortest).mul_f64(RENEW_FRACTION);
    let granted = run.status.as_ref().and_then(|status| status.granted_at.as_ref()).map(elapsed_since);
    // A process that has just started knows only when the first tokens were written.
    let age = context.renewals.age(run.uid()).or(granted).unwrap_or(Duration::ZERO);
    if age < due {
        return Ok(Some(due - age));
    }
    let names = ObjectNames::new(&plan.run);
    for identity in identities {
        let word = identity.name.0.replace('-', "");
        let secret = names.with_suffix(&format!("{word}token"));
        let recorded = run.grants().iter().find(|grant| grant.kind == "Secret" && grant.name == secret);
        let Some(secret_uid) = recorded.and_then(|grant| grant.uid.as_ref()) else {
            continue;
        };
        let skeleton = PendingSecret {
            secret,
            purpose: SecretPurpose::Token {
                identity: identity.name.clone(),
                service_account: names.with_suffix(&word),
                seconds: identity.token_seconds,
            },
            keys: Vec::new(),
        };
        write_token(plan, &skeleton, secret_uid.as_str(), cluster_info, context).await?;
    }
    context.renewals.mark_renewed(run.uid());
    Ok(Some(due))
}
