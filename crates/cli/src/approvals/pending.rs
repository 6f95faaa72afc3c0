//! The pending questions of all running runs.

use std::fmt::Write as _;

use serde::Serialize;
use sympozium_api::ToolApproval;
use sympozium_api::text::printable;

use crate::failure::Failure;
use crate::output::print_stderr;
use crate::runs::duration;
use crate::runs::table::indent_lines;
use crate::target_flags::TargetFlags;
use sympozium_local::control::Client;
use sympozium_local::state::{RunDirectory, StateDirectory};
use sympozium_runs::Question;
use sympozium_runs::time::now_ms;

/// A pending question, with its run.
#[derive(Debug, Clone)]
pub struct PendingQuestion {
    pub run: String,
    pub uid: String,
    pub question: Question,
    pub recipient: VoteRecipient,
    pub target: TargetFlags,
}

/// Where the vote on a question is sent.
#[derive(Debug, Clone)]
pub enum VoteRecipient {
    /// The process that realises the run, found by the run's directory.
    Process(RunDirectory),
    /// A ToolApproval in a cluster.
    Object(Box<ToolApproval>),
}

/// The JSON form. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
pub struct QuestionView<'w> {
    run: &'w str,
    uid: &'w str,
    question: &'w Question,
}

/// Lists the pending questions of this machine's runs, newest run first.
///
/// A run that does not answer is skipped with a warning.
pub fn list_local(state: &StateDirectory) -> Result<Vec<PendingQuestion>, Failure> {
    let runs = state.list_runs().map_err(|error| Failure::new(error, "see that the directory is readable"))?;
    let mut waiting = Vec::new();
    for (directory, run) in runs {
        if run.outcome.is_some() || !directory.is_running() {
            continue;
        }
        let questions = match Client::connect(&directory) {
            Ok(Some(client)) => client.questions(),
            // The run has not opened its socket yet, or has just ended.
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match questions {
            Ok(questions) => waiting.extend(questions.into_iter().map(|question| PendingQuestion {
                run: run.name.clone(),
                uid: run.uid.clone(),
                question,
                recipient: VoteRecipient::Process(directory.clone()),
                target: TargetFlags::local(),
            })),
            Err(error) => print_stderr(&format!(
                "warning: {} does not answer: {}",
                printable(&run.name),
                printable(format!("{error:#}"))
            )),
        }
    }
    Ok(waiting)
}

impl PendingQuestion {
    /// The question as messages name it: approval, run, short UID.
    pub fn display_name(&self) -> String {
        let approval = printable(&self.question.approval);
        format!("{approval} of {} ({})", printable(&self.run), self.short_uid())
    }

    fn short_uid(&self) -> String {
        let uid: String = self.uid.chars().take(8).collect();
        printable(uid).into_owned()
    }

    pub fn view(&self) -> QuestionView<'_> {
        QuestionView { run: &self.run, uid: &self.uid, question: &self.question }
    }

    /// The text for an approver: the exact action, the time left, and the commands that answer.
    pub fn text(&self) -> String {
        let left = duration::format_duration(self.question.deadline_ms.saturating_sub(now_ms()));
        let mut text = format!("{}, to be answered within {left}:\n", self.display_name());
        text.push_str(&indent_lines("    ", &self.question.shown));
        let uid = self.short_uid();
        let action = &self.question.action;
        let place = self.target.as_str();
        let repeated = match self.question.run_scope {
            true => " [--for-the-run]",
            false => "",
        };
        // Writing to a String does not fail.
        let _ =
            writeln!(text, "  yes: sympozium approve {uid} --action {}{repeated}{place}", printable(action.as_ref()));
        let _ = writeln!(text, "  no:  sympozium deny {uid} --action {}{place}", printable(action.as_ref()));
        text
    }
}
