//! Questions of runs, from another terminal: `sympozium approvals`, `approve`, `deny`.
//!
//! A yes is about the hash of one exact action. Whoever says it has been shown that action here, on a terminal, or names the
//! hash: nothing is approved that nobody saw.

pub mod arguments;
mod select;
#[cfg(test)]
mod tests;
mod waiting;

pub use arguments::{ApprovalsArguments, ApproveArguments, DenyArguments};

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};

use crate::arguments::OutputFormat;
use crate::failure::{FAILED, Failure};
use crate::local::control::{Client, Decided, MAX_REASON, Word};
use crate::local::state::State;
use crate::manifests::problem::printable;
use crate::output::{answer, json, note};
use select::{Wanted, select};
use waiting::Waiting;

/// Bytes of an answer at the prompt.
const MAX_TYPED: u64 = 1024;

/// Lists questions.
pub fn list(arguments: &ApprovalsArguments) -> Result<ExitCode, Failure> {
    let waiting = waiting::all(&State::open()?)?;
    match arguments.output {
        OutputFormat::Json => {
            let all: Vec<_> = waiting.iter().map(Waiting::view).collect();
            answer(&json(&all)?)?;
        }
        OutputFormat::Text if waiting.is_empty() => note("no run waits for a person"),
        OutputFormat::Text => {
            let texts: Vec<String> = waiting.iter().map(Waiting::text).collect();
            answer(&texts.join("\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says yes.
pub fn approve(arguments: &ApproveArguments) -> Result<ExitCode, Failure> {
    let wanted = Wanted {
        words: &arguments.words,
        actions: &arguments.actions,
        all: arguments.all,
    };
    let state = State::open()?;
    let questions = select(waiting::all(&state)?, &state, &wanted)?;
    let is_unseen = |it: &&Waiting| !arguments.actions.contains(&it.question.action);
    let unseen = questions.iter().filter(is_unseen).count();
    if unseen > 0 && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::new(
            anyhow!("nobody at a terminal sees what would be approved; nothing was"),
            "look at `sympozium approvals`, and name the exact action with --action sha256:…",
        ));
    }
    let says = match arguments.for_the_run {
        true => Word::YesForTheRun,
        false => Word::Yes,
    };
    let mut code = ExitCode::SUCCESS;
    for question in &questions {
        if is_unseen(&question) {
            note(question.text().trim_end());
            if !arguments.yes && !confirmed()? {
                note("not approved; it waits on");
                code = ExitCode::from(FAILED);
                continue;
            }
        }
        if !decide(question, says, None)? {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

/// Says no.
pub fn deny(arguments: &DenyArguments) -> Result<ExitCode, Failure> {
    let reason = arguments.reason.as_deref();
    if reason.is_some_and(|reason| reason.chars().count() > MAX_REASON) {
        return Err(Failure::usage(
            anyhow!("the reason has more than {MAX_REASON} characters"),
            "the model reads it: say it shorter",
        ));
    }
    let wanted = Wanted {
        words: &arguments.words,
        actions: &arguments.actions,
        all: arguments.all,
    };
    let state = State::open()?;
    let mut code = ExitCode::SUCCESS;
    for question in &select(waiting::all(&state)?, &state, &wanted)? {
        if !decide(question, Word::No, reason)? {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

/// Has the run take a person's word. Whether it counts.
fn decide(question: &Waiting, says: Word, reason: Option<&str>) -> Result<bool, Failure> {
    let name = question.name();
    let failed = |error: anyhow::Error| {
        Failure::new(
            error.context(format!("nobody knows whether {name} is decided")),
            "`sympozium approvals` says whether it still waits",
        )
    };
    let client = Client::connect(&question.directory).map_err(failed)?;
    let Some(client) = client else {
        note(&format!("error: {name} is not decided: the run is over"));
        return Ok(false);
    };
    let approval = &question.question.approval;
    let action = &question.question.action;
    let decided = client
        .decide(approval, action, says, reason)
        .map_err(failed)?;
    let text = match (decided, says) {
        (Decided::Refused(why), _) => {
            note(&format!(
                "error: {name} is not decided: {}",
                printable(&why)
            ));
            return Ok(false);
        }
        (Decided::More(1), _) => format!("noted: {name}: one more person must say yes"),
        (Decided::More(more), _) => format!("noted: {name}: {more} more people must say yes"),
        (Decided::Answered, Word::No) => format!("denied: {name}"),
        (Decided::Answered, Word::Yes) => format!("approved: {name}"),
        (Decided::Answered, Word::YesForTheRun) => {
            format!("approved: {name}, as often as the run repeats it")
        }
    };
    answer(&(text + "\n"))?;
    Ok(true)
}

/// What is typed at the prompt: anything but a yes is a no.
fn confirmed() -> Result<bool, Failure> {
    let ask = || -> anyhow::Result<bool> {
        let mut stderr = io::stderr().lock();
        // What was typed before this is no answer to it.
        let _ = rustix::termios::tcflush(io::stdin(), rustix::termios::QueueSelector::IFlush);
        write!(stderr, "Approve this? [y/N] ")?;
        stderr.flush()?;
        let mut typed = String::new();
        io::stdin().lock().take(MAX_TYPED).read_line(&mut typed)?;
        Ok(["y", "yes"].contains(&typed.trim().to_lowercase().as_str()))
    };
    ask()
        .context("cannot ask at this terminal")
        .map_err(|error| Failure::new(error, "name the exact action with --action sha256:…"))
}
