//! Open files: enough for the connections that are allowed, or fewer connections.

use anyhow::ensure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a skill that runs: three pipes, both ends for a moment, a directory, a program, a wish to cancel,
/// and the socket of its worker.
const FOR_EACH_SKILL: usize = 12;
/// Everything else.
const FOR_THE_REST: usize = 64;
/// Fewer connections are of no use.
const MIN_CONNECTIONS: usize = 8;

/// Raises the limit of open files as far as it is needed and allowed; gives how many connections fit.
///
/// # Errors
/// When there is room for next to none.
pub fn make_room(connections: usize, max_concurrent: usize) -> anyhow::Result<usize> {
    let others = FOR_THE_REST + FOR_EACH_SKILL * max_concurrent;
    let wanted = (connections + others) as u64;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let mut available = current;
    if current < wanted {
        let raised = Rlimit { current: Some(wanted.min(maximum)), maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            available = wanted.min(maximum);
        }
    }
    let fits = fitting(connections, others, available);
    ensure!(
        fits >= MIN_CONNECTIONS.min(connections),
        "the limit of {available} open files leaves no room for connections; {wanted} are needed"
    );
    if fits < connections {
        tracing::warn!(
            connections = fits,
            "fewer connections are taken than allowed: the limit of open files is {available}"
        );
    }
    Ok(fits)
}

fn fitting(connections: usize, others: usize, available: u64) -> usize {
    let available = usize::try_from(available).unwrap_or(usize::MAX);
    connections.min(available.saturating_sub(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out() {
        assert_eq!(fitting(512, 100, 1024), 512);
        assert_eq!(fitting(512, 100, 500), 400);
        assert_eq!(fitting(512, 100, 50), 0);
        assert_eq!(fitting(512, 100, u64::MAX), 512);
    }
}
