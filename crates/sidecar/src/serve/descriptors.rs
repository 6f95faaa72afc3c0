//! The limit of open files: raised for the allowed connections, or the connections are reduced to fit it.

use anyhow::ensure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a running skill: both ends of three pipes, a directory, a program, a `Cancel`, and the socket of its
/// worker.
const PER_SKILL: usize = 12;
/// Descriptors of the server itself.
const OF_SERVER: usize = 64;
/// With fewer connections the server does not start.
const MIN_CONNECTIONS: usize = 8;

/// Raises the limit of open files as far as needed and allowed, and returns how many connections fit.
///
/// # Errors
/// When fewer than [`MIN_CONNECTIONS`] fit.
pub fn raise_limit(connections: usize, max_concurrent: usize) -> anyhow::Result<usize> {
    let others = OF_SERVER + PER_SKILL * max_concurrent;
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
    let fits = count_fitting(connections, others, available);
    ensure!(
        fits >= MIN_CONNECTIONS.min(connections),
        "the limit of {available} open files is too low for connections; {wanted} are needed"
    );
    if fits < connections {
        tracing::warn!(
            connections = fits,
            "fewer connections are accepted than configured: the limit of open files is {available}"
        );
    }
    Ok(fits)
}

fn count_fitting(connections: usize, others: usize, available: u64) -> usize {
    let available = usize::try_from(available).unwrap_or(usize::MAX);
    connections.min(available.saturating_sub(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_reduced_to_what_fits() {
        assert_eq!(count_fitting(512, 100, 1024), 512);
        assert_eq!(count_fitting(512, 100, 500), 400);
        assert_eq!(count_fitting(512, 100, 50), 0);
        assert_eq!(count_fitting(512, 100, u64::MAX), 512);
    }
}
