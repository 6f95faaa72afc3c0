//! The agent process: lock-down, inputs, connection, and shutdown.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use sympozium_api::run_plan::AgentView;
use sympozium_ipc::door::{AgentResult, SHUTDOWN_ERROR};
use sympozium_program::{Failure, ShutdownSignals, start_logging};
use tokio::time::sleep;

use crate::agent_loop::AgentLoop;
use crate::arguments::Arguments;
use crate::door::{Door, DoorError};
use crate::restrict;
use crate::run_clock::RunClock;
use crate::settings::Settings;
use crate::status::Status;
use crate::tools::files::{Commands, Roots};
use crate::tools::native::{NativeTool, NativeTools, TOOLS, ToolContext};
use crate::transcript::{Transcript, TranscriptLine};
use crate::view::{self, ViewError};

const EXIT_NO_ANSWER: u8 = 1;
/// How long reports, transcript and result may take after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the program. The first argument is the program's name.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    main_with(arguments, TOOLS)
}

/// As [`main`] with other native tools, for tests and for custom runners.
pub fn main_with(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    tools: &'static [NativeTool],
) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        // Help and version end here, too, with exit code 0.
        Err(error) => error.exit(),
    };
    start_logging(&arguments.log);
    start(&arguments, tools).unwrap_or_else(|failure| failure.print())
}

/// The order matters: nothing is read before the network is gone, and nothing but the view before file access is
/// restricted.
fn start(arguments: &Arguments, tools: &'static [NativeTool]) -> Result<ExitCode, Failure> {
    restrict::lock_down()?;
    // The event loop is single-threaded; file tools use blocking threads, which inherit the restrictions.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .context("the runtime cannot be started")?;
    let code = runtime.block_on(run_until_signal(arguments, tools));
    // A file tool may hang on a disk, so do not wait for its thread. The bridge sees the connection close.
    runtime.shutdown_background();
    code
}

/// Runs the agent until it is done or a signal arrives. Everything in flight is abandoned then.
async fn run_until_signal(arguments: &Arguments, tools: &'static [NativeTool]) -> Result<ExitCode, Failure> {
    let mut signals = ShutdownSignals::listen()?;
    let view = tokio::select! {
        view = view::wait_for_view(&arguments.input, arguments.wait_for_input()) => view.map_err(view_failure)?,
        _ = signals.recv() => {
            let error = anyhow::anyhow!("asked to end before there was a run");
            return Err(Failure::new(error, "this is how a sandbox ends that no run has claimed"));
        }
    };
    let settings = Settings::from_env(&view, |name| std::env::var(name).ok()).map_err(|error| {
        let hint = format!("correct {} in the run's env, or leave it out", error.variable);
        Failure::new(error, hint)
    })?;
    let context = restrict_to_view(&view, &settings, arguments.image.as_deref())?;
    let clock = Arc::new(RunClock::new(Duration::from_secs(view.run_seconds)));
    let connecting = Door::connect(&arguments.door, arguments.wait_for_bridge(), Arc::clone(&clock));
    let (door, mut connection) = tokio::select! {
        connected = connecting => connected.map_err(|error| connect_failure(error, &arguments.door))?,
        _ = signals.recv() => return Ok(ExitCode::from(EXIT_NO_ANSWER)),
    };
    // The run's time starts when the agent is connected.
    clock.set_remaining(clock.total());
    let (status, status_sender) = Status::start(door.clone());
    let (transcript, transcript_sender) = Transcript::start(door.clone(), view.limits.transcript_bytes);
    let (status, transcript) = (Arc::new(status), Arc::new(transcript));
    let native = NativeTools { context, tools };
    let mut agent = AgentLoop::new(view, settings, native, door.clone(), clock, status, Arc::clone(&transcript));
    let caller = agent.caller();
    let result = tokio::select! {
        result = agent.run() => result.map_err(bridge_failure)?,
        _ = signals.recv() => cancelled(),
        _ = &mut connection => return Err(bridge_failure(DoorError::Closed(None))),
    };
    // Cancel everything in flight.
    drop(agent);
    status_sender.abort();
    let code = exit_code(&result);
    let finish = async {
        caller.flush_reports().await;
        transcript.add(&last_line(&result)).await;
        drop(transcript);
        let _ = transcript_sender.await;
        door.result(&result).await
    };
    // After a signal, even one that arrives now, do not wait for a slow bridge.
    let shutdown_timeout = async {
        if !is_cancelled(&result) {
            signals.recv().await;
        }
        sleep(SHUTDOWN_TIMEOUT).await;
    };
    let finished = tokio::select! {
        finished = finish => finished,
        () = shutdown_timeout => Ok(()),
    };
    // The bridge ends the run when the connection closes.
    connection.abort();
    finished.map_err(bridge_failure)?;
    Ok(code)
}

/// Restricts the process to the files of the view, and opens them for the native tools.
fn restrict_to_view(view: &AgentView, settings: &Settings, image: Option<&Path>) -> Result<ToolContext, Failure> {
    let writable_dirs = [view.workspace(), view.scratch()];
    restrict::restrict_files(&view.roots, &writable_dirs, image)?;
    restrict::forbid_exec()?;
    let roots = restrict::roots_with_image(&view.roots, image);
    let roots =
        Roots::open(&roots, &writable_dirs).with_workspace(view.workspace()).with_commands(Commands::from_view(view));
    Ok(ToolContext { roots, skills: view.skills.clone(), max_result_bytes: settings.result_bytes })
}

fn exit_code(result: &AgentResult) -> ExitCode {
    match result {
        AgentResult::Answer { .. } => ExitCode::SUCCESS,
        AgentResult::Failure { error } => {
            tracing::error!(%error, "no answer");
            ExitCode::from(EXIT_NO_ANSWER)
        }
    }
}

fn last_line(result: &AgentResult) -> TranscriptLine<'_> {
    match result {
        AgentResult::Answer { text } => TranscriptLine::End { answer: Some(text), error: None },
        AgentResult::Failure { error } => TranscriptLine::End { answer: None, error: Some(error) },
    }
}

fn cancelled() -> AgentResult {
    AgentResult::Failure { error: SHUTDOWN_ERROR.to_owned() }
}

fn is_cancelled(result: &AgentResult) -> bool {
    matches!(result, AgentResult::Failure { error } if error == SHUTDOWN_ERROR)
}

fn view_failure(error: ViewError) -> Failure {
    let hint = match &error {
        ViewError::Missing { .. } => {
            "`kubectl describe pod` says which volume could not be mounted; elsewhere name the directory with --input"
        }
        ViewError::Unreadable { .. } => "the agent's user must be able to read it",
        ViewError::TooLarge(_) | ViewError::Invalid { .. } => {
            "plan the run again: agent and planner must be of one release"
        }
    };
    Failure::new(error, hint)
}

fn connect_failure(error: io::Error, door: &Path) -> Failure {
    let error = anyhow::Error::new(error).context(format!("the bridge cannot be reached in {}", door.display()));
    let hint = "the bridge's own log says why it did not start, or whom it let in before";
    Failure::new(error, hint)
}

fn bridge_failure(error: DoorError) -> Failure {
    let hint = "the bridge ended the run, or broke down: its log and the run's report say which";
    Failure::new(error, hint)
}
