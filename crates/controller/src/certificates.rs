//! The Secrets of controller and gateway: the authority, the gateway's certificate, the keys that sign credentials.
//!
//! A missing Secret is created, and a valid one is never overwritten. The certificate is renewed at two thirds of its
//! lifetime, and issued again when it does not fit the authority: nothing else depends on it. An authority or keys that
//! cannot be read are left for a person to repair: active runs depend on them, and lost ones cannot be restored. Until
//! then no run starts; deleting the Secret creates a new one.

mod issue;
mod keys;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{PartialObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use sympozium_api::installation::{AUTHORITY_SECRET, GATEWAY_KEYS_SECRET, GATEWAY_TLS_SECRET, KEYS, gateway_host};
use sympozium_api::labels;
use sympozium_ipc::credential::KeyRing;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

pub use issue::{AUTHORITY_LIFE, CERTIFICATE_LIFE, RENEW_WITH_LEFT};
pub use keys::{OLD_KEY_RETENTION, ROTATE_AFTER, VERIFY_ONLY_PERIOD};

use crate::metrics::Metrics;
use crate::random::RandomError;
use issue::{CertificatePair, CertificateState, PairError};

/// Interval between checks when nothing changes.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Changes within this time are handled together.
const COALESCE_WINDOW: Duration = Duration::from_millis(500);
/// Limit for a value in one of our Secrets, in bytes.
const MAX_BYTES: usize = 64 * 1024;

const CERTIFICATE_FILE: &str = "tls.crt";
const KEY_FILE: &str = "tls.key";
const TLS_TYPE: &str = "kubernetes.io/tls";

/// What runs need from these Secrets.
#[derive(Clone)]
pub struct TrustMaterial {
    /// The CA certificate of the gateway, PEM.
    pub authority: String,
    /// Signs credentials.
    pub keys: Arc<KeyRing>,
}

/// Creates, renews and rotates the three Secrets.
pub struct CertificateManager {
    secrets: Api<Secret>,
    /// The same Secrets without their content, to watch.
    secret_metadata: Api<PartialObjectMeta<Secret>>,
    host: String,
    metrics: Arc<Metrics>,
    /// The last keys that were read, so that the same keys are not published as new ones.
    last_keys: Option<(Zeroizing<String>, Arc<KeyRing>)>,
}

/// Why a Secret is missing or unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Secret `{secret}`: {source}")]
    Api {
        secret: &'static str,
        #[source]
        source: kube::Error,
    },
    /// A Secret that is unusable, and that the controller must not replace.
    #[error(
        "Secret `{secret}` cannot be used: {why}; put back what was in it, or delete it to have a new one made, which ends the way out of runs that go on"
    )]
    Damaged { secret: &'static str, why: String },
    #[error(transparent)]
    Make(#[from] PairError),
    #[error(transparent)]
    Randomness(#[from] RandomError),
}

impl CertificateManager {
    pub fn new(client: Client, system_namespace: &str, metrics: Arc<Metrics>) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), system_namespace),
            secret_metadata: Api::namespaced(client, system_namespace),
            host: gateway_host(system_namespace),
            metrics,
            last_keys: None,
        }
    }

    /// Checks the Secrets now, after every change, and every hour. Publishes what is usable.
    pub async fn run(mut self, material_sender: watch::Sender<Option<TrustMaterial>>) {
        let changes = stream::select_all(SECRET_NAMES.map(|name| {
            let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
            watcher(self.secret_metadata.clone(), config).default_backoff().boxed()
        }));
        let mut changes = changes;
        loop {
            let pause = match self.check(Timestamp::now()).await {
                Ok(material) => {
                    material_sender.send_replace(Some(material));
                    CHECK_INTERVAL
                }
                Err(error) => {
                    tracing::error!(%error, "the Secrets of the gateway could not be checked");
                    RETRY_INTERVAL
                }
            };
            let damaged = pause == RETRY_INTERVAL;
            if let Ok(Some(_)) = timeout(pause, changes.next()).await {
                // A watch that fails repeatedly must not cause a check each time.
                sleep(if damaged { RETRY_INTERVAL } else { COALESCE_WINDOW }).await;
                while let Ok(Some(_)) = timeout(Duration::ZERO, changes.next()).await {}
            }
        }
    }

    /// Creates missing Secrets, renews old ones, and returns what runs need.
    ///
    /// # Errors
    ///
    /// When a Secret cannot be created, or is unusable.
    pub async fn check(&mut self, now: Timestamp) -> Result<TrustMaterial, Error> {
        let authority = self.ensure_authority(now).await;
        self.set_fault_metric(AUTHORITY_SECRET, &authority);
        let authority = authority?;
        let certificate = self.ensure_certificate(&authority, now).await;
        self.set_fault_metric(GATEWAY_TLS_SECRET, &certificate);
        certificate?;
        let keys = self.ensure_keys(now).await;
        self.set_fault_metric(GATEWAY_KEYS_SECRET, &keys);
        Ok(TrustMaterial { authority: authority.certificate, keys: keys? })
    }

    async fn ensure_authority(&self, now: Timestamp) -> Result<CertificatePair, Error> {
        let name = AUTHORITY_SECRET;
        let found = match self.get(name).await? {
            Some(found) => found,
            None => {
                let pair = issue::issue_authority(now)?;
                self.create(name, TLS_TYPE, pair.data()).await?
            }
        };
        let damaged = |why: PairError| Error::Damaged { secret: name, why: why.to_string() };
        let pair = CertificatePair::read(&found).map_err(damaged)?;
        issue::check_authority(&pair).map_err(damaged)?;
        Ok(pair)
    }

    async fn ensure_certificate(&self, authority: &CertificatePair, now: Timestamp) -> Result<(), Error> {
        let name = GATEWAY_TLS_SECRET;
        let Some(found) = self.get(name).await? else {
            let pair = issue::issue_certificate(authority, &self.host, now)?;
            self.create(name, TLS_TYPE, pair.data()).await?;
            return Ok(());
        };
        let judged = match CertificatePair::read(&found) {
            Ok(pair) => issue::check_certificate(&pair, authority, &self.host, now),
            Err(error) => Err(error),
        };
        let judged = judged.unwrap_or(CertificateState::Invalid);
        if judged == CertificateState::Valid {
            return Ok(());
        }
        if !is_ours(&found) {
            return Err(Error::Damaged {
                secret: name,
                why: "it is not of this authority for this name or has expired, and another client put it there"
                    .to_owned(),
            });
        }
        tracing::info!(secret = name, reason = ?judged, "the gateway gets a new certificate");
        let pair = issue::issue_certificate(authority, &self.host, now)?;
        self.replace(name, found, pair.data()).await
    }

    async fn ensure_keys(&mut self, now: Timestamp) -> Result<Arc<KeyRing>, Error> {
        let name = GATEWAY_KEYS_SECRET;
        let found = match self.get(name).await? {
            Some(found) => found,
            None => {
                let data = BTreeMap::from([(KEYS, keys::first_key(now)?)]);
                self.create(name, "Opaque", data).await?
            }
        };
        let damaged = |why: String| Error::Damaged { secret: name, why };
        let text = read_text(&found, KEYS).ok_or_else(|| damaged(format!("it has no `{KEYS}`")))?;
        let rotated = match keys::rotate(&text, now, keys::new_key_line) {
            Ok(rotated) => rotated,
            Err(keys::RotateError::Keys(why)) => return Err(damaged(why.to_string())),
            Err(keys::RotateError::Randomness(why)) => return Err(why.into()),
        };
        let text = match rotated {
            None => text,
            Some(rotated) => {
                tracing::info!("rotated the keys of gateway credentials");
                let data = BTreeMap::from([(KEYS, rotated.clone())]);
                self.replace(name, found, data).await?;
                rotated
            }
        };
        if let Some((last, keys)) = &self.last_keys
            && *last == text
        {
            return Ok(Arc::clone(keys));
        }
        let keys = KeyRing::parse(&text).map_err(|why| damaged(why.to_string()))?;
        let keys = Arc::new(keys);
        self.last_keys = Some((text, Arc::clone(&keys)));
        Ok(keys)
    }

    fn set_fault_metric<T>(&self, secret: &'static str, outcome: &Result<T, Error>) {
        let faulty = matches!(outcome, Err(Error::Damaged { .. } | Error::Make(_)));
        self.metrics.set_certificate_fault(secret, faulty);
    }

    async fn get(&self, name: &'static str) -> Result<Option<Secret>, Error> {
        let found = self.secrets.get_opt(name).await;
        found.map_err(|source| Error::Api { secret: name, source })
    }

    /// If another process was first, its Secret is used.
    async fn create(
        &self,
        name: &'static str,
        kind: &str,
        data: BTreeMap<&'static str, Zeroizing<String>>,
    ) -> Result<Secret, Error> {
        let labels = [(labels::PART_OF, labels::MANAGER), (labels::APP_MANAGED_BY, labels::CONTROLLER)];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels.map(|(key, value)| (key.into(), value.into())).into()),
                ..ObjectMeta::default()
            },
            type_: Some(kind.to_owned()),
            data: Some(to_byte_strings(&data)),
            ..Secret::default()
        };
        let error = |source| Error::Api { secret: name, source };
        match self.secrets.create(&PostParams::default(), &secret).await {
            Ok(made) => {
                self.metrics.count_write("Secret", "create");
                tracing::info!(secret = name, "created the Secret");
                Ok(made)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => self.secrets.get(name).await.map_err(error),
            Err(source) => Err(error(source)),
        }
    }

    /// A compare-and-swap: `found` has the version that was read.
    async fn replace(
        &self,
        name: &'static str,
        mut found: Secret,
        data: BTreeMap<&'static str, Zeroizing<String>>,
    ) -> Result<(), Error> {
        found.data = Some(to_byte_strings(&data));
        found.metadata.managed_fields = None;
        let parameters = PostParams::default();
        let written = self.secrets.replace(name, &parameters, &found).await;
        self.metrics.count_write("Secret", "update");
        written.map(|_| ()).map_err(|source| Error::Api { secret: name, source })
    }
}

pub const SECRET_NAMES: [&str; 3] = [AUTHORITY_SECRET, GATEWAY_TLS_SECRET, GATEWAY_KEYS_SECRET];

impl CertificatePair {
    fn read(secret: &Secret) -> Result<Self, PairError> {
        let certificate = read_text(secret, CERTIFICATE_FILE).ok_or(PairError::Certificate)?;
        Ok(Self { certificate: certificate.to_string(), key: read_text(secret, KEY_FILE).ok_or(PairError::Key)? })
    }

    fn data(&self) -> BTreeMap<&'static str, Zeroizing<String>> {
        let certificate = Zeroizing::new(self.certificate.clone());
        BTreeMap::from([(CERTIFICATE_FILE, certificate), (KEY_FILE, self.key.clone())])
    }
}

fn is_ours(secret: &Secret) -> bool {
    let labels = secret.metadata.labels.as_ref();
    let manager = labels.and_then(|labels| labels.get(labels::APP_MANAGED_BY));
    manager.is_some_and(|manager| manager == labels::CONTROLLER)
}

fn read_text(secret: &Secret, key: &str) -> Option<Zeroizing<String>> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    (bytes.len() <= MAX_BYTES).then_some(())?;
    let text = std::str::from_utf8(bytes).ok()?;
    Some(Zeroizing::new(text.to_owned()))
}

fn to_byte_strings(data: &BTreeMap<&'static str, Zeroizing<String>>) -> BTreeMap<String, ByteString> {
    let pair = |(key, value): (&&str, &Zeroizing<String>)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()));
    data.iter().map(pair).collect()
}
