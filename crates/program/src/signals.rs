//! The signals that end a program, and the one that makes it read its files again.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    /// From now on these signals do not end the process by themselves, also where it is PID 1 of a container, which
    /// would ignore them. One that arrives before [`Self::recv`] is called is not lost.
    ///
    /// # Errors
    ///
    /// When the process has no file descriptor left.
    pub fn listen() -> anyhow::Result<Self> {
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for one of them, and returns its name. Cancel safe.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// SIGHUP: read the files again.
#[derive(Debug)]
pub struct HangupSignal(Signal);

impl HangupSignal {
    /// From now on the signal does not end the process. See [`ShutdownSignals::listen`].
    ///
    /// # Errors
    ///
    /// When the process has no file descriptor left.
    pub fn listen() -> anyhow::Result<Self> {
        listen(SignalKind::hangup()).map(Self)
    }

    /// Waits for it. Cancel safe.
    pub async fn recv(&mut self) {
        self.0.recv().await;
    }
}

fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot wait for signals")
}
