//! Reads the last log lines of a failed run.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::ResourceExt as _;
use kube::api::LogParams;
use sympozium_api::agent_run::ContainerFailure;
use sympozium_api::limits;
use sympozium_api::text::is_prose;
use tokio::time::timeout;

use super::pod_status;
use crate::context::Context;

/// Lines to request per container.
const MAX_LINES: i64 = 40;
/// Bytes to request per container.
const MAX_BYTES: i64 = 64 << 10;
/// Limit for all logs of a run, in bytes: its status must stay small.
const MAX_TOTAL_BYTES: usize = 48 << 10;

/// Bounds the request for one log.
const LOG_TIMEOUT: Duration = Duration::from_secs(3);

/// The containers of a failed run with the end of their logs: those that failed, then all others that have started.
pub async fn collect_failures(namespace: &str, pod: &Pod, context: &Context) -> Vec<ContainerFailure> {
    let mut failures = pod_status::failed_containers(pod);
    for name in pod_status::started_containers(pod) {
        if failures.len() < limits::CONTAINERS && !failures.iter().any(|failure| failure.name == name) {
            failures.push(ContainerFailure { name, reason: "did not fail".to_owned(), ..ContainerFailure::default() });
        }
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let mut room = MAX_TOTAL_BYTES;
    for failure in &mut failures {
        let parameters = LogParams {
            container: Some(failure.name.clone()),
            tail_lines: Some(MAX_LINES),
            limit_bytes: Some(MAX_BYTES),
            ..LogParams::default()
        };
        let name = pod.name_any();
        let log = match timeout(LOG_TIMEOUT, pods.logs(&name, &parameters)).await {
            Ok(Ok(log)) => log,
            // A log that cannot be read must not block the end of the run.
            Ok(Err(_)) => continue,
            // A node that does not answer once is not asked again: other runs are waiting.
            Err(_) => break,
        };
        let kept = log_tail(&log, limits::LOG_TAIL.min(room));
        room -= kept.len();
        if !kept.is_empty() {
            failure.log_tail = Some(kept);
        }
    }
    failures
}

/// The end of a log, from the beginning of a line, without control or invisible characters.
fn log_tail(log: &str, most: usize) -> String {
    let plain: String = log.chars().map(|character| if is_prose(character) { character } else { '\u{fffd}' }).collect();
    let plain = plain.trim_end();
    if plain.len() <= most {
        return plain.to_owned();
    }
    let mut from = plain.len() - most;
    while !plain.is_char_boundary(from) {
        from += 1;
    }
    let cut = &plain[from..];
    match cut.split_once('\n') {
        Some((_, whole)) => whole.to_owned(),
        None => cut.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_whole_lines_and_plain() {
        assert_eq!(log_tail("one\ntwo\n", 100), "one\ntwo");
        assert_eq!(log_tail("first\nsecond\nthird\n", 10), "third");
        assert_eq!(log_tail("a\u{1b}[31mb\n", 100), "a\u{fffd}[31mb");
        assert_eq!(log_tail("\ta\u{202e}b\u{3164}\u{26a0}\u{fe0f}\n", 100), "\ta\u{fffd}b\u{fffd}\u{26a0}\u{fe0f}");
        assert_eq!(log_tail("äöü", 3), "ü");
        assert_eq!(log_tail("", 10), "");
    }
}
