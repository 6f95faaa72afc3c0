//! The process around the agent: what it gives up, what it reads, and in which order.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use sympozium_ipc::door::{AgentResult, SHUTDOWN_ERROR};
use sympozium_program::{Failure, ShutdownSignals, start_logging};
use tokio::time::sleep;

use crate::arguments::Arguments;
use crate::door::{Door, DoorError};
use crate::restrict;
use crate::run::Run;
use crate::settings::Settings;
use crate::status::Status;
use crate::time::Time;
use crate::tools::files::{Commands, Roots};
use crate::tools::native::{Native, NativeTool, Own, TOOLS};
use crate::transcript::{Line, Transcript};
use crate::view::{self, UnusableView};

/// Exit code of a run without an answer.
const NO_ANSWER: u8 = 1;
/// How long the last words may take, when nobody waits for an answer any more.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The whole program: parses the command line, whose first word is the program's name, and does what it says.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    main_with(arguments, TOOLS)
}

/// The same, with these native tools: for tests, and for whoever builds a runner of their own.
pub fn main_with(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    tools: &'static [NativeTool],
) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        // Help and versions come this way, too, and are no failures.
        Err(error) => error.exit(),
    };
    start_logging(&arguments.log);
    start(&arguments, tools).unwrap_or_else(|failure| failure.print())
}

/// One straight sequence. Nothing is read before the network is gone; nothing but the view is read before the files are.
fn start(arguments: &Arguments, tools: &'static [NativeTool]) -> Result<ExitCode, Failure> {
    restrict::lock_down()?;
    // One thread for everything that waits; file tools have others, which are as restricted as this one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .context("the runtime cannot be started")?;
    let code = runtime.block_on(ended_or_done(arguments, tools));
    // A file tool may hang on a disk for ever. Nobody waits for it: the bridge sees the end of the connection.
    runtime.shutdown_background();
    code
}

/// Works until it is done, or until somebody says that it is to end. Whatever is under way is given up then.
async fn ended_or_done(arguments: &Arguments, tools: &'static [NativeTool]) -> Result<ExitCode, Failure> {
    let mut signals = ShutdownSignals::listen()?;
    let mut asked_to_end = async || {
        signals.recv().await;
    };
    let view = tokio::select! {
        view = view::appearing(&arguments.input, arguments.wait_for_input()) => view.map_err(unusable)?,
        () = asked_to_end() => {
            let error = anyhow::anyhow!("asked to end before there was a run");
            return Err(Failure::new(error, "this is how a sandbox ends that no run has claimed"));
        }
    };
    let settings = Settings::read(&view, |name| std::env::var(name).ok()).map_err(|error| {
        let hint = format!("correct {} in the run's env, or leave it out", error.variable);
        Failure::new(error, hint)
    })?;
    let image = arguments.image.as_deref();
    let places = [view.workspace(), view.scratch()];
    restrict::narrow(&view.roots, &places, image)?;
    restrict::start_nothing()?;
    let roots = restrict::with_image(&view.roots, image);
    let own = Own {
        roots: Roots::open(&roots, &places).with_workspace(view.workspace()).with_commands(Commands::of(&view)),
        skills: view.skills.clone(),
        most: settings.result_bytes,
    };
    let time = Arc::new(Time::new(Duration::from_secs(view.run_seconds)));
    let connecting = Door::connect(&arguments.door, arguments.wait_for_bridge(), Arc::clone(&time));
    let (door, mut connection) = tokio::select! {
        connected = connecting => connected.map_err(|error| no_bridge(error, &arguments.door))?,
        () = asked_to_end() => return Ok(ExitCode::from(NO_ANSWER)),
    };
    // The run begins when its agent is there.
    time.set_left(time.whole());
    let (status, status_sender) = Status::start(door.clone());
    let (transcript, transcript_sender) = Transcript::start(door.clone(), view.limits.transcript_bytes);
    let (status, transcript) = (Arc::new(status), Arc::new(transcript));
    let mut run = Run::new(view, settings, Native { own, tools }, door.clone(), time, status, Arc::clone(&transcript));
    let caller = run.caller();
    let result = tokio::select! {
        result = run.work() => result.map_err(gone)?,
        () = asked_to_end() => cancelled(),
        _ = &mut connection => return Err(gone(DoorError::Gone(None))),
    };
    // Everything that was under way ends here.
    drop(run);
    status_sender.abort();
    let code = match &result {
        AgentResult::Answer { .. } => ExitCode::SUCCESS,
        AgentResult::Failure { error } => {
            tracing::error!(%error, "no answer");
            ExitCode::from(NO_ANSWER)
        }
    };
    let telling = async {
        caller.reported().await;
        transcript.add(&last_line(&result)).await;
        drop(transcript);
        let _ = transcript_sender.await;
        door.result(&result).await
    };
    // Whoever was asked to end, be it by now, does not wait for a bridge that is slow.
    let hurried = async {
        if !is_cancelled(&result) {
            asked_to_end().await;
        }
        sleep(LAST_WORDS).await;
    };
    let told = tokio::select! {
        told = telling => told,
        () = hurried => Ok(()),
    };
    // The end of the connection is the end of the agent: the bridge ends the run then.
    connection.abort();
    told.map_err(gone)?;
    Ok(code)
}

fn last_line(result: &AgentResult) -> Line<'_> {
    match result {
        AgentResult::Answer { text } => Line::End { answer: Some(text), error: None },
        AgentResult::Failure { error } => Line::End { answer: None, error: Some(error) },
    }
}

fn cancelled() -> AgentResult {
    AgentResult::Failure { error: SHUTDOWN_ERROR.to_owned() }
}

fn is_cancelled(result: &AgentResult) -> bool {
    matches!(result, AgentResult::Failure { error } if error == SHUTDOWN_ERROR)
}

fn unusable(error: UnusableView) -> Failure {
    let hint = match &error {
        UnusableView::Missing { .. } => {
            "`kubectl describe pod` says which volume could not be mounted; elsewhere name the directory with --input"
        }
        UnusableView::Unreadable { .. } => "the agent's user must be able to read it",
        UnusableView::TooLarge(_) | UnusableView::NotOne { .. } => {
            "plan the run again: agent and planner must be of one release"
        }
    };
    Failure::new(error, hint)
}

fn no_bridge(error: io::Error, door: &Path) -> Failure {
    let error = anyhow::Error::new(error).context(format!("the bridge cannot be reached in {}", door.display()));
    let hint = "the bridge's own log says why it did not start, or whom it let in before";
    Failure::new(error, hint)
}

fn gone(error: DoorError) -> Failure {
    let hint = "the bridge ended the run, or broke down: its log and the run's report say which";
    Failure::new(error, hint)
}
