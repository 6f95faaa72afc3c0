//! What wakes the loop: descriptors, and one timer.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Something that becomes readable, or nothing at all.
pub(super) struct Events(Option<AsyncFd<OwnedFd>>);

impl Events {
    /// A descriptor of our own: whoever owns the other is asked for requests while we wait.
    #[expect(
        deprecated,
        reason = "its successor is unsafe because of types that give out another descriptor each time; this one does not"
    )]
    pub(super) fn of(descriptor: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let own = descriptor.map(|descriptor| descriptor.try_clone_to_owned());
        Ok(Self(match own {
            Some(own) => Some(AsyncFd::with_interest(own?, Interest::READABLE)?),
            None => None,
        }))
    }

    /// The caller then reads until there is no more: readiness is told once.
    pub(super) async fn come(&self) {
        let ready = match &self.0 {
            Some(descriptor) => descriptor.readable().await,
            None => std::future::pending().await,
        };
        if let Ok(mut ready) = ready {
            ready.clear_ready();
        }
    }
}

/// Wakes once when the time has come. The runtime's own timers take several steps to a time that is far off, and an
/// idle sidecar should be idle.
pub(super) struct Alarm(Events);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self(Events::of(Some(timer.as_fd()))?))
    }

    /// Takes the place of what was set before.
    pub(super) fn set(&self, time: Instant) -> io::Result<()> {
        // All zero would mean never.
        let left = time.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec::try_from(left).map_err(io::Error::other)?,
        };
        if let Some(timer) = &self.0.0 {
            timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
        }
        Ok(())
    }

    pub(super) async fn rings(&self) {
        self.0.come().await;
    }
}
