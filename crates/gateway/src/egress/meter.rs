//! Meters one tunnel or request, and enforces its limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::events::{EventKind, Reason};
use crate::plans::{CredentialHandle, Usage};
use crate::settings::Settings;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Sent,
    Received,
}

/// Counts one tunnel or request. It holds a connection slot of its credential and its run until it is dropped.
#[derive(Debug)]
pub struct Meter {
    credential: CredentialHandle,
    settings: Arc<Settings>,
    sent: AtomicU64,
    received: AtomicU64,
    started: Instant,
    /// When the credential expires.
    expires: Instant,
    /// When the last byte passed, in milliseconds since the start.
    last_byte_ms: AtomicU64,
}

impl Meter {
    /// Acquires the connection slots, with a credential that is valid for `left`.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub fn new(holder: CredentialHandle, settings: Arc<Settings>, left: Duration) -> Result<Self, Reason> {
        let of_credential = &holder.planned().usage;
        if !of_credential.acquire_connection(settings.connections_of_credential) {
            return Err(Reason::ConnectionsOfCredential);
        }
        if !holder.run.usage.acquire_connection(settings.connections_of_run) {
            of_credential.release_connection();
            return Err(Reason::ConnectionsOfRun);
        }
        let started = Instant::now();
        let meter = Self {
            credential: holder,
            settings,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            started,
            expires: started + left,
            last_byte_ms: AtomicU64::new(0),
        };
        // If the byte budget is used up, connecting is refused as well.
        meter.count(Flow::Sent, 0)?;
        Ok(meter)
    }

    /// Counts bytes before they are passed on.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub fn count(&self, way: Flow, bytes: usize) -> Result<(), Reason> {
        let bytes = bytes as u64;
        let (counter, other) = match way {
            Flow::Sent => (&self.sent, &self.received),
            Flow::Received => (&self.received, &self.sent),
        };
        let before = counter.fetch_add(bytes, Ordering::Relaxed);
        self.last_byte_ms.store(self.elapsed_ms(), Ordering::Relaxed);
        let both = before.saturating_add(bytes).saturating_add(other.load(Ordering::Relaxed));
        let of = |usage: &Usage, most| usage.add_bytes(bytes, most);
        let settings = &*self.settings;
        if both > settings.bytes_of_connection {
            Err(Reason::BytesOfConnection)
        } else if !of(&self.credential.planned().usage, settings.bytes_of_credential) {
            Err(Reason::BytesOfCredential)
        } else if !of(&self.credential.run.usage, settings.bytes_of_run) {
            Err(Reason::BytesOfRun)
        } else {
            Ok(())
        }
    }

    /// Waits until the connection must be cut, and returns the reason. A decision ends with what it is based on.
    pub async fn wait_end(&self, mut ending: watch::Receiver<bool>) -> Reason {
        tokio::select! {
            () = self.credential.wait_end() => Reason::RunOver,
            reason = self.wait_time_limit() => reason,
            _ = ending.wait_for(|ending| *ending) => Reason::Ending,
        }
    }

    async fn wait_time_limit(&self) -> Reason {
        let limit = self.started + self.settings.connection_limit;
        loop {
            let last = Duration::from_millis(self.last_byte_ms.load(Ordering::Relaxed));
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

    pub fn end_event(&self, reason: Reason) -> EventKind {
        EventKind::Ended {
            reason,
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            milliseconds: self.elapsed_ms(),
        }
    }

    pub fn credential(&self) -> &CredentialHandle {
        &self.credential
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.credential.planned().usage.release_connection();
        self.credential.run.usage.release_connection();
    }
}
