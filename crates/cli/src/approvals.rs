//! `sympozium approvals`, `approve`, `deny`: questions of runs, answered from another terminal.
//!
//! An approval is valid for the hash of one exact action. The approver has either been shown that action here, on a
//! terminal, or names the hash: nothing is approved unseen.

pub mod arguments;
mod select;
#[cfg(test)]
mod tests;
pub mod waiting;

pub use arguments::{ApprovalsArguments, ApproveArguments, DenyArguments};

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};

use crate::arguments::OutputFormat;
use crate::cluster::{self, Cluster, ClusterArguments};
use crate::failure::{FAILED, Failure};
use crate::local::control::{Client, Decided, MAX_REASON, Word};
use crate::local::state::State;
use crate::manifests::problem::printable;
use crate::output::{answer, json, note};
use select::{Wanted, select};
use waiting::{Asker, Waiting};

/// Bytes read from the prompt.
const MAX_TYPED: u64 = 1024;

pub fn list(arguments: &ApprovalsArguments) -> Result<ExitCode, Failure> {
    let waiting = Source::open(&arguments.cluster)?.all()?;
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

/// Where questions come from and votes go to: the runs of this machine, or a cluster.
enum Source {
    Here(State),
    Cluster(Box<Cluster>),
}

impl Source {
    fn open(arguments: &ClusterArguments) -> Result<Self, Failure> {
        Ok(match Cluster::chosen(arguments)? {
            Some(cluster) => Self::Cluster(Box::new(cluster)),
            None => Self::Here(State::open()?),
        })
    }

    fn all(&self) -> Result<Vec<Waiting>, Failure> {
        match self {
            Self::Here(state) => waiting::all(state),
            Self::Cluster(cluster) => cluster::approvals::all(cluster),
        }
    }

    fn find(&self, run: &str) -> Result<String, Failure> {
        match self {
            Self::Here(state) => state.find(run).map(|(_, record)| record.uid),
            Self::Cluster(cluster) => Ok(cluster.find(run)?.uid),
        }
    }

    fn decide(&self, question: &Waiting, says: Word, reason: Option<&str>) -> anyhow::Result<Decided> {
        let approval = &question.question.approval;
        let action = &question.question.action;
        match (self, &question.asker) {
            (_, Asker::Process(directory)) => match Client::connect(directory)? {
                Some(client) => client.decide(approval, action, says, reason),
                None => Ok(Decided::Refused("the run is over".to_owned())),
            },
            (Self::Cluster(cluster), Asker::Object(object)) => {
                cluster::approvals::decide_now(cluster, object, says, reason)
            }
            (Self::Here(_), Asker::Object(_)) => {
                anyhow::bail!("the question is one of a cluster")
            }
        }
    }
}

pub fn approve(arguments: &ApproveArguments) -> Result<ExitCode, Failure> {
    let reason = checked(arguments.reason.as_deref())?;
    let wanted = Wanted { words: &arguments.words, actions: &arguments.actions, all: arguments.all };
    let source = Source::open(&arguments.cluster)?;
    let questions = select(source.all()?, &|run| source.find(run), &wanted)?;
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
        if !decide(&source, question, says, reason)? {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

pub fn deny(arguments: &DenyArguments) -> Result<ExitCode, Failure> {
    let reason = checked(arguments.reason.as_deref())?;
    let wanted = Wanted { words: &arguments.words, actions: &arguments.actions, all: arguments.all };
    let source = Source::open(&arguments.cluster)?;
    let mut code = ExitCode::SUCCESS;
    for question in &select(source.all()?, &|run| source.find(run), &wanted)? {
        if !decide(&source, question, Word::No, reason)? {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

fn checked(reason: Option<&str>) -> Result<Option<&str>, Failure> {
    match reason {
        Some(reason) if reason.chars().count() > MAX_REASON => Err(Failure::usage(
            anyhow!("the reason has more than {MAX_REASON} characters"),
            "the model reads it: say it shorter",
        )),
        reason => Ok(reason),
    }
}

/// Submits a vote and prints its effect. Returns whether the run accepted it.
fn decide(source: &Source, question: &Waiting, says: Word, reason: Option<&str>) -> Result<bool, Failure> {
    let name = question.name();
    let failed = |error: anyhow::Error| {
        Failure::new(
            error.context(format!("nobody knows whether {name} is decided")),
            format!("`sympozium approvals{}` says whether it still waits", question.place.flags()),
        )
    };
    let decided = source.decide(question, says, reason).map_err(failed)?;
    let text = match (decided, says) {
        (Decided::Refused(why), _) => {
            note(&format!("error: {name} is not decided: {}", printable(&why)));
            return Ok(false);
        }
        (Decided::More(1), _) => format!("noted: {name}: one more person must say yes"),
        (Decided::More(more), _) => format!("noted: {name}: {more} more people must say yes"),
        (Decided::Noted, _) => {
            format!("noted: {name}: whether that is enough is decided by the run's plan, which you may not read")
        }
        (Decided::Answered, Word::No) => format!("denied: {name}"),
        (Decided::Answered, Word::Yes) => format!("approved: {name}"),
        (Decided::Answered, Word::YesForTheRun) => {
            format!("approved: {name}, as often as the run repeats it")
        }
    };
    answer(&(text + "\n"))?;
    Ok(true)
}

/// Asks on the terminal. Anything but `y` or `yes` means no.
fn confirmed() -> Result<bool, Failure> {
    let ask = || -> anyhow::Result<bool> {
        let mut stderr = io::stderr().lock();
        // Input typed before the prompt is not an answer to it.
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
