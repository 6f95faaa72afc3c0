//! Finds the questions that the arguments of `approve` and `deny` name.

use anyhow::{Error, anyhow};
use sympozium_api::names::Digest;
use sympozium_runs::PendingQuestion;

use super::pending::display_name;
use crate::failure::Failure;
use sympozium_api::text::{printable, quote};

/// Questions listed in an error message.
const MAX_NAMED: usize = 20;
const HINT: &str = "`sympozium approvals` lists what waits";

/// The arguments that select questions.
#[derive(Debug)]
pub struct Selection<'w> {
    /// A run followed by its questions, or questions of any run.
    pub words: &'w [String],
    pub actions: &'w [Digest],
    /// Every question of the run, or of all runs.
    pub all: bool,
}

/// Returns the selected questions, each once. `find` returns the UID of the run with a given name.
///
/// # Errors
///
/// If a named run or question is not pending, or the selection is ambiguous: then nothing is selected.
pub fn select(
    mut waiting: Vec<PendingQuestion>,
    find: &dyn Fn(&str) -> Result<String, Failure>,
    wanted: &Selection<'_>,
) -> Result<Vec<PendingQuestion>, Failure> {
    let mut approvals = wanted.words;
    if let Some((first, others)) = wanted.words.split_first() {
        // The first word is a run if a run of that name exists. That it has no pending question is reported below.
        match (find(first), is_approval(&waiting, first)) {
            (Ok(uid), _) => {
                waiting.retain(|it| it.uid == uid);
                approvals = others;
                if waiting.is_empty() {
                    let error = anyhow!("run {} waits for nobody", quote(first));
                    return Err(Failure::new(error, HINT));
                }
            }
            (Err(_), true) => {}
            (Err(failure), false) => return Err(failure),
        }
    }
    for name in approvals {
        match waiting.iter().filter(|it| it.question.approval == *name).count() {
            0 => return Err(not_pending(anyhow!("no question {} waits", quote(name)))),
            1 => {}
            _ => {
                let error = anyhow!("several runs wait with a question {}", quote(name));
                return Err(Failure::new(error, "name the run before it"));
            }
        }
    }
    for action in wanted.actions {
        if !waiting.iter().any(|it| it.question.action == *action) {
            return Err(not_pending(anyhow!("no question about {action} waits")));
        }
    }
    if waiting.is_empty() {
        return Err(not_pending(anyhow!("no run waits for a person")));
    }
    if wanted.all {
        return Ok(waiting);
    }
    if approvals.is_empty() && wanted.actions.is_empty() {
        return match waiting.len() {
            1 => Ok(waiting),
            _ => Err(ambiguous(&waiting)),
        };
    }
    waiting.retain(|it| approvals.contains(&it.question.approval) || wanted.actions.contains(&it.question.action));
    Ok(waiting)
}

fn is_approval(waiting: &[PendingQuestion], name: &str) -> bool {
    waiting.iter().any(|it| it.question.approval == name)
}

fn not_pending(error: Error) -> Failure {
    Failure::new(error, "it may have been answered; `sympozium approvals` lists what waits")
}

fn ambiguous(waiting: &[PendingQuestion]) -> Failure {
    let names: Vec<String> = waiting.iter().take(MAX_NAMED).map(display_name).collect();
    let error = anyhow!("{} questions wait: {}", waiting.len(), printable(names.join(", ")));
    Failure::new(error, "name one, or use --all; `sympozium approvals` shows them")
}
