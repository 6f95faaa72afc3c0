//! What a request asks of the executor, and what its answer says about what came of it.
//!
//! Exit codes are those of the shell and of `timeout(1)`, so that a caller can tell by the number alone:
//! 124 timed out, 125 the executor refused or failed, 126 not executable, 127 not found, 128+N signal N.

use std::time::Duration;

use sympozium_exec::lookup::LookupError;
use sympozium_exec::request::DEFAULT_OUTPUT_BYTES;
use sympozium_exec::{CapturedOutput, Outcome, Request, RunError};
use sympozium_ipc::RequestId;
use sympozium_ipc::message::{EXECUTOR_FAILED, ExecRequest, ExecResult, ResultMeta, Truncated};
use sympozium_program::error_chain;

use crate::isolation::Isolation;

/// Our own timer ended the command.
const TIMED_OUT: i64 = 124;
const NOT_EXECUTABLE: i64 = 126;
const NOT_FOUND: i64 = 127;

/// What the executor is asked for. `argv` goes past the shell; anything else is a line for it.
pub fn command(request: &ExecRequest, max_timeout: Duration) -> Request {
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

/// What came of a request that was handed to the executor.
pub fn of_run(id: &RequestId, ran: &Result<Outcome, RunError>, isolation: &Isolation) -> ExecResult {
    match ran {
        Ok(outcome) => of_outcome(id, outcome, isolation),
        Err(error) => of_error(id, error, isolation),
    }
}

fn of_outcome(id: &RequestId, outcome: &Outcome, isolation: &Isolation) -> ExecResult {
    let exit_code = if outcome.timed_out { TIMED_OUT } else { outcome.termination.exit_code().into() };
    let (stdout, cut_stdout) = text(&outcome.stdout);
    let (stderr, cut_stderr) = text(&outcome.stderr);
    ExecResult {
        id: id.clone(),
        exit_code,
        stdout,
        stderr,
        timed_out: outcome.timed_out,
        meta: Some(ResultMeta {
            outcome: outcome.cancelled.then(|| "cancelled".to_owned()),
            truncated: (cut_stdout || cut_stderr).then_some(Truncated { stdout: cut_stdout, stderr: cut_stderr }),
            duration_millis: Some(outcome.duration.as_millis().try_into().unwrap_or(u64::MAX)),
            isolation: Some(isolation.as_json().clone()),
        }),
    }
}

/// The text of a stream, and whether it is not all of it. Replacing invalid bytes makes it longer, so it is cut again.
fn text(stream: &CapturedOutput) -> (String, bool) {
    let mut text = stream.text().into_owned();
    let fits = text.floor_char_boundary(DEFAULT_OUTPUT_BYTES);
    let cut = stream.is_truncated() || fits < text.len();
    text.truncate(fits);
    (text, cut)
}

fn of_error(id: &RequestId, error: &RunError, isolation: &Isolation) -> ExecResult {
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
    let mut answer = match error {
        RunError::WorkingDirectory { path, source } => {
            let text = format!("skill-sidecar: the field `workDir`: {}: {source}", path.display());
            attested(ExecResult::failed(id.clone(), outcome, text), isolation)
        }
        _ => of_failure(id, outcome, error, isolation),
    };
    answer.exit_code = exit_code;
    answer
}

/// The answer to a request of which no outcome can be told, and why.
pub fn of_failure(id: &RequestId, outcome: &str, error: &dyn std::error::Error, isolation: &Isolation) -> ExecResult {
    let mut stderr = format!("skill-sidecar: {}", error_chain(error));
    stderr.truncate(stderr.floor_char_boundary(DEFAULT_OUTPUT_BYTES));
    attested(ExecResult::failed(id.clone(), outcome, stderr), isolation)
}

/// Every answer says what isolation is live: a bridge takes one that does not for an executor that has none.
fn attested(mut answer: ExecResult, isolation: &Isolation) -> ExecResult {
    let meta = answer.meta.get_or_insert_default();
    meta.isolation = Some(isolation.as_json().clone());
    answer
}

/// The same answer without what made it large, for a volume that is nearly full.
pub fn without_output(answer: &ExecResult) -> ExecResult {
    ExecResult {
        id: answer.id.clone(),
        exit_code: answer.exit_code,
        stdout: String::new(),
        stderr: "skill-sidecar: the volume has no room for the output\n".to_owned(),
        timed_out: answer.timed_out,
        meta: Some(ResultMeta {
            truncated: Some(Truncated { stdout: !answer.stdout.is_empty(), stderr: !answer.stderr.is_empty() }),
            isolation: answer.meta.as_ref().and_then(|it| it.isolation.clone()),
            ..ResultMeta::default()
        }),
    }
}
