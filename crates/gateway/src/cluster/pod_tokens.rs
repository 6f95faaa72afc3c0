//! Authenticates a token: the API server says to which pod it belongs, and the pod belongs to a run or not.
//!
//! Every client can send any token, and each TokenReview costs. So the claims of the token are read first, and one that
//! does not claim to belong to a run is not reviewed. Tokens that claim a known pod have a limit of their own, with a
//! few slots for each pod: forged tokens only delay other tokens of unknown pods.

mod claims;
mod ttl_cache;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use sympozium_api::digest;
use sympozium_api::installation::AUDIENCE;
use sympozium_program::error_chain;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use self::claims::Claims;
use self::ttl_cache::TtlCache;
use super::runs::{ClaimCheck, PodOwner, RunCache};
use super::{REQUEST_TIMEOUT, SERVICE_ACCOUNT_PREFIX};
use crate::metrics::{Metrics, ReviewResult};
use crate::run_api::{AuthenticateError, TokenAuthenticator};

/// How long the result of a TokenReview is cached. Whether the run is active is looked up each time.
pub const REVIEW_TTL: Duration = Duration::from_secs(10);
/// Maximum number of cached valid tokens.
pub const MAX_CACHED_VALID: usize = 4096;
/// Maximum number of cached invalid tokens.
pub const MAX_CACHED_INVALID: usize = 1024;
/// Maximum number of concurrent reviews of tokens that claim a known pod.
pub const MAX_REVIEWS: usize = 32;
/// The same for unknown pods.
pub const MAX_REVIEWS_OF_UNKNOWN: usize = 8;
/// Maximum number of tokens that claim the same pod and are reviewed or wait for it. Further ones are refused for now.
pub const MAX_REVIEWS_OF_POD: usize = 4;
/// Where a TokenReview has the UID of the pod that the token is bound to.
const POD_UID_EXTRA: &str = "authentication.kubernetes.io/pod-uid";
/// The domain of the hashes that are cached instead of tokens.
const TOKEN_DOMAIN: &str = "sympozium.ai/token/v1";

/// Authenticates tokens of pods for our audience.
pub struct PodTokens {
    client: Client,
    runs: Arc<RunCache>,
    metrics: Arc<Metrics>,
    known_pod_reviews: Semaphore,
    unknown_pod_reviews: Semaphore,
    /// Number of reviews in flight for each claimed pod.
    in_flight: Mutex<HashMap<String, usize>>,
    valid: TtlCache<Bearer>,
    invalid: TtlCache<()>,
}

/// The bearer of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bearer {
    /// The namespace of its service account and its pod.
    namespace: String,
    /// The name of its service account.
    account: String,
    /// The pod's UID.
    pod: String,
}

impl PodTokens {
    pub fn new(client: Client, runs: Arc<RunCache>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            runs,
            metrics,
            known_pod_reviews: Semaphore::new(MAX_REVIEWS),
            unknown_pod_reviews: Semaphore::new(MAX_REVIEWS_OF_UNKNOWN),
            in_flight: Mutex::default(),
            valid: TtlCache::new(MAX_CACHED_VALID, REVIEW_TTL),
            invalid: TtlCache::new(MAX_CACHED_INVALID, REVIEW_TTL),
        }
    }

    async fn find_bearer(&self, token: &str) -> Result<Bearer, AuthenticateError> {
        // A token that does not claim to belong to a run is not reviewed.
        let claims = Claims::parse(token).map_err(|why| AuthenticateError::Invalid(why.to_owned()))?;
        let claimed = self.runs.check_claim(&claims.namespace, &claims.account, &claims.pod);
        let room = match claimed {
            ClaimCheck::Known => &self.known_pod_reviews,
            ClaimCheck::Possible => &self.unknown_pod_reviews,
            ClaimCheck::Impossible => {
                let why = "the pod that it names is no run's that is under way";
                return Err(AuthenticateError::Invalid(why.to_owned()));
            }
        };
        let key = digest::digest_canonical(TOKEN_DOMAIN, token.as_bytes());
        if let Some(bearer) = self.valid.get(&key) {
            self.metrics.count_review(ReviewResult::Cached);
            return Ok(bearer);
        }
        if self.invalid.get(&key).is_some() {
            self.metrics.count_review(ReviewResult::Cached);
            let why = "the API server did not know it a moment ago";
            return Err(AuthenticateError::Invalid(why.to_owned()));
        }
        let Some(_place) = ReviewSlot::acquire(&self.in_flight, &claims.pod) else {
            let why = format!("too many tokens name pod {} at once", claims.pod);
            return Err(AuthenticateError::Unavailable(why));
        };
        // Never closed. A request that waits too long here is refused for now.
        let room = room.acquire().await;
        let asked = Instant::now();
        let reviewed = self.review(token).await;
        drop(room);
        match &reviewed {
            Ok(bearer) => {
                self.metrics.count_review(ReviewResult::Valid);
                self.valid.put(key, asked, bearer.clone());
            }
            Err(AuthenticateError::Invalid(_)) => {
                self.metrics.count_review(ReviewResult::Invalid);
                self.invalid.put(key, asked, ());
            }
            Err(AuthenticateError::Unavailable(_)) => self.metrics.count_review(ReviewResult::Failed),
        }
        reviewed
    }

    async fn review(&self, token: &str) -> Result<Bearer, AuthenticateError> {
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) },
            ..TokenReview::default()
        };
        let parameters = PostParams::default();
        let asked = timeout(REQUEST_TIMEOUT, api.create(&parameters, &review)).await;
        let later = |why: String| AuthenticateError::Unavailable(format!("asking about a token: {why}"));
        let answer = asked.map_err(|_| later("the API server did not answer in time".to_owned()))?;
        let answer = answer.map_err(|error| later(error_chain(&error)))?;
        parse_review(answer.status.unwrap_or_default()).map_err(AuthenticateError::Invalid)
    }
}

/// A review in flight, counted for the claimed pod.
struct ReviewSlot<'a> {
    in_flight: &'a Mutex<HashMap<String, usize>>,
    pod: String,
}

impl<'a> ReviewSlot<'a> {
    fn acquire(asking: &'a Mutex<HashMap<String, usize>>, pod: &str) -> Option<Self> {
        let mut counts = asking.lock();
        let count = counts.entry(pod.to_owned()).or_default();
        if *count >= MAX_REVIEWS_OF_POD {
            return None;
        }
        *count += 1;
        let pod = pod.to_owned();
        Some(Self { in_flight: asking, pod })
    }
}

impl Drop for ReviewSlot<'_> {
    fn drop(&mut self) {
        let mut counts = self.in_flight.lock();
        if let Some(count) = counts.get_mut(&self.pod) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.pod);
            }
        }
    }
}

impl TokenAuthenticator for PodTokens {
    async fn authenticate(&self, token: &str) -> Result<String, AuthenticateError> {
        let bearer = self.find_bearer(token).await?;
        let Bearer { namespace, account, pod } = &bearer;
        let whose = match self.runs.pod_owner(namespace, pod) {
            // A bridge whose token is rejected ends its run: a watch that may be behind must not decide that.
            PodOwner::Unknown => self.runs.look_up_owner(namespace, account, pod).await,
            whose => whose,
        };
        match whose {
            PodOwner::Run(uid) => Ok(uid),
            PodOwner::Undecided(why) => Err(AuthenticateError::Unavailable(format!("{why} (pod {pod})"))),
            PodOwner::NoRun(why) => Err(AuthenticateError::Invalid(format!("{why} (pod {pod})"))),
            PodOwner::Unknown => Err(AuthenticateError::Invalid(format!("there is no pod {pod}"))),
        }
    }
}

/// The bearer by a TokenReview, or why it does not count.
fn parse_review(status: TokenReviewStatus) -> Result<Bearer, String> {
    if status.authenticated != Some(true) {
        let why = status.error.unwrap_or_default();
        // The message may repeat names from the token.
        let why: String = why.chars().take(200).collect();
        return Err(format!("the API server does not know the token: {why}"));
    }
    // A server without support for audiences would accept the token of any pod.
    if !status.audiences.unwrap_or_default().iter().any(|audience| audience == AUDIENCE) {
        return Err(format!("the token is not for {AUDIENCE}"));
    }
    let user = status.user.unwrap_or_default();
    let username = user.username.unwrap_or_default();
    let account = username.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|account| account.split_once(':'));
    let Some((namespace, name)) = account else {
        return Err("the token is no service account's".to_owned());
    };
    if namespace.is_empty() || name.is_empty() || name.contains(':') {
        return Err("the token's service account has no name".to_owned());
    }
    let pods = user.extra.unwrap_or_default().remove(POD_UID_EXTRA).unwrap_or_default();
    let [pod] = &pods[..] else {
        return Err("the token is bound to no pod".to_owned());
    };
    Ok(Bearer { namespace: namespace.to_owned(), account: name.to_owned(), pod: pod.clone() })
}

#[cfg(test)]
mod tests;
