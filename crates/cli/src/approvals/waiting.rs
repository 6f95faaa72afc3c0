//! The pending questions of all running runs.

use std::fmt::Write as _;

use serde::Serialize;
use sympozium_api::ToolApproval;

use crate::failure::Failure;
use crate::local::control::Client;
use crate::local::event::Question;
use crate::local::state::{RunDirectory, State};
use crate::local::time::now_ms;
use crate::manifests::problem::printable;
use crate::output::note;
use crate::place::Place;
use crate::runs::span;
use crate::runs::table::lines;

/// A pending question, with its run.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub run: String,
    pub uid: String,
    pub question: Question,
    pub asker: Asker,
    pub place: Place,
}

/// Where the vote on a question is sent.
#[derive(Debug, Clone)]
pub enum Asker {
    /// The process that realises the run, found by the run's directory.
    Process(RunDirectory),
    /// A ToolApproval in a cluster.
    Object(Box<ToolApproval>),
}

/// The JSON form. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
pub struct View<'w> {
    run: &'w str,
    uid: &'w str,
    question: &'w Question,
}

/// Lists the pending questions of this machine's runs, newest run first.
///
/// A run that does not answer is skipped with a warning.
pub fn all(state: &State) -> Result<Vec<Waiting>, Failure> {
    let runs = state.list().map_err(|error| Failure::new(error, "see that the directory is readable"))?;
    let mut waiting = Vec::new();
    for (directory, run) in runs {
        if run.outcome.is_some() || !directory.is_alive() {
            continue;
        }
        let questions = match Client::connect(&directory) {
            Ok(Some(client)) => client.questions(),
            // The run has not opened its socket yet, or has just ended.
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match questions {
            Ok(questions) => waiting.extend(questions.into_iter().map(|question| Waiting {
                run: run.name.clone(),
                uid: run.uid.clone(),
                question,
                asker: Asker::Process(directory.clone()),
                place: Place::here(),
            })),
            Err(error) => note(&format!(
                "warning: {} does not answer: {}",
                printable(&run.name),
                printable(&format!("{error:#}"))
            )),
        }
    }
    Ok(waiting)
}

impl Waiting {
    /// The question as messages name it: approval, run, short UID.
    pub fn name(&self) -> String {
        let approval = printable(&self.question.approval);
        format!("{approval} of {} ({})", printable(&self.run), self.short_uid())
    }

    fn short_uid(&self) -> String {
        let uid: String = self.uid.chars().take(8).collect();
        printable(&uid)
    }

    pub fn view(&self) -> View<'_> {
        View { run: &self.run, uid: &self.uid, question: &self.question }
    }

    /// The text for an approver: the exact action, the time left, and the commands that answer.
    pub fn text(&self) -> String {
        let left = span::shown(self.question.deadline_ms.saturating_sub(now_ms()));
        let mut text = format!("{}, to be answered within {left}:\n", self.name());
        text.push_str(&lines("    ", &self.question.shown));
        let uid = self.short_uid();
        let action = &self.question.action;
        let place = self.place.flags();
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
