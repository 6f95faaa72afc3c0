//! Leader election: only the process that holds the Lease reconciles.
//!
//! Every write of the Lease is a compare-and-swap on its resource version, so two processes cannot both succeed. The
//! holder renews it every [`RENEW_INTERVAL`]; a holder that could not for [`RENEW_TIMEOUT`] exits, which is well before
//! another process may take the Lease ([`LEASE_DURATION`] after the last change that it saw). The clocks of other
//! machines are not trusted: a Lease has expired when we have not seen it change for long enough, by our own clock.
//!
//! Written by hand, because the crates for it compare the times in the Lease with the local clock, or keep leading until
//! the Lease has expired. Where the Lease is stored is the caller's: only some programs have a Kubernetes client.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::failure::error_chain;

/// How long a Lease that is not renewed is respected.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
pub const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// A holder that could not renew for so long exits.
pub const RENEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait after a failed attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds one request.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Where the Lease is stored: the API server. Requests need no timeout of their own.
pub trait LeaseStore: Send + Sync {
    /// The Lease of this name.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;

    /// Creates the Lease. If there is one of its name, [`StoreError::Conflict`].
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Replaces the Lease if its resource version is still that of `lease`; otherwise [`StoreError::Conflict`], or
    /// [`StoreError::NotFound`].
    fn replace(&self, lease: &Lease) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Notifies `changed` whenever the Lease of this name may have changed. Runs until it is dropped; that it misses a
    /// change costs time, and nothing else.
    fn watch(&self, name: &str, changed: &Notify) -> impl Future<Output = Infallible> + Send;
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The Lease exists already, or has another resource version.
    #[error(transparent)]
    Conflict(Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    NotFound(Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    TimedOut,
}

/// A process that wants the Lease.
pub struct LeaderElector<S> {
    store: S,
    name: String,
    identity: String,
    timings: LeaseTimings,
}

/// Timings of a Lease. Tests use shorter ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimings {
    /// See [`LEASE_DURATION`].
    pub lease_duration: Duration,
    /// See [`RENEW_INTERVAL`].
    pub renew_interval: Duration,
    /// See [`RENEW_TIMEOUT`].
    pub renew_timeout: Duration,
    /// See [`RETRY_INTERVAL`].
    pub retry_interval: Duration,
}

impl Default for LeaseTimings {
    fn default() -> Self {
        Self {
            lease_duration: LEASE_DURATION,
            renew_interval: RENEW_INTERVAL,
            renew_timeout: RENEW_TIMEOUT,
            retry_interval: RETRY_INTERVAL,
        }
    }
}

/// A Lease that this process holds, as far as it knows.
pub struct HeldLease<S> {
    elector: LeaderElector<S>,
    lease: Lease,
    /// When the last successful write was started.
    renewed_at: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLost {
    #[error("`{0}` holds the Lease now")]
    Taken(String),
    #[error("the Lease was deleted")]
    Deleted,
    /// The seconds without a renewal, and the last error.
    #[error("the Lease could not be renewed for {0} s: {1}")]
    NotRenewed(u64, String),
}

impl<S: LeaseStore> LeaderElector<S> {
    /// `identity` must be unique for each process.
    pub fn new(store: S, name: &str, identity: String) -> Self {
        Self { store, name: name.to_owned(), identity, timings: LeaseTimings::default() }
    }

    #[must_use]
    pub fn with_timings(self, timings: LeaseTimings) -> Self {
        Self { timings, ..self }
    }

    /// Waits until this process holds the Lease. A free Lease is taken at once; a held one when it was released or
    /// deleted, or did not change for the duration that is written in it.
    pub async fn acquire(self) -> HeldLease<S> {
        let (lease, renewed_at) = self.wait_until_acquired().await;
        HeldLease { elector: self, lease, renewed_at }
    }

    /// Returns the Lease, and when the write of it was started.
    async fn wait_until_acquired(&self) -> (Lease, Instant) {
        let changed = Notify::new();
        let mut watch = pin!(self.store.watch(&self.name, &changed));
        let mut observed = ObservedLease::default();
        let mut has_logged = false;
        loop {
            let started = Instant::now();
            let wait_until = match self.try_acquire(&mut observed).await {
                Ok(Attempt::Acquired(lease)) => return (*lease, started),
                Ok(Attempt::HeldBy { holder, until }) => {
                    if !std::mem::replace(&mut has_logged, true) {
                        tracing::info!(holder, "standing by: another process holds the Lease");
                    }
                    until
                }
                Err(error) => {
                    tracing::warn!(%error, "the Lease cannot be read or taken; trying again");
                    Instant::now() + self.timings.retry_interval
                }
            };
            // Any change is a reason to check again; so is the end of the lease duration.
            tokio::select! {
                () = sleep_until(wait_until) => {}
                () = changed.notified() => {}
                never = &mut watch => match never {},
            }
        }
    }

    async fn try_acquire(&self, observed: &mut ObservedLease) -> Result<Attempt, StoreError> {
        let Some(lease) = with_timeout(self.store.get(&self.name)).await? else {
            let lease = self.build_lease(None);
            return match with_timeout(self.store.create(&lease)).await {
                Ok(lease) => Ok(Attempt::Acquired(Box::new(lease))),
                Err(StoreError::Conflict(_)) => Ok(self.retry_soon("another process")),
                Err(error) => Err(error),
            };
        };
        let holder = holder(&lease).to_owned();
        let until = observed.unchanged_since(&lease) + lease_duration(&lease, self.timings.lease_duration);
        if !holder.is_empty() && Instant::now() < until {
            return Ok(Attempt::HeldBy { holder, until });
        }
        let lease = self.build_lease(Some(&lease));
        match with_timeout(self.store.replace(&lease)).await {
            Ok(lease) => Ok(Attempt::Acquired(Box::new(lease))),
            // Another process was first, or the Lease was deleted in between: check again.
            Err(StoreError::Conflict(_) | StoreError::NotFound(_)) => Ok(self.retry_soon(&holder)),
            Err(error) => Err(error),
        }
    }

    fn retry_soon(&self, holder: &str) -> Attempt {
        Attempt::HeldBy { holder: holder.to_owned(), until: Instant::now() + self.timings.retry_interval }
    }

    /// The Lease with this process as holder. The resource version of `before` is kept, so that the write is a
    /// compare-and-swap.
    fn build_lease(&self, before: Option<&Lease>) -> Lease {
        let now = MicroTime(now());
        let old = before.and_then(|lease| lease.spec.as_ref());
        let ours = before.is_some_and(|lease| holder(lease) == self.identity);
        let acquired = old.filter(|_| ours).and_then(|spec| spec.acquire_time.clone());
        let transitions = old.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        let changed = before.is_some() && !ours;
        Lease {
            metadata: before.map_or_else(
                || ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                |lease| lease.metadata.clone(),
            ),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(self.timings.lease_duration.as_secs().max(1)).ok(),
                acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(transitions.saturating_add(changed.into())),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// The result of an attempt to take the Lease.
enum Attempt {
    Acquired(Box<Lease>),
    HeldBy { holder: String, until: Instant },
}

/// The last seen version of the Lease, and when it was seen first.
#[derive(Default)]
struct ObservedLease {
    last: Option<(Option<String>, Instant)>,
}

impl ObservedLease {
    fn unchanged_since(&mut self, lease: &Lease) -> Instant {
        let version = &lease.metadata.resource_version;
        match &self.last {
            Some((last, since)) if last == version => *since,
            _ => {
                let now = Instant::now();
                self.last = Some((version.clone(), now));
                now
            }
        }
    }
}

impl<S: LeaseStore> HeldLease<S> {
    /// Renews until the Lease is lost, and returns why. Dropping the future loses nothing: call it again, or
    /// [release](HeldLease::release).
    pub async fn renew_until_lost(&mut self, mut renewed: impl FnMut(Timestamp)) -> LeaseLost {
        let times = self.elector.timings;
        let mut next = self.renewed_at + times.renew_interval;
        let mut last_error = String::new();
        loop {
            let give_up = self.renewed_at + times.renew_timeout;
            sleep_until(next.min(give_up)).await;
            let started = Instant::now();
            if started >= give_up {
                return LeaseLost::NotRenewed(times.renew_timeout.as_secs(), last_error);
            }
            // Bounded by the renew timeout: a later response would be useless.
            let renewal = tokio::time::timeout_at(give_up, self.renew()).await;
            match renewal {
                Ok(Ok(())) => {
                    self.renewed_at = started;
                    next = started + times.renew_interval;
                    renewed(now());
                }
                Ok(Err(RenewError::Lost(lost))) => return lost,
                Ok(Err(RenewError::Failed(error))) => {
                    last_error = error_chain(&error);
                    tracing::warn!(error = last_error, "the Lease could not be renewed; trying again");
                    next = Instant::now() + times.retry_interval;
                }
                Err(_late) => last_error = "no answer".to_owned(),
            }
        }
    }

    async fn renew(&mut self) -> Result<(), RenewError> {
        let this = &self.elector;
        let lease = this.build_lease(Some(&self.lease));
        match with_timeout(this.store.replace(&lease)).await {
            Ok(lease) => {
                self.lease = lease;
                Ok(())
            }
            // The Lease has changed: possibly by our own request whose response was lost. The holder in it decides.
            Err(error @ StoreError::Conflict(_)) => {
                let found = with_timeout(this.store.get(&this.name)).await;
                let found = found.map_err(RenewError::Failed)?;
                let found = found.ok_or(RenewError::Lost(LeaseLost::Deleted))?;
                if holder(&found) != this.identity {
                    return Err(RenewError::Lost(LeaseLost::Taken(holder(&found).to_owned())));
                }
                self.lease = found;
                // It is still ours, and the next attempt has the right version.
                Err(RenewError::Failed(error))
            }
            Err(StoreError::NotFound(_)) => Err(RenewError::Lost(LeaseLost::Deleted)),
            Err(error) => Err(RenewError::Failed(error)),
        }
    }

    /// Releases the Lease, so that another process can take it at once. If that fails, the Lease expires.
    pub async fn release(self) {
        let this = &self.elector;
        let mut lease = self.lease.clone();
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.acquire_time = None;
            spec.renew_time = Some(MicroTime(now()));
        }
        let mut released = with_timeout(this.store.replace(&lease)).await;
        // An aborted renewal may have succeeded: then the Lease is ours in another version.
        if matches!(released, Err(StoreError::Conflict(_)))
            && let Ok(Some(found)) = with_timeout(this.store.get(&this.name)).await
            && holder(&found) == this.identity
        {
            lease.metadata.resource_version = found.metadata.resource_version;
            released = with_timeout(this.store.replace(&lease)).await;
        }
        match released {
            Ok(_) => tracing::info!("the Lease is released"),
            Err(error) => {
                tracing::warn!(%error, "the Lease could not be released; it expires by itself")
            }
        }
    }
}

enum RenewError {
    Lost(LeaseLost),
    Failed(StoreError),
}

async fn with_timeout<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(CALL_TIMEOUT, call).await.unwrap_or(Err(StoreError::TimedOut))
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The duration that the holder has written, within reasonable bounds.
fn lease_duration(lease: &Lease, ours: Duration) -> Duration {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(ours, |seconds| Duration::from_secs(seconds.clamp(1, 120)))
}

/// The API server stores microseconds.
fn now() -> Timestamp {
    let now = Timestamp::now();
    let micros = Timestamp::from_microsecond(now.as_microsecond());
    micros.unwrap_or(now)
}

#[cfg(test)]
mod tests;
