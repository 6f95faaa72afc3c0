//! `sympozium approvals`, `approve`, `deny`: lists the questions of runs and votes on them.
//!
//! An approval is valid for the hash of one exact action. Either the action is shown on this terminal before the vote,
//! or the command line names the hash.

pub mod arguments;
pub mod pending;
mod select;
#[cfg(test)]
mod tests;

pub use arguments::{ApprovalsArguments, ApproveArguments, DenyArguments};

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use sympozium_local::control::MAX_REASON_CHARS;
use sympozium_runs::{PendingQuestion, RunStore, VoteChoice, VoteResult};

use crate::arguments::OutputFormat;
use crate::backend;
use crate::failure::{FAILED, Failure};
use crate::output::{print_stderr, print_stdout, to_json};
use pending::{QuestionView, display_name, format_question};
use select::{Selection, select};
use sympozium_api::text::printable;

/// Bytes read from the prompt.
const MAX_INPUT_BYTES: u64 = 1024;

pub fn list(arguments: &ApprovalsArguments) -> Result<ExitCode, Failure> {
    let store = backend::open_store(&arguments.cluster)?;
    let pending = list_questions(&*store)?;
    match arguments.output {
        OutputFormat::Json => {
            let all: Vec<_> = pending.iter().map(QuestionView::new).collect();
            print_stdout(&to_json(&all)?)?;
        }
        OutputFormat::Text if pending.is_empty() => print_stderr("there are no pending questions"),
        OutputFormat::Text => {
            let target = store.target();
            let texts: Vec<String> = pending.iter().map(|question| format_question(question, &target)).collect();
            print_stdout(&texts.join("\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the pending questions, and warns of runs that do not answer.
fn list_questions(store: &dyn RunStore) -> Result<Vec<PendingQuestion>, Failure> {
    let questions = store.questions()?;
    for warning in &questions.warnings {
        print_stderr(warning);
    }
    Ok(questions.items)
}

pub fn approve(arguments: &ApproveArguments) -> Result<ExitCode, Failure> {
    let reason = check_reason(arguments.reason.as_deref())?;
    let wanted = Selection { words: &arguments.words, actions: &arguments.actions, all: arguments.all };
    let store = backend::open_store(&arguments.cluster)?;
    let questions = select(list_questions(&*store)?, &|run| Ok(store.find(run)?.uid), &wanted)?;
    let is_unseen = |it: &&PendingQuestion| !arguments.actions.contains(&it.question.action);
    let unseen = questions.iter().filter(is_unseen).count();
    if unseen > 0 && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::new(
            anyhow!("nothing was approved: without a terminal, the action cannot be shown before it is approved"),
            "`sympozium approvals` prints the action and its hash; name the hash with --action sha256:…",
        ));
    }
    let choice = match arguments.for_the_run {
        true => VoteChoice::YesForTheRun,
        false => VoteChoice::Yes,
    };
    let mut code = ExitCode::SUCCESS;
    for question in &questions {
        if is_unseen(&question) {
            print_stderr(format_question(question, &store.target()).trim_end());
            if !arguments.yes && !confirm()? {
                print_stderr("not approved; the question is still pending");
                code = ExitCode::from(FAILED);
                continue;
            }
        }
        if !vote(&*store, question, choice, reason)? {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

pub fn deny(arguments: &DenyArguments) -> Result<ExitCode, Failure> {
    let reason = check_reason(arguments.reason.as_deref())?;
    let wanted = Selection { words: &arguments.words, actions: &arguments.actions, all: arguments.all };
    let store = backend::open_store(&arguments.cluster)?;
    let mut code = ExitCode::SUCCESS;
    for question in &select(list_questions(&*store)?, &|run| Ok(store.find(run)?.uid), &wanted)? {
        if !vote(&*store, question, VoteChoice::No, reason)? {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

fn check_reason(reason: Option<&str>) -> Result<Option<&str>, Failure> {
    match reason {
        Some(reason) if reason.chars().count() > MAX_REASON_CHARS => Err(Failure::usage(
            anyhow!("the reason has more than {MAX_REASON_CHARS} characters"),
            "shorten it; the model reads the reason",
        )),
        reason => Ok(reason),
    }
}

/// Submits a vote and prints its effect. Returns whether the run accepted it.
fn vote(
    store: &dyn RunStore,
    question: &PendingQuestion,
    choice: VoteChoice,
    reason: Option<&str>,
) -> Result<bool, Failure> {
    let name = display_name(question);
    let failed = |error: anyhow::Error| {
        Failure::new(
            error.context(format!("it is unknown whether the vote on {name} was counted")),
            format!("`sympozium approvals{}` lists the question if it is still pending", store.target().as_str()),
        )
    };
    let result = store.vote(question, choice, reason).map_err(failed)?;
    let text = match (result, choice) {
        (VoteResult::Refused(why), _) => {
            print_stderr(&format!("error: the vote on {name} was refused: {}", printable(&why)));
            return Ok(false);
        }
        (VoteResult::MoreNeeded(1), _) => format!("recorded: {name}: 1 more approval is required"),
        (VoteResult::MoreNeeded(more), _) => format!("recorded: {name}: {more} more approvals are required"),
        (VoteResult::Recorded, _) => {
            format!("recorded: {name}: you cannot read the run's plan, which has the number of required approvals")
        }
        (VoteResult::Decided, VoteChoice::No) => format!("denied: {name}"),
        (VoteResult::Decided, VoteChoice::Yes) => format!("approved: {name}"),
        (VoteResult::Decided, VoteChoice::YesForTheRun) => {
            format!("approved: {name}, for every repetition of this action in the run")
        }
    };
    print_stdout(&(text + "\n"))?;
    Ok(true)
}

/// Asks on the terminal. Every input but `y` and `yes` means no.
fn confirm() -> Result<bool, Failure> {
    let ask = || -> anyhow::Result<bool> {
        let mut stderr = io::stderr().lock();
        // Input typed before the prompt is not an answer to it.
        let _ = rustix::termios::tcflush(io::stdin(), rustix::termios::QueueSelector::IFlush);
        write!(stderr, "Approve this? [y/N] ")?;
        stderr.flush()?;
        let mut typed = String::new();
        io::stdin().lock().take(MAX_INPUT_BYTES).read_line(&mut typed)?;
        Ok(["y", "yes"].contains(&typed.trim().to_lowercase().as_str()))
    };
    ask()
        .context("cannot ask at this terminal")
        .map_err(|error| Failure::new(error, "name the exact action with --action sha256:…"))
}
