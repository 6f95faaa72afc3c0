//! Meters one tunnel or request, and enforces its limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::events::{Outcome, Reason};
use crate::plans::{Holder, Usage};
use crate::settings::Settings;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Sent,
    Received,
}

/// Counts one tunnel or request. It holds a connection slot of its credential and its run until it is dropped.
#[derive(Debug)]
pub struct Meter {
    holder: Holder,
    settings: Arc<Settings>,
    sent: AtomicU64,
    received: AtomicU64,
    started: Instant,
    /// When the credential expires.
    expires: Instant,
    /// When the last byte passed, in milliseconds since the start.
    last: AtomicU64,
}

impl Meter {
    /// Acquires the connection slots, with a credential that is valid for `left`.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub fn new(holder: Holder, settings: Arc<Settings>, left: Duration) -> Result<Self, Reason> {
        let of_credential = &holder.grant().usage;
        if !of_credential.enter(settings.connections_of_credential) {
            return Err(Reason::ConnectionsOfCredential);
        }
        if !holder.run.usage.enter(settings.connections_of_run) {
            of_credential.leave();
            return Err(Reason::ConnectionsOfRun);
        }
        let started = Instant::now();
        let meter = Self {
            holder,
            settings,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            started,
            expires: started + left,
            last: AtomicU64::new(0),
        };
        // If the byte budget is used up, connecting is refused as well.
        meter.count(Way::Sent, 0)?;
        Ok(meter)
    }

    /// Counts bytes before they are passed on.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub fn count(&self, way: Way, bytes: usize) -> Result<(), Reason> {
        let bytes = bytes as u64;
        let (counter, other) = match way {
            Way::Sent => (&self.sent, &self.received),
            Way::Received => (&self.received, &self.sent),
        };
        let before = counter.fetch_add(bytes, Ordering::Relaxed);
        self.last.store(self.milliseconds(), Ordering::Relaxed);
        let both = before.saturating_add(bytes).saturating_add(other.load(Ordering::Relaxed));
        let of = |usage: &Usage, most| usage.add(bytes, most);
        let settings = &*self.settings;
        if both > settings.bytes_of_connection {
            Err(Reason::BytesOfConnection)
        } else if !of(&self.holder.grant().usage, settings.bytes_of_credential) {
            Err(Reason::BytesOfCredential)
        } else if !of(&self.holder.run.usage, settings.bytes_of_run) {
            Err(Reason::BytesOfRun)
        } else {
            Ok(())
        }
    }

    /// Waits until the connection must be cut, and returns the reason. A decision ends with what it is based on.
    pub async fn ended(&self, mut ending: watch::Receiver<bool>) -> Reason {
        tokio::select! {
            () = self.holder.over() => Reason::RunOver,
            reason = self.out_of_time() => reason,
            _ = ending.wait_for(|ending| *ending) => Reason::Ending,
        }
    }

    async fn out_of_time(&self) -> Reason {
        let limit = self.started + self.settings.connection_limit;
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let idle = self.started + last + self.settings.idle_limit;
            let (next, reason) =
                [(self.expires, Reason::CredentialExpired), (limit, Reason::TooLong), (idle, Reason::Idle)]
                    .into_iter()
                    .fold((idle, Reason::Idle), |one, other| if other.0 < one.0 { other } else { one });
            if next <= Instant::now() {
                return reason;
            }
            sleep_until(next).await;
        }
    }

    pub fn outcome(&self, reason: Reason) -> Outcome {
        Outcome::Ended {
            reason,
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            milliseconds: self.milliseconds(),
        }
    }

    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.holder.grant().usage.leave();
        self.holder.run.usage.leave();
    }
}
