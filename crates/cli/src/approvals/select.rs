//! Finds the questions that the arguments of `approve` and `deny` name.

use anyhow::{Error, anyhow};
use sympozium_api::names::Digest;
use sympozium_runs::PendingQuestion;

use super::pending::display_name;
use crate::failure::Failure;
use sympozium_api::text::{printable, quote};

/// Questions listed in an error message.
const MAX_NAMED: usize = 20;
const HINT: &str = "`sympozium approvals` lists the pending questions";

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
    mut pending: Vec<PendingQuestion>,
    find: &dyn Fn(&str) -> Result<String, Failure>,
    wanted: &Selection<'_>,
) -> Result<Vec<PendingQuestion>, Failure> {
    let mut approvals = wanted.words;
    if let Some((first, others)) = wanted.words.split_first() {
        // The first word is a run if a run of that name exists.
        match (find(first), is_approval(&pending, first)) {
            (Ok(uid), _) => {
                pending.retain(|it| it.uid == uid);
                approvals = others;
                if pending.is_empty() {
                    let error = anyhow!("run {} has no pending question", quote(first));
                    return Err(Failure::new(error, HINT));
                }
            }
            (Err(_), true) => {}
            (Err(failure), false) => return Err(failure),
        }
    }
    for name in approvals {
        match pending.iter().filter(|it| it.question.approval == *name).count() {
            0 => return Err(not_pending(anyhow!("there is no pending question {}", quote(name)))),
            1 => {}
            _ => {
                let error = anyhow!("several runs have a pending question {}", quote(name));
                return Err(Failure::new(error, "name the run before the question"));
            }
        }
    }
    for action in wanted.actions {
        if !pending.iter().any(|it| it.question.action == *action) {
            return Err(not_pending(anyhow!("there is no pending question about action {action}")));
        }
    }
    if pending.is_empty() {
        return Err(not_pending(anyhow!("there are no pending questions")));
    }
    if wanted.all {
        return Ok(pending);
    }
    if approvals.is_empty() && wanted.actions.is_empty() {
        return match pending.len() {
            1 => Ok(pending),
            _ => Err(ambiguous(&pending)),
        };
    }
    pending.retain(|it| approvals.contains(&it.question.approval) || wanted.actions.contains(&it.question.action));
    Ok(pending)
}

fn is_approval(pending: &[PendingQuestion], name: &str) -> bool {
    pending.iter().any(|it| it.question.approval == name)
}

fn not_pending(error: Error) -> Failure {
    Failure::new(error, "the question may be decided or expired; `sympozium approvals` lists the pending questions")
}

fn ambiguous(pending: &[PendingQuestion]) -> Failure {
    let names: Vec<String> = pending.iter().take(MAX_NAMED).map(display_name).collect();
    let error = anyhow!("{} questions are pending: {}", pending.len(), printable(names.join(", ")));
    Failure::new(error, "name one, or use --all; `sympozium approvals` prints their actions")
}
