//! Leader election: only the process that holds the Lease reconciles.
//!
//! Every write of the Lease is a compare-and-swap on its resource version, so two processes cannot both succeed. The
//! holder renews it every [`RENEW_INTERVAL`]; a holder that could not for [`RENEW_TIMEOUT`] exits, which is well before
//! another process may take the Lease ([`LEASE_DURATION`] after the last change that it saw). The clocks of other
//! machines are not trusted: a Lease has expired when we have not seen it change for long enough, by our own clock.

use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a Lease that is not renewed is respected.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
pub const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// A holder that could not renew for so long exits.
pub const RENEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait after a failed attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds one request.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// A process that wants the Lease.
pub struct LeaderElector {
    leases: Api<Lease>,
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
pub struct HeldLease {
    elector: LeaderElector,
    lease: Lease,
    /// When the last successful write was started.
    renewed_at: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLost {
    #[error("`{0}` holds the Lease now")]
    Taken(String),
    #[error("somebody deleted the Lease")]
    Deleted,
    /// The seconds without a renewal, and the last error.
    #[error("the Lease could not be renewed for {0} s: {1}")]
    NotRenewed(u64, String),
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    TimedOut,
}

impl CallError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

impl LeaderElector {
    /// `identity` must be unique for each process.
    pub fn new(client: Client, namespace: &str, name: &str, identity: String) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity,
            timings: LeaseTimings::default(),
        }
    }

    #[must_use]
    pub fn with_timings(self, times: LeaseTimings) -> Self {
        Self { timings: times, ..self }
    }

    /// Waits until this process holds the Lease. A free Lease is taken at once; a held one when it was released or
    /// deleted, or did not change for the duration that is written in it.
    pub async fn acquire(self) -> HeldLease {
        let fields = format!("metadata.name={}", self.name);
        let changes = watcher(self.leases.clone(), watcher::Config::default().fields(&fields)).default_backoff();
        pin_mut!(changes);
        let mut observed = ObservedLease::default();
        let mut told = false;
        loop {
            let begun = Instant::now();
            let wait_until = match self.try_acquire(&mut observed).await {
                Ok(Attempt::Acquired(lease)) => {
                    return HeldLease { elector: self, lease: *lease, renewed_at: begun };
                }
                Ok(Attempt::HeldBy { holder, until }) => {
                    if !std::mem::replace(&mut told, true) {
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
                change = changes.next() => {
                    if let Some(Err(error)) = change {
                        tracing::warn!(%error, "the watch of the Lease was cut; it is taken up again");
                        sleep(self.timings.retry_interval).await;
                    }
                }
            }
        }
    }

    async fn try_acquire(&self, observed: &mut ObservedLease) -> Result<Attempt, CallError> {
        let Some(lease) = with_timeout(self.leases.get_opt(&self.name)).await? else {
            let lease = self.build_lease(None);
            return match with_timeout(self.leases.create(&PostParams::default(), &lease)).await {
                Ok(lease) => Ok(Attempt::Acquired(Box::new(lease))),
                Err(error) if error.code() == Some(409) => Ok(self.retry_soon("somebody")),
                Err(error) => Err(error),
            };
        };
        let holder = holder(&lease).to_owned();
        let until = observed.unchanged_since(&lease) + lease_duration(&lease, self.timings.lease_duration);
        if !holder.is_empty() && Instant::now() < until {
            return Ok(Attempt::HeldBy { holder, until });
        }
        let lease = self.build_lease(Some(&lease));
        match with_timeout(self.leases.replace(&self.name, &PostParams::default(), &lease)).await {
            Ok(lease) => Ok(Attempt::Acquired(Box::new(lease))),
            // Another process was first, or the Lease was deleted in between: check again.
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(self.retry_soon(&holder)),
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
            Some((seen, since)) if seen == version => *since,
            _ => {
                let now = Instant::now();
                self.last = Some((version.clone(), now));
                now
            }
        }
    }
}

impl HeldLease {
    /// Renews until the Lease is lost, and returns why. Dropping the future loses nothing: call it again, or
    /// [release](HeldLease::release).
    pub async fn renew_until_lost(&mut self, mut renewed: impl FnMut(Timestamp)) -> LeaseLost {
        let times = self.elector.timings;
        let mut next = self.renewed_at + times.renew_interval;
        let mut last_error = String::new();
        loop {
            let give_up = self.renewed_at + times.renew_timeout;
            sleep_until(next.min(give_up)).await;
            let begun = Instant::now();
            if begun >= give_up {
                return LeaseLost::NotRenewed(times.renew_timeout.as_secs(), last_error);
            }
            // Bounded by the renew timeout: a later response would be useless.
            let renewal = tokio::time::timeout_at(give_up, self.renew()).await;
            match renewal {
                Ok(Ok(())) => {
                    self.renewed_at = begun;
                    next = begun + times.renew_interval;
                    renewed(now());
                }
                Ok(Err(RenewError::Lost(lost))) => return lost,
                Ok(Err(RenewError::Failed(error))) => {
                    last_error = sympozium_program::error_chain(&error);
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
        match with_timeout(this.leases.replace(&this.name, &PostParams::default(), &lease)).await {
            Ok(lease) => {
                self.lease = lease;
                Ok(())
            }
            // The Lease has changed: possibly by our own request whose response was lost. The holder in it decides.
            Err(error) if error.code() == Some(409) => {
                let found = with_timeout(this.leases.get_opt(&this.name)).await;
                let found = found.map_err(RenewError::Failed)?;
                let found = found.ok_or(RenewError::Lost(LeaseLost::Deleted))?;
                if holder(&found) != this.identity {
                    return Err(RenewError::Lost(LeaseLost::Taken(holder(&found).to_owned())));
                }
                self.lease = found;
                // It is still ours, and the next attempt has the right version.
                Err(RenewError::Failed(error))
            }
            Err(error) if error.code() == Some(404) => Err(RenewError::Lost(LeaseLost::Deleted)),
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
        let parameters = PostParams::default();
        let mut released = with_timeout(this.leases.replace(&this.name, &parameters, &lease)).await;
        // An aborted renewal may have succeeded: then the Lease is ours in another version.
        if released.as_ref().is_err_and(|it| it.code() == Some(409))
            && let Ok(Some(found)) = with_timeout(this.leases.get_opt(&this.name)).await
            && holder(&found) == this.identity
        {
            lease.metadata.resource_version = found.metadata.resource_version;
            released = with_timeout(this.leases.replace(&this.name, &parameters, &lease)).await;
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
    Failed(CallError),
}

async fn with_timeout<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(CallError::TimedOut),
    }
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The duration that the holder has written, within reasonable bounds.
fn lease_duration(lease: &Lease, ours: Duration) -> Duration {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let told = seconds.and_then(|it| u64::try_from(it).ok());
    told.map_or(ours, |seconds| Duration::from_secs(seconds.clamp(1, 120)))
}

/// The API server stores microseconds.
fn now() -> Timestamp {
    let now = Timestamp::now();
    let micros = Timestamp::from_microsecond(now.as_microsecond());
    micros.unwrap_or(now)
}

#[cfg(test)]
mod tests;
