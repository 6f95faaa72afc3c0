//! What one tunnel or request uses, and when that is enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::events::{Outcome, Reason};
use crate::plans::{Holder, Usage};
use crate::settings::Settings;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client.
    Sent,
    /// To the client.
    Received,
}

/// Counts one tunnel or request; it takes up room until it is dropped.
#[derive(Debug)]
pub struct Meter {
    holder: Holder,
    settings: Arc<Settings>,
    sent: AtomicU64,
    received: AtomicU64,
    started: Instant,
    /// The credential is worth nothing from then on.
    expires: Instant,
    /// When the last byte passed, in milliseconds from the start.
    last: AtomicU64,
}

impl Meter {
    /// Takes up room for one more, while the credential is good for `left`.
    ///
    /// # Errors
    ///
    /// When there is none.
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
        // Whoever has used up everything does not get to connect either.
        meter.count(Way::Sent, 0)?;
        Ok(meter)
    }

    /// Counts bytes that are about to be passed on.
    ///
    /// # Errors
    ///
    /// When they are too many.
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

    /// Waits until it must not go on, and says why. What has been decided ends with what it was decided upon.
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

    /// How it ended.
    pub fn outcome(&self, reason: Reason) -> Outcome {
        Outcome::Ended {
            reason,
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            milliseconds: self.milliseconds(),
        }
    }

    /// Whose it is.
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
