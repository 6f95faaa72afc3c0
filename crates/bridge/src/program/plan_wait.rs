//! Waits for a plan that is not there yet, as in a sandbox that was started before its run.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_program::{Failure, ShutdownSignals};
use tokio::time::{Instant, sleep};

use super::{build_runtime, input_failure};
use crate::inputs::{InputError, plan_path, read_plan};

/// Polling interval. Watching would cost no less: the kubelet puts a symlink to a symlink into place.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of log lines while waiting.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

pub fn wait_for_plan(input: &Path, digest: &Digest, limit: Duration) -> Result<RunPlan, Failure> {
    if let Some(plan) = read_plan(input, digest).map_err(input_failure)? {
        return Ok(plan);
    }
    // A runtime for this alone, dropped before the lockdown. It starts no thread, and it handles SIGTERM, which PID 1
    // of a container would otherwise ignore.
    build_runtime()?.block_on(poll_plan(input, digest, limit))
}

async fn poll_plan(input: &Path, digest: &Digest, limit: Duration) -> Result<RunPlan, Failure> {
    let path = plan_path(input);
    let mut signals = ShutdownSignals::listen()?;
    let start = Instant::now();
    let mut logged_at = None;
    loop {
        if let Some(plan) = read_plan(input, digest).map_err(input_failure)? {
            return Ok(plan);
        }
        let waited = start.elapsed();
        if waited >= limit {
            let missing = InputError::Missing(path);
            let hint = missing.hint();
            let error = anyhow!(missing).context(format!("no plan came in {} s", limit.as_secs()));
            return Err(Failure::new(error, hint));
        }
        if logged_at.is_none_or(|logged_at: Duration| waited - logged_at >= PROGRESS_INTERVAL) {
            let seconds = waited.as_secs();
            tracing::info!(path = %path.display(), seconds, "waiting for the run's plan");
            logged_at = Some(waited);
        }
        tokio::select! {
            () = sleep(POLL_INTERVAL) => {}
            _ = signals.recv() => return Err(terminated_failure()),
        }
    }
}

fn terminated_failure() -> Failure {
    Failure::new(anyhow!("asked to end before there was a run"), "this is how a sandbox ends that no run has claimed")
}
