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
use sympozium_api::text::printable;

use crate::arguments::OutputFormat;
use crate::cluster::{self, Cluster, ClusterArguments};
use crate::failure::{FAILED, Failure};
use crate::output::{print_stderr, print_stdout, to_json};
use pending::{PendingQuestion, VoteRecipient};
use select::{Selection, select};
use sympozium_local::control::{Client, MAX_REASON_CHARS, VoteResult, WireVote};
use sympozium_local::state::StateDirectory;

/// Bytes read from the prompt.
const MAX_INPUT_BYTES: u64 = 1024;

pub fn list(arguments: &ApprovalsArguments) -> Result<ExitCode, Failure> {
    let waiting = QuestionSource::open(&arguments.cluster)?.list()?;
    match arguments.output {
        OutputFormat::Json => {
            let all: Vec<_> = waiting.iter().map(PendingQuestion::view).collect();
            print_stdout(&to_json(&all)?)?;
        }
        OutputFormat::Text if waiting.is_empty() => print_stderr("no run waits for a person"),
        OutputFormat::Text => {
            let texts: Vec<String> = waiting.iter().map(PendingQuestion::text).collect();
            print_stdout(&texts.join("\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where questions come from and votes go to: the runs of this machine, or a cluster.
enum QuestionSource {
    Local(StateDirectory),
    Cluster(Box<Cluster>),
}

impl QuestionSource {
    fn open(arguments: &ClusterArguments) -> Result<Self, Failure> {
        Ok(match Cluster::select(arguments)? {
            Some(cluster) => Self::Cluster(Box::new(cluster)),
            None => Self::Local(StateDirectory::open()?),
        })
    }

    fn list(&self) -> Result<Vec<PendingQuestion>, Failure> {
        match self {
            Self::Local(state) => pending::list_local(state),
            Self::Cluster(cluster) => cluster::approvals::list_questions(cluster),
        }
    }

    fn find_uid(&self, run: &str) -> Result<String, Failure> {
        match self {
            Self::Local(state) => Ok(state.find_run(run)?.1.uid),
            Self::Cluster(cluster) => Ok(cluster.find(run)?.uid),
        }
    }

    fn vote(&self, question: &PendingQuestion, says: WireVote, reason: Option<&str>) -> anyhow::Result<VoteResult> {
        let approval = &question.question.approval;
        let action = &question.question.action;
        match (self, &question.recipient) {
            (_, VoteRecipient::Process(directory)) => match Client::connect(directory)? {
                Some(client) => client.vote(approval, action, says, reason),
                None => Ok(VoteResult::Refused("the run is over".to_owned())),
            },
            (Self::Cluster(cluster), VoteRecipient::Object(object)) => {
                cluster::approvals::cast_vote_blocking(cluster, object, says, reason)
            }
            (Self::Local(_), VoteRecipient::Object(_)) => {
                anyhow::bail!("the question is one of a cluster")
            }
        }
    }
}

pub fn approve(arguments: &ApproveArguments) -> Result<ExitCode, Failure> {
    let reason = check_reason(arguments.reason.as_deref())?;
    let wanted = Selection { words: &arguments.words, actions: &arguments.actions, all: arguments.all };
    let source = QuestionSource::open(&arguments.cluster)?;
    let questions = select(source.list()?, &|run| source.find_uid(run), &wanted)?;
    let is_unseen = |it: &&PendingQuestion| !arguments.actions.contains(&it.question.action);
    let unseen = questions.iter().filter(is_unseen).count();
    if unseen > 0 && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::new(
            anyhow!("nobody at a terminal sees what would be approved; nothing was"),
            "look at `sympozium approvals`, and name the exact action with --action sha256:…",
        ));
    }
    let says = match arguments.for_the_run {
        true => WireVote::YesForTheRun,
        false => WireVote::Yes,
    };
    let mut code = ExitCode::SUCCESS;
    for question in &questions {
        if is_unseen(&question) {
            print_stderr(question.text().trim_end());
            if !arguments.yes && !confirm()? {
                print_stderr("not approved; it waits on");
                code = ExitCode::from(FAILED);
                continue;
            }
        }
        if !vote(&source, question, says, reason)? {
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}

pub fn deny(arguments: &DenyArguments) -> Result<ExitCode, Failure> {
    let reason = check_reason(arguments.reason.as_deref())?;
    let wanted = Selection { words: &arguments.words, actions: &arguments.actions, all: arguments.all };
    let source = QuestionSource::open(&arguments.cluster)?;
    let mut code = ExitCode::SUCCESS;
    for question in &select(source.list()?, &|run| source.find_uid(run), &wanted)? {
        if !vote(&source, question, WireVote::No, reason)? {
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
    source: &QuestionSource,
    question: &PendingQuestion,
    says: WireVote,
    reason: Option<&str>,
) -> Result<bool, Failure> {
    let name = question.display_name();
    let failed = |error: anyhow::Error| {
        Failure::new(
            error.context(format!("nobody knows whether {name} is decided")),
            format!("`sympozium approvals{}` says whether it still waits", question.target.as_str()),
        )
    };
    let decided = source.vote(question, says, reason).map_err(failed)?;
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
        (VoteResult::Decided, WireVote::No) => format!("denied: {name}"),
        (VoteResult::Decided, WireVote::Yes) => format!("approved: {name}"),
        (VoteResult::Decided, WireVote::YesForTheRun) => {
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
