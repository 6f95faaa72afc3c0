//! Signals of the user or the system: end the run, or adapt to a resized terminal.

use std::io;

use anyhow::Context as _;
use sympozium_runs::{HintedError, StopLevel};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::print_stderr;

/// Listens for the signals that end a run, and counts them.
#[derive(Debug)]
pub struct Signals {
    stop_signals: Vec<Signal>,
    resize_signal: Option<Signal>,
    count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// The run must end.
    Stop(StopLevel),
    /// The process must exit, whatever is still to be written.
    Exit,
    /// The terminal was resized.
    Resized,
}

impl Signals {
    /// From now on these signals do not end the process. Signals that are ignored at the start (`nohup`, a shell in the
    /// background) stay ignored.
    pub fn listen() -> Result<Self, HintedError> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = parse_ignored(&status);
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let kinds = kinds.into_iter().filter(|it| !contains_signal(ignored, it.as_raw_value()));
        let listen = || -> io::Result<Self> {
            let stop_signals = kinds.map(signal).collect::<io::Result<_>>()?;
            Ok(Self { stop_signals, resize_signal: Some(signal(SignalKind::window_change())?), count: 0 })
        };
        listen()
            .context("cannot listen for signals")
            .map_err(|error| HintedError::new(error, "try again in another terminal, and report this"))
    }

    /// Listens for none: tests must not take over the signals of their process.
    #[cfg(test)]
    pub const fn none() -> Self {
        Self { stop_signals: Vec::new(), resize_signal: None, count: 0 }
    }

    /// Waits until a run has started, and returns how it is to end if there was a signal meanwhile, with a notice: a
    /// start is never left half done.
    pub async fn wait_for_start<T>(
        &mut self,
        start: impl Future<Output = Result<T, HintedError>>,
        notice: &str,
    ) -> Result<(T, StopLevel), HintedError> {
        let mut level = StopLevel::None;
        tokio::pin!(start);
        loop {
            tokio::select! {
                started = &mut start => return Ok((started?, level)),
                request = self.next() => if let SignalRequest::Stop(requested) = request {
                    level = requested;
                    print_stderr(notice);
                },
            }
        }
    }

    /// Waits for the next signal. Cancel safe.
    pub async fn next(&mut self) -> SignalRequest {
        let stop = std::future::poll_fn(|context| {
            let is_ready = |it: &mut Signal| it.poll_recv(context).is_ready();
            match self.stop_signals.iter_mut().any(is_ready) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        });
        tokio::select! {
            () = stop => {
                self.count += 1;
                match self.count {
                    1 => SignalRequest::Stop(StopLevel::Gently),
                    2 => SignalRequest::Stop(StopLevel::Now),
                    _ => SignalRequest::Exit,
                }
            }
            () = recv_optional(&mut self.resize_signal) => SignalRequest::Resized,
        }
    }
}

async fn recv_optional(signal: &mut Option<Signal>) {
    match signal {
        // The stream of signals does not end.
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The mask of ignored signals in `/proc/self/status`; empty if it cannot be parsed.
fn parse_ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    line.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0)
}

fn contains_signal(set: u64, signal: i32) -> bool {
    let bit = u32::try_from(signal - 1).unwrap_or(u32::MAX);
    set.checked_shr(bit).unwrap_or(0) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_off_are_seen() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        let set = parse_ignored(status);
        let seen = [1, 2, 12, 13, 14, 15, 0, -1].map(|it| contains_signal(set, it));
        assert_eq!(seen, [true, false, false, true, false, false, false, false]);
        assert_eq!(parse_ignored(""), 0);
    }
}
