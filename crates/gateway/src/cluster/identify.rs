//! Whose a token is: the API server says of which pod, and the pod is a run's or nobody's.
//!
//! Anybody may send anything, and each question to the API server costs. So what a token says of itself is read first, and
//! one that is no run's by its own words is not asked about. Those that say they are of a pod that is known have room of
//! their own, and each pod a few places in it: whoever makes up tokens keeps others waiting that nobody knows either.

mod claims;
mod memory;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use sympozium_api::digest;
use sympozium_api::installation::AUDIENCE;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use self::claims::Claims;
use self::memory::Memory;
use super::runs::{Claimed, PodOf, Runs, chain};
use super::{ACCOUNT, REQUEST_DEADLINE};
use crate::metrics::{Metrics, Review};
use crate::run_api::{Identify, Unidentified};

/// How long an answer of the API server is believed. Whether the run is under way is looked up each time.
pub const REVIEW_LIFE: Duration = Duration::from_secs(10);
/// Good answers that are remembered.
pub const MAX_REVIEWS_KEPT: usize = 4096;
/// Bad ones.
pub const MAX_BAD_KEPT: usize = 1024;
/// Tokens that the API server is asked about at a time, of pods that are known.
pub const MAX_REVIEWS: usize = 32;
/// The same, of pods that are not.
pub const MAX_REVIEWS_OF_UNKNOWN: usize = 8;
/// Tokens that name the same pod, which are asked about or wait for that. Further ones are told to come again.
pub const MAX_REVIEWS_OF_POD: usize = 4;
/// Where a review says which pod the token is bound to.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// The domain of the hashes under which answers are remembered: no token is.
const DOMAIN: &str = "sympozium.ai/token/v1";

/// Tokens of pods, for our audience.
pub struct PodTokens {
    client: Client,
    runs: Arc<Runs>,
    metrics: Arc<Metrics>,
    known: Semaphore,
    unknown: Semaphore,
    /// Of each pod that is named, tokens that are asked about.
    asking: Mutex<HashMap<String, usize>>,
    good: Memory<Bearer>,
    bad: Memory<()>,
}

/// Who holds a token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bearer {
    /// The namespace of its service account, which is that of its pod.
    namespace: String,
    /// The name of its service account.
    account: String,
    /// The pod's UID.
    pod: String,
}

impl PodTokens {
    /// Of the runs of this cluster.
    pub fn new(client: Client, runs: Arc<Runs>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            runs,
            metrics,
            known: Semaphore::new(MAX_REVIEWS),
            unknown: Semaphore::new(MAX_REVIEWS_OF_UNKNOWN),
            asking: Mutex::default(),
            good: Memory::new(MAX_REVIEWS_KEPT, REVIEW_LIFE),
            bad: Memory::new(MAX_BAD_KEPT, REVIEW_LIFE),
        }
    }

    async fn bearer(&self, token: &str) -> Result<Bearer, Unidentified> {
        // Whatever is no run's by its own words need not be asked about.
        let claims = Claims::read(token).map_err(|why| Unidentified::Nobody(why.to_owned()))?;
        let claimed = self.runs.claimed(&claims.namespace, &claims.account, &claims.pod);
        let room = match claimed {
            Claimed::Known => &self.known,
            Claimed::Possible => &self.unknown,
            Claimed::No => {
                let why = "the pod that it names is no run's that is under way";
                return Err(Unidentified::Nobody(why.to_owned()));
            }
        };
        let key = digest::of_canonical(DOMAIN, token.as_bytes());
        if let Some(bearer) = self.good.get(&key) {
            self.metrics.review(Review::Remembered);
            return Ok(bearer);
        }
        if self.bad.get(&key).is_some() {
            self.metrics.review(Review::Remembered);
            let why = "the API server did not know it a moment ago";
            return Err(Unidentified::Nobody(why.to_owned()));
        }
        let Some(_place) = Place::take(&self.asking, &claims.pod) else {
            let why = format!("too many tokens name pod {} at once", claims.pod);
            return Err(Unidentified::Later(why));
        };
        // Never closed; whoever waits too long here is told to come again.
        let room = room.acquire().await;
        let asked = Instant::now();
        let reviewed = self.review(token).await;
        drop(room);
        match &reviewed {
            Ok(bearer) => {
                self.metrics.review(Review::Good);
                self.good.put(key, asked, bearer.clone());
            }
            Err(Unidentified::Nobody(_)) => {
                self.metrics.review(Review::Bad);
                self.bad.put(key, asked, ());
            }
            Err(Unidentified::Later(_)) => self.metrics.review(Review::Failed),
        }
        reviewed
    }

    async fn review(&self, token: &str) -> Result<Bearer, Unidentified> {
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) },
            ..TokenReview::default()
        };
        let parameters = PostParams::default();
        let asked = timeout(REQUEST_DEADLINE, api.create(&parameters, &review)).await;
        let later = |why: String| Unidentified::Later(format!("asking about a token: {why}"));
        let answer = asked.map_err(|_| later("the API server did not answer in time".to_owned()))?;
        let answer = answer.map_err(|error| later(chain(&error)))?;
        read(answer.status.unwrap_or_default()).map_err(Unidentified::Nobody)
    }
}

/// A token that is asked about, counted with the pod that it names.
struct Place<'a> {
    asking: &'a Mutex<HashMap<String, usize>>,
    pod: String,
}

impl<'a> Place<'a> {
    fn take(asking: &'a Mutex<HashMap<String, usize>>, pod: &str) -> Option<Self> {
        let mut counts = lock(asking);
        let count = counts.entry(pod.to_owned()).or_default();
        if *count >= MAX_REVIEWS_OF_POD {
            return None;
        }
        *count += 1;
        let pod = pod.to_owned();
        Some(Self { asking, pod })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut counts = lock(self.asking);
        if let Some(count) = counts.get_mut(&self.pod) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.pod);
            }
        }
    }
}

fn lock<T>(whole: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves each of them whole.
    whole.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Identify for PodTokens {
    async fn identify(&self, token: &str) -> Result<String, Unidentified> {
        let bearer = self.bearer(token).await?;
        let Bearer { namespace, account, pod } = &bearer;
        let whose = match self.runs.pod(namespace, pod) {
            // Whoever is told that it is nobody ends its run: that is not for a watch to say which may be behind.
            PodOf::Unknown => self.runs.look(namespace, account, pod).await,
            whose => whose,
        };
        match whose {
            PodOf::Run(uid) => Ok(uid),
            PodOf::Later(why) => Err(Unidentified::Later(format!("{why} (pod {pod})"))),
            PodOf::Nobody(why) => Err(Unidentified::Nobody(format!("{why} (pod {pod})"))),
            PodOf::Unknown => Err(Unidentified::Nobody(format!("nobody knows pod {pod}"))),
        }
    }
}

/// What a review says, or why it says nothing that counts here.
fn read(status: TokenReviewStatus) -> Result<Bearer, String> {
    if status.authenticated != Some(true) {
        let why = status.error.unwrap_or_default();
        // It may repeat what was sent, as far as names go.
        let why: String = why.chars().take(200).collect();
        return Err(format!("the API server does not know the token: {why}"));
    }
    // A server that knows nothing of audiences would let the token of anybody pass.
    if !status.audiences.unwrap_or_default().iter().any(|it| it == AUDIENCE) {
        return Err(format!("the token is not for {AUDIENCE}"));
    }
    let user = status.user.unwrap_or_default();
    let username = user.username.unwrap_or_default();
    let account = username.strip_prefix(ACCOUNT).and_then(|it| it.split_once(':'));
    let Some((namespace, name)) = account else {
        return Err("the token is no service account's".to_owned());
    };
    if namespace.is_empty() || name.is_empty() || name.contains(':') {
        return Err("the token's service account has no name".to_owned());
    }
    let pods = user.extra.unwrap_or_default().remove(POD_UID).unwrap_or_default();
    let [pod] = &pods[..] else {
        return Err("the token is bound to no pod".to_owned());
    };
    Ok(Bearer { namespace: namespace.to_owned(), account: name.to_owned(), pod: pod.clone() })
}

#[cfg(test)]
mod tests;
