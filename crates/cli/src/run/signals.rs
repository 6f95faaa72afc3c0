//! Signals of the user or the system: end the run, or adapt to a resized terminal.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::local::realise::Stop;

/// Listens for the signals that end a run, and counts them.
#[derive(Debug)]
pub struct Signals {
    ending: Vec<Signal>,
    resized: Option<Signal>,
    count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// The run must end.
    End(Stop),
    /// The process must exit, whatever is still to be written.
    Leave,
    /// The terminal was resized.
    Resized,
}

impl Signals {
    /// From now on these signals do not end the process. Signals that are ignored at the start (`nohup`, a shell in the
    /// background) stay ignored.
    pub fn listen() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored(&status);
        let wanted = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let wanted = wanted.into_iter().filter(|it| !is_in(ignored, it.as_raw_value()));
        Ok(Self {
            ending: wanted.map(signal).collect::<io::Result<_>>()?,
            resized: Some(signal(SignalKind::window_change())?),
            count: 0,
        })
    }

    /// Listens for none: tests must not take over the signals of their process.
    #[cfg(test)]
    pub const fn none() -> Self {
        Self { ending: Vec::new(), resized: None, count: 0 }
    }

    /// Waits for the next signal. Cancel safe.
    pub async fn next(&mut self) -> Asks {
        let ending = std::future::poll_fn(|context| {
            let is_ready = |it: &mut Signal| it.poll_recv(context).is_ready();
            match self.ending.iter_mut().any(is_ready) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        });
        tokio::select! {
            () = ending => {
                self.count += 1;
                match self.count {
                    1 => Asks::End(Stop::Gently),
                    2 => Asks::End(Stop::Now),
                    _ => Asks::Leave,
                }
            }
            () = received(&mut self.resized) => Asks::Resized,
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        // The stream of signals does not end.
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The mask of ignored signals in `/proc/self/status`; empty if it cannot be parsed.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    line.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(set: u64, signal: i32) -> bool {
    let place = u32::try_from(signal - 1).unwrap_or(u32::MAX);
    set.checked_shr(place).unwrap_or(0) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_off_are_seen() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        let set = ignored(status);
        let seen = [1, 2, 12, 13, 14, 15, 0, -1].map(|it| is_in(set, it));
        assert_eq!(seen, [true, false, false, true, false, false, false, false]);
        assert_eq!(ignored(""), 0);
    }
}
