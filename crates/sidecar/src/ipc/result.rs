//! From the request of a file to one of the executor, and from its outcome to the result file.
//!
//! Exit codes are those of the shell and of `timeout(1)`, so that the number alone tells how the command ended:
//! 124 timed out, 125 the executor refused or failed, 126 not executable, 127 not found, 128+N signal N.

use std::time::Duration;

use sympozium_exec::lookup::LookupError;
use sympozium_exec::request::DEFAULT_OUTPUT_BYTES;
use sympozium_exec::{CapturedOutput, Outcome, Request, RunError};
use sympozium_ipc::RequestId;
use sympozium_ipc::message::{EXECUTOR_FAILED, ExecRequest, ExecResult, ResultMeta, Truncated};
use sympozium_program::error_chain;

use crate::isolation::IsolationSummary;

const TIMED_OUT: i64 = 124;
const NOT_EXECUTABLE: i64 = 126;
const NOT_FOUND: i64 = 127;

/// `argv` bypasses the shell; without it the request has a line for the shell.
pub fn build_request(request: &ExecRequest, max_timeout: Duration) -> Request {
    let mut command = if request.argv.is_empty() {
        Request::shell(request.shell_line())
    } else {
        Request::argv(request.argv.iter().map(String::as_str))
    };
    command.working_directory = request.work_dir.as_deref().map(Into::into);
    command.stdin = (request.stdin.as_deref().unwrap_or_default()).into();
    command.timeout = request.effective_timeout(max_timeout);
    command
}

pub fn from_run(id: &RequestId, outcome: &Result<Outcome, RunError>, isolation: &IsolationSummary) -> ExecResult {
    match outcome {
        Ok(outcome) => from_outcome(id, outcome, isolation),
        Err(error) => from_error(id, error, isolation),
    }
}

fn from_outcome(id: &RequestId, outcome: &Outcome, isolation: &IsolationSummary) -> ExecResult {
    let exit_code = if outcome.timed_out { TIMED_OUT } else { outcome.termination.exit_code().into() };
    let (stdout, stdout_truncated) = decode_and_truncate(&outcome.stdout);
    let (stderr, stderr_truncated) = decode_and_truncate(&outcome.stderr);
    ExecResult {
        id: id.clone(),
        exit_code,
        stdout,
        stderr,
        timed_out: outcome.timed_out,
        meta: Some(ResultMeta {
            outcome: outcome.cancelled.then(|| "cancelled".to_owned()),
            truncated: (stdout_truncated || stderr_truncated)
                .then_some(Truncated { stdout: stdout_truncated, stderr: stderr_truncated }),
            duration_millis: Some(outcome.duration.as_millis().try_into().unwrap_or(u64::MAX)),
            isolation: Some(isolation.as_json().clone()),
        }),
    }
}

/// The text of a stream, and whether it was truncated. Replacing invalid bytes makes it longer, so it is truncated again.
fn decode_and_truncate(stream: &CapturedOutput) -> (String, bool) {
    let mut text = stream.text().into_owned();
    let end = text.floor_char_boundary(DEFAULT_OUTPUT_BYTES);
    let is_truncated = stream.is_truncated() || end < text.len();
    text.truncate(end);
    (text, is_truncated)
}

fn from_error(id: &RequestId, error: &RunError, isolation: &IsolationSummary) -> ExecResult {
    let (exit_code, outcome) = match error {
        RunError::Lookup(LookupError::NotFound { .. }) => (NOT_FOUND, "refused"),
        RunError::Lookup(_) | RunError::NotStarted(_) => (NOT_EXECUTABLE, "refused"),
        RunError::Request(_)
        | RunError::Environment(_)
        | RunError::WorkingDirectory { .. }
        | RunError::TooLarge
        | RunError::SandboxGone => (EXECUTOR_FAILED, "refused"),
        RunError::Cancelled => (EXECUTOR_FAILED, "cancelled"),
        RunError::ContactLost(_) | RunError::SupervisorDied | RunError::NotEnded(_) | RunError::Survivors(_) => {
            (EXECUTOR_FAILED, "ambiguous")
        }
    };
    let mut result = match error {
        RunError::WorkingDirectory { path, source } => {
            let text = format!("skill-sidecar: the field `workDir`: {}: {source}", path.display());
            with_isolation(ExecResult::failed(id.clone(), outcome, text), isolation)
        }
        _ => from_failure(id, outcome, error, isolation),
    };
    result.exit_code = exit_code;
    result
}

/// The result of a request without an outcome: `error` says why there is none.
pub fn from_failure(
    id: &RequestId,
    outcome: &str,
    error: &dyn std::error::Error,
    isolation: &IsolationSummary,
) -> ExecResult {
    let mut stderr = format!("skill-sidecar: {}", error_chain(error));
    stderr.truncate(stderr.floor_char_boundary(DEFAULT_OUTPUT_BYTES));
    with_isolation(ExecResult::failed(id.clone(), outcome, stderr), isolation)
}

/// Every result needs it: a bridge treats a result without it as one of an executor without isolation.
fn with_isolation(mut result: ExecResult, isolation: &IsolationSummary) -> ExecResult {
    let meta = result.meta.get_or_insert_default();
    meta.isolation = Some(isolation.as_json().clone());
    result
}

/// The same result without output, for a volume that is nearly full.
pub fn without_output(result: &ExecResult) -> ExecResult {
    ExecResult {
        id: result.id.clone(),
        exit_code: result.exit_code,
        stdout: String::new(),
        stderr: "skill-sidecar: the volume has no room for the output\n".to_owned(),
        timed_out: result.timed_out,
        meta: Some(ResultMeta {
            truncated: Some(Truncated { stdout: !result.stdout.is_empty(), stderr: !result.stderr.is_empty() }),
            isolation: result.meta.as_ref().and_then(|meta| meta.isolation.clone()),
            ..ResultMeta::default()
        }),
    }
}
