//! `sympozium demo`: an agent does a job, then attacks its sandbox.
//!
//! Only the turns of the model are scripted. The run is admitted, planned and realised like any other, and the printed
//! result of each attack is the observed one. An attack that is not stopped is reported as such and fails the command.

mod steps;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser};
use serde_json::Value;
use sympozium_api::text::{Chars, printable, truncate};
use sympozium_gateway::run_api::local::Vote;

use crate::failure::{FAILED, Failure};
use crate::output::print_stdout;
use crate::run::arguments::RunArguments;
use crate::run::local::start;
use crate::run::prepare::prepare;
use crate::run::signals::{SignalRequest, Signals};
use steps::{CallResult, STEPS, Step};
use sympozium_local::realise::LocalRun;
use sympozium_local::receipts::verify_run;
use sympozium_local::state::{RunDirectory, StateDirectory, replace_file};
use sympozium_runs::RunEnd;
use sympozium_runs::{Event, Question};

const MANIFESTS: &str = include_str!("demo/demo.yaml");

/// The arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Run the demo with its scripted model, which takes a few seconds and needs no network:
    sympozium demo

  Run the same agent, skills and policy with a real model (you are asked to approve the refund):
    sympozium demo --model anthropic/claude-sonnet-4-20250514

  Print the manifests, then explain and run them:
    sympozium demo --print > demo.yaml && sympozium explain demo.yaml && sympozium run demo.yaml

Exit codes:
  0  the job was done and every attack was stopped
  1  the job was not done, an attack was not stopped, or the command failed
  2  the command line is invalid")]
pub struct DemoArguments {
    /// Use this model instead of the scripted one, as provider/model.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    pub model: Option<String>,

    /// Print the manifests of the demo instead of running it.
    #[arg(long, conflicts_with = "model")]
    pub print: bool,
}

pub fn run(arguments: &DemoArguments) -> Result<ExitCode, Failure> {
    if arguments.print {
        print_stdout(MANIFESTS)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = StateDirectory::open()?;
    let hint = "check that the disk of the state directory is not full";
    let directory = state.make_subdirectory("demo").map_err(|error| Failure::new(error, hint))?;
    let manifests = directory.join("demo.yaml");
    replace_file(&manifests, MANIFESTS.as_bytes()).map_err(|error| Failure::new(error, hint))?;
    let mut words = vec!["run".into(), manifests.into_os_string()];
    if let Some(model) = &arguments.model {
        words.extend(["--model".into(), model.into()]);
        let arguments = RunParser::parse_from(words).run;
        return crate::run::run(&arguments);
    }
    words.extend(["--policy".into(), "shop".into()]);
    let arguments = RunParser::parse_from(words).run;
    let prepared = prepare(&arguments, &state)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")
        .map_err(|error| Failure::new(error, "raise the limit of open files (`ulimit -n`), or report this as a bug"))?;
    runtime.block_on(async {
        // Before the run exists, so that no signal can end this process without a teardown.
        let mut signals = Signals::listen()?;
        let run = start(prepared, &state, &mut signals).await?;
        show_events(run, signals).await
    })
}

#[derive(Debug, Parser)]
struct RunParser {
    #[command(flatten)]
    run: RunArguments,
}

async fn show_events(run: LocalRun, mut signals: Signals) -> Result<ExitCode, Failure> {
    let mut progress = Progress::default();
    let mut events = run.handle.events.reader();
    loop {
        let timed = tokio::select! {
            timed = events.next() => timed,
            request = signals.next() => {
                match request {
                    SignalRequest::Stop(level) => run.handle.stop(level),
                    SignalRequest::Exit => return Ok(ExitCode::from(FAILED)),
                    SignalRequest::Resized => {}
                }
                continue;
            }
        };
        match &timed.event {
            Event::Planned { skills, workspace, .. } => {
                print("An agent with two skills on this machine: no cluster, no daemon, no container runtime.")?;
                print(&format!("  skills     {}, each in a sandbox of its own", skills.join(" and ")))?;
                if let Some(workspace) = workspace {
                    print(&format!("  workspace  {}", workspace.display()))?;
                }
            }
            Event::Isolated { part, report } if part == "skill-logs" => {
                let guarantees: Vec<&str> = (report.guarantees.keys())
                    .filter(|guarantee| report.holds(**guarantee))
                    .map(|guarantee| guarantee.as_str())
                    .collect();
                print(&format!("  isolation  {} ({})", guarantees.join(", "), report.profile))?;
            }
            Event::Asked { question } => {
                let vote = scripted_vote(question);
                progress.has_denied |= vote == Vote::Deny;
                // If the question is no longer pending, the run has ended, and its last event says so.
                let _ = run.handle.vote(&question.approval, &question.action, vote, None);
            }
            Event::Transcript { line } => progress.print_line(line)?,
            Event::Warning { text } => print(&format!("  note: {}", printable(text.trim())))?,
            Event::Ended { outcome, leftovers, .. } => {
                return print_end(&run, &progress, outcome, leftovers);
            }
            _ => {}
        }
    }
}

/// The scripted approver: approves the refund that the task asks for, denies any other.
fn scripted_vote(question: &Question) -> Vote {
    let is_task = question.shown.contains("1042") && question.shown.contains("12.50");
    match is_task {
        true => Vote::Approve,
        false => Vote::Deny,
    }
}

/// Maximum length of the result of a step that is not the expected one.
const MAX_RESULT: Chars = Chars(300);

/// What has been printed so far.
#[derive(Default)]
struct Progress {
    results: BTreeMap<String, bool>,
    last_heading: Option<&'static str>,
    /// Whether the scripted approver has denied a question.
    has_denied: bool,
}

impl Progress {
    /// Prints a line of the transcript if it is the result of one of the demo's steps.
    fn print_line(&mut self, line: &Value) -> Result<(), Failure> {
        let text = |field: &str| line.get(field).and_then(Value::as_str);
        let (Some("result"), Some(id)) = (text("kind"), text("id")) else {
            return Ok(());
        };
        let Some(step) = STEPS.iter().find(|step| step.call == id) else {
            return Ok(());
        };
        let failed = line.get("failed").and_then(Value::as_bool) == Some(true);
        let result = CallResult { failed, text: text("text").unwrap_or_default(), was_denied: self.has_denied };
        let is_expected = (step.is_expected)(&result);
        self.results.insert(id.to_owned(), is_expected);
        if self.last_heading != Some(step.heading) {
            self.last_heading = Some(step.heading);
            print(&format!("\n{}", step.heading))?;
        }
        let verdict = match (is_expected, step.is_attack) {
            (true, false) => "done   ",
            (true, true) => "stopped",
            (false, false) => "FAILED ",
            (false, true) => "NOT STOPPED",
        };
        print(&format!("  {verdict}  {:<47}  {}", step.action, explain_result(step, &result, is_expected)))
    }
}

/// Why the result is the expected one, or the unexpected result.
fn explain_result(step: &Step, result: &CallResult<'_>, is_expected: bool) -> String {
    match is_expected {
        true => step.reason.to_owned(),
        false => printable(truncate(result.text.trim(), MAX_RESULT)).into_owned(),
    }
}

fn print_end(run: &LocalRun, progress: &Progress, outcome: &RunEnd, leftovers: &[String]) -> Result<ExitCode, Failure> {
    print("\nAfter the run")?;
    let verified = verify_receipts(&run.directory);
    let receipts = match &verified {
        Ok(text) => format!("  done     {:<47}  {text}", "receipts of all decisions and actions"),
        Err(error) => format!("  FAILED   receipts: {error:#}"),
    };
    print(&receipts)?;
    match leftovers {
        [] => print(&format!("  done     {:<47}  none left, verified", "processes, mounts, sockets, secrets"))?,
        _ => print(&format!("  FAILED   left over: {}", leftovers.join(", ")))?,
    }
    let record = run.directory.read_record().map_err(|error| Failure::new(error, "`sympozium runs` lists runs"))?;
    let uid = &record.uid[..8];
    // The path that the user typed: after `make demo` the program is not in PATH.
    let program = std::env::args().next().unwrap_or_default();
    print("\nNext:")?;
    for (words, what) in [
        (format!("logs {uid}"), "print the transcript"),
        (format!("audit {uid}"), "print the receipts, with the isolation of each action"),
        ("demo --print".to_owned(), "print the manifests, to change and run them"),
    ] {
        print(&format!("  {program} {words:<15}  {what}"))?;
    }
    let all_expected = STEPS.iter().all(|step| progress.results.get(step.call) == Some(&true));
    let succeeded =
        all_expected && verified.is_ok() && leftovers.is_empty() && matches!(outcome, RunEnd::Succeeded { .. });
    if !succeeded {
        print(&format!("\nThe demo failed. The state of the run: {}.", outcome.as_str()))?;
        if let RunEnd::Failed { why } | RunEnd::Refused { why } = outcome {
            print(&printable(why.trim()))?;
        }
        return Ok(ExitCode::from(FAILED));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(line: &str) -> Result<(), Failure> {
    print_stdout(&format!("{line}\n"))
}

/// Verifies the receipts of a run, and describes them. The error is the first defect.
fn verify_receipts(directory: &RunDirectory) -> anyhow::Result<String> {
    let record = directory.read_record()?;
    Ok(verify_run(directory, &record, &mut |_, _| true)?.to_string())
}
