//! The sources of wake-ups of the loop: descriptors, and one timer.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits until a descriptor is readable; without one, forever.
pub(super) struct Readiness(Option<AsyncFd<OwnedFd>>);

impl Readiness {
    /// Duplicates the descriptor, because its owner is used mutably during the wait.
    #[expect(
        deprecated,
        reason = "its successor is unsafe because of types that give out another descriptor each time; this one does not"
    )]
    pub(super) fn new(descriptor: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let Some(descriptor) = descriptor else { return Ok(Self(None)) };
        let own = descriptor.try_clone_to_owned()?;
        Ok(Self(Some(AsyncFd::with_interest(own, Interest::READABLE)?)))
    }

    /// The caller must then read until there is nothing left: readiness is reported once.
    pub(super) async fn wait(&self) {
        let ready = match &self.0 {
            Some(descriptor) => descriptor.readable().await,
            None => std::future::pending().await,
        };
        if let Ok(mut ready) = ready {
            ready.clear_ready();
        }
    }
}

/// A timer that expires once. The runtime's own timers take several wake-ups to a distant instant, and an idle sidecar
/// should have none.
pub(super) struct WakeTimer(Readiness);

impl WakeTimer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self(Readiness::new(Some(timer.as_fd()))?))
    }

    /// Replaces the instant that was set before.
    pub(super) fn set(&self, deadline: Instant) -> io::Result<()> {
        // Zero would disarm it: timerfd_settime(2).
        let remaining = deadline.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec::try_from(remaining).map_err(io::Error::other)?,
        };
        if let Some(timer) = &self.0.0 {
            timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
        }
        Ok(())
    }

    pub(super) async fn wait(&self) {
        self.0.wait().await;
    }
}
