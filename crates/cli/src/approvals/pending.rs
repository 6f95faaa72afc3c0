//! Pending questions as output.

use std::fmt::Write as _;

use serde::Serialize;
use sympozium_runs::time::now_ms;
use sympozium_runs::{PendingQuestion, Question, TargetFlags};

use crate::runs::duration;
use crate::runs::table::indent_lines;
use sympozium_api::text::printable;

/// The JSON form. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
pub struct QuestionView<'q> {
    run: &'q str,
    uid: &'q str,
    question: &'q Question,
}

impl<'q> QuestionView<'q> {
    pub fn new(pending: &'q PendingQuestion) -> Self {
        Self { run: &pending.run, uid: &pending.uid, question: &pending.question }
    }
}

/// The question as messages name it: approval, run, short UID.
pub fn display_name(pending: &PendingQuestion) -> String {
    let run = sympozium_runs::display_name(&pending.run, &pending.uid);
    format!("{} of {run}", printable(&pending.question.approval))
}

/// The text for an approver: the exact action, the time left, and the commands to vote.
pub fn format_question(pending: &PendingQuestion, target: &TargetFlags) -> String {
    let question = &pending.question;
    let left = duration::format_duration(question.deadline_ms.saturating_sub(now_ms()));
    let mut text = format!("{}, expires in {left}:\n", display_name(pending));
    text.push_str(&indent_lines("    ", &question.shown));
    let uid = printable(sympozium_runs::short_uid(&pending.uid));
    let action = printable(question.action.as_ref());
    let target = target.as_str();
    let repeated = if question.run_scope { " [--for-the-run]" } else { "" };
    // Writing to a String does not fail.
    let _ = writeln!(text, "  to approve: sympozium approve {uid} --action {action}{repeated}{target}");
    let _ = writeln!(text, "  to deny:    sympozium deny {uid} --action {action}{target}");
    text
}
