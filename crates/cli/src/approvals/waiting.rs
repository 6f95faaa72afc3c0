//! The questions of all runs that go on.

use std::fmt::Write as _;

use serde::Serialize;

use crate::failure::Failure;
use crate::local::control::Client;
use crate::local::event::Question;
use crate::local::record::RunRecord;
use crate::local::state::{RunDirectory, State};
use crate::local::time::now_ms;
use crate::manifests::problem::printable;
use crate::output::note;
use crate::runs::span;
use crate::runs::table::lines;

/// A question of a run.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The run's directory.
    pub directory: RunDirectory,
    /// The run.
    pub run: RunRecord,
    /// The question.
    pub question: Question,
}

/// The same for programs. Fields may be added, none changes its meaning.
#[derive(Debug, Serialize)]
pub struct View<'w> {
    run: &'w str,
    uid: &'w str,
    question: &'w Question,
}

/// Every question, of the newest run first.
///
/// # Errors
///
/// When the directory of runs cannot be read. A run that does not answer is told about, and left out.
pub fn all(state: &State) -> Result<Vec<Waiting>, Failure> {
    let runs = state
        .list()
        .map_err(|error| Failure::new(error, "see that the directory is readable"))?;
    let mut waiting = Vec::new();
    for (directory, run) in runs {
        if run.outcome.is_some() || !directory.is_alive() {
            continue;
        }
        let questions = match Client::connect(&directory) {
            Ok(Some(client)) => client.questions(),
            // It begins, or has just ended.
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match questions {
            Ok(questions) => waiting.extend(questions.into_iter().map(|question| Waiting {
                directory: directory.clone(),
                run: run.clone(),
                question,
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
    /// How it is called.
    pub fn name(&self) -> String {
        let approval = printable(&self.question.approval);
        format!(
            "{approval} of {} ({})",
            printable(&self.run.name),
            self.short_uid()
        )
    }

    /// The beginning of the run's UID.
    fn short_uid(&self) -> String {
        let uid: String = self.run.uid.chars().take(8).collect();
        printable(&uid)
    }

    /// For programs.
    pub fn view(&self) -> View<'_> {
        View {
            run: &self.run.name,
            uid: &self.run.uid,
            question: &self.question,
        }
    }

    /// For a person: everything that they decide about, and how.
    pub fn text(&self) -> String {
        let left = span::shown(self.question.deadline_ms.saturating_sub(now_ms()));
        let mut text = format!("{}, to be answered within {left}:\n", self.name());
        text.push_str(&lines("    ", &self.question.shown));
        let uid = self.short_uid();
        let action = &self.question.action;
        let repeated = match self.question.run_scope {
            true => " [--for-the-run]",
            false => "",
        };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "  yes: sympozium approve {uid} --action {}{repeated}",
            printable(action.as_ref())
        );
        let _ = writeln!(
            text,
            "  no:  sympozium deny {uid} --action {}",
            printable(action.as_ref())
        );
        text
    }
}
