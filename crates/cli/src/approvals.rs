//! `sympozium approvals`, `approve`, `deny`: questions of runs, answered from another terminal.
//!
//! An approval is valid for the hash of one exact action. The approver has either been shown that action here, on a
//! terminal, or names the hash: nothing is approved unseen.

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
    let waiting = list_questions(&*store)?;
    match arguments.output {
        OutputFormat::Json => {
            let all: Vec<_> = waiting.iter().map(QuestionView::new).collect();
            print_stdout(&to_json(&all)?)?;
        }
        OutputFormat::Text if waiting.is_empty() => print_stderr("no run waits for a person"),
        OutputFormat::Text => {
            let target = store.target();
            let texts: Vec<String> = waiting.iter().map(|question| format_question(question, &target)).collect();
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
            anyhow!("nobody at a terminal sees what would be approved; nothing was"),
            "look at `sympozium approvals`, and name the exact action with --action sha256:…",
        ));
    }
    let says = match arguments.for_the_run {
        true => VoteChoice::YesForTheRun,
        false => VoteChoice::Yes,
    };
    let mut code = ExitCode::SUCCESS;
    for question in &questions {
        if is_unseen(&question) {
            print_stderr(format_question(question, &store.target()).trim_end());
            if !arguments.yes && !confirm()? {
                print_stderr("not approved; it waits on");
                code = ExitCode::from(FAILED);
                continue;
            }
        }
        if !vote(&*store, question, says, reason)? {
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
            "the model reads it: say it shorter",
        )),
        reason => Ok(reason),
    }
}

/// Submits a vote and prints its effect. Returns whether the run accepted it.
fn vote(
    store: &dyn RunStore,
    question: &PendingQuestion,
    says: VoteChoice,
    reason: Option<&str>,
) -> Result<bool, Failure> {
    let name = display_name(question);
    let failed = |error: anyhow::Error| {
        Failure::new(
            error.context(format!("nobody knows whether {name} is decided")),
            format!("`sympozium approvals{}` says whether it still waits", store.target().as_str()),
        )
    };
    let decided = store.vote(question, says, reason).map_err(failed)?;
    let text = match (decided, says) {
        (VoteResult::Refused(why), _) => {
            print_stderr(&format!("error: {name} is not decided: {}", printable(&why)));
            return Ok(false);
        }
        (VoteResult::MoreNeeded(1), _) => format!("noted: {name}: one more person must say yes"),
        (VoteResult::MoreNeeded(more), _) => format!("noted: {name}: {more} more people must say yes"),
        (VoteResult::Recorded, _) => {
            format!("noted: {name}: whether that is enough is decided by the run's plan, which you may not read")
        }
        (VoteResult::Decided, VoteChoice::No) => format!("denied: {name}"),
        (VoteResult::Decided, VoteChoice::Yes) => format!("approved: {name}"),
        (VoteResult::Decided, VoteChoice::YesForTheRun) => {
            format!("approved: {name}, as often as the run repeats it")
        }
    };
    print_stdout(&(text + "\n"))?;
    Ok(true)
}

/// Asks on the terminal. Anything but `y` or `yes` means no.
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
