//! The end of the logs of a run that failed.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::ResourceExt as _;
use kube::api::LogParams;
use sympozium_api::agent_run::ContainerFailure;
use sympozium_api::limits;
use sympozium_api::text::is_prose;
use tokio::time::timeout;

use super::faults;
use crate::context::Context;

/// Lines of a log that are asked for.
const LINES: i64 = 40;
/// Bytes of a log that are asked for.
const BYTES: i64 = 64 << 10;
/// Bytes of all logs of a run that are kept: its status must stay small.
const ALL: usize = 48 << 10;

/// How long a node may take for one of them.
const DEADLINE: Duration = Duration::from_secs(3);

/// The containers of a failed run with the end of their logs: of those that failed, and of all others that have begun.
pub async fn gather(pod: &Pod, context: &Context) -> Vec<ContainerFailure> {
    let mut failures = faults::failed_containers(pod);
    for name in faults::begun(pod) {
        if failures.len() < limits::CONTAINERS && !failures.iter().any(|it| it.name == name) {
            failures.push(ContainerFailure { name, reason: "did not fail".to_owned(), ..ContainerFailure::default() });
        }
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    let mut room = ALL;
    for failure in &mut failures {
        let parameters = LogParams {
            container: Some(failure.name.clone()),
            tail_lines: Some(LINES),
            limit_bytes: Some(BYTES),
            ..LogParams::default()
        };
        let name = pod.name_any();
        let log = match timeout(DEADLINE, pods.logs(&name, &parameters)).await {
            Ok(Ok(log)) => log,
            // A log that cannot be had is no reason to leave a run as it is.
            Ok(Err(_)) => continue,
            // A node that does not answer once is not asked again: others wait for their turn.
            Err(_) => break,
        };
        let kept = ending(&log, limits::LOG_TAIL.min(room));
        room -= kept.len();
        if !kept.is_empty() {
            failure.log_tail = Some(kept);
        }
    }
    failures
}

/// The end of a log, from the beginning of a line, without what a terminal would act on or nobody sees.
fn ending(log: &str, most: usize) -> String {
    let plain: String = log.chars().map(|it| if is_prose(it) { it } else { '\u{fffd}' }).collect();
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
        assert_eq!(ending("one\ntwo\n", 100), "one\ntwo");
        assert_eq!(ending("first\nsecond\nthird\n", 10), "third");
        assert_eq!(ending("a\u{1b}[31mb\n", 100), "a\u{fffd}[31mb");
        assert_eq!(ending("\ta\u{202e}b\u{3164}\u{26a0}\u{fe0f}\n", 100), "\ta\u{fffd}b\u{fffd}\u{26a0}\u{fe0f}");
        assert_eq!(ending("äöü", 3), "ü");
        assert_eq!(ending("", 10), "");
    }
}
