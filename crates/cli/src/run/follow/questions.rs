//! Questions to the user: one at a time, shown whole, then answered by one line.

use sympozium_gateway::run_api::local::Vote;
use sympozium_runs::time::now_ms;
use sympozium_runs::{ApprovalMode, Question, VoteResult};
use tokio::sync::oneshot;

use super::RunControl;
use super::follower::Follower;
use crate::run::display::line::{Line, Style};
use crate::run::prompt::{self, PromptInput};
use crate::run::screen::Screen;

#[derive(Debug)]
pub struct OpenQuestion {
    pub(super) question: Question,
    /// Completes when the question is visible; input from before does not count. `None` after that.
    pub(super) shown: Option<oneshot::Receiver<()>>,
}

/// A vote that was typed.
pub struct TypedVote {
    pub(super) question: Question,
    pub(super) vote: Vote,
    pub(super) reason: Option<String>,
}

impl<C: RunControl> Follower<'_, C> {
    /// The oldest question that is to be asked here and has not been. One at a time: the effect of a vote is printed
    /// before the next question.
    pub(super) fn next_question(&self) -> Option<&Question> {
        if self.options.approve != ApprovalMode::Ask || self.is_voting {
            return None;
        }
        let mut questions = self.display.questions().iter();
        questions.find(|it| !self.skipped.contains(&it.approval))
    }

    /// Asks the next question, if none is open.
    pub(super) fn ask_next_question(&mut self) {
        if self.asking.is_some() {
            return;
        }
        let Some(question) = self.next_question().cloned() else {
            return;
        };
        match &self.terminal {
            Some(terminal) if terminal.is_foreground() => {
                self.screen.hold();
                self.ask(question);
            }
            // In the background: asked when the process is in the foreground again.
            Some(_) => self.print_elsewhere_hint(),
            None => {
                self.skipped.insert(question.approval);
                self.print_elsewhere_hint();
            }
        }
    }

    /// Shows a question.
    pub(super) fn ask(&mut self, question: Question) {
        let lines = prompt::question_lines(&question, now_ms());
        self.screen_for_questions().print_now(&lines);
        match self.screen_for_questions().flush_marker() {
            Some(mark) => self.asking = Some(OpenQuestion { question, shown: Some(mark) }),
            // The queue of the writer is full: the question would not be seen.
            None => {
                self.skipped.insert(question.approval);
                self.screen.release();
            }
        }
    }

    pub(super) fn is_shown(&self) -> bool {
        self.asking.as_ref().is_some_and(|it| it.shown.is_none())
    }

    /// The question is visible: input from before is discarded.
    pub(super) fn mark_shown(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.flush_input();
        }
        if let Some(asking) = &mut self.asking {
            asking.shown = None;
        }
        self.show_choices();
    }

    pub(super) fn show_choices(&mut self) {
        let Some(asking) = &self.asking else {
            return;
        };
        let choices = prompt::choices_line(asking.question.run_scope);
        let screen = self.screen_for_questions();
        let choices = screen.render(&choices);
        screen.write(format!("{} ", choices.trim_end_matches('\n')));
    }

    /// The screen that shows questions.
    pub(super) fn screen_for_questions(&mut self) -> &mut Screen {
        self.question_screen.as_mut().unwrap_or(&mut self.screen)
    }

    /// Handles a line of input, or the end of input. Returns the vote, if the line is one.
    pub(super) fn handle_input(&mut self, line: Option<String>) -> Option<TypedVote> {
        let OpenQuestion { question, .. } = self.asking.take()?;
        let Some(line) = line else {
            self.skipped.insert(question.approval.clone());
            self.screen_for_questions().write("\n".to_owned());
            self.has_printed_hint = false;
            self.print_elsewhere_hint();
            self.screen.release();
            return None;
        };
        match prompt::parse_input(&line, question.run_scope) {
            PromptInput::Vote(vote, reason) => {
                self.skipped.insert(question.approval.clone());
                self.is_voting = true;
                self.screen.release();
                self.show_status();
                return Some(TypedVote { question, vote, reason });
            }
            PromptInput::Show => self.ask(question),
            PromptInput::Empty | PromptInput::Unclear => {
                self.asking = Some(OpenQuestion { question, shown: None });
                self.show_choices();
            }
        }
        None
    }

    /// Prints the result of a vote.
    pub(super) fn handle_vote_result(&mut self, result: &anyhow::Result<VoteResult>) {
        self.is_voting = false;
        let line = match result {
            Ok(VoteResult::Decided) => None,
            Ok(VoteResult::MoreNeeded(1)) => Some("counted; one more approver must approve".to_owned()),
            Ok(VoteResult::MoreNeeded(more)) => Some(format!("counted; {more} more approvers must approve")),
            Ok(VoteResult::Recorded) => Some("recorded; the run's plan decides whether it is enough".to_owned()),
            Ok(VoteResult::Refused(why)) => Some(format!("that does not count: {why}")),
            Err(error) => Some(format!("it is not known whether that counts: {error:#}")),
        };
        if let Some(line) = line {
            self.screen_for_questions().print_now(&[Line::wrapped(2).add(Style::Attention, &line)]);
            self.show_status();
        }
    }

    /// The question was answered elsewhere, or withdrawn.
    pub(super) fn close_question(&mut self, approval: &str) {
        if self.asking.as_ref().is_some_and(|it| it.question.approval == approval) {
            self.close_open_question("no answer is needed here any more");
        }
    }

    pub(super) fn close_open_question(&mut self, why: &str) {
        if let Some(asking) = self.asking.take() {
            self.skipped.insert(asking.question.approval);
            // Below what the user may have typed.
            let line = Line::wrapped(2).add(Style::Attention, why);
            let screen = self.screen_for_questions();
            screen.write("\n".to_owned());
            screen.print_now(&[line]);
            self.screen.release();
        }
    }

    pub(super) fn print_elsewhere_hint(&mut self) {
        if std::mem::replace(&mut self.has_printed_hint, true) {
            return;
        }
        let target = self.options.target.as_str();
        let text = format!(
            "questions are pending, to be answered elsewhere: `sympozium approvals{target}` lists them, \
             `sympozium approve{target}` and `sympozium deny{target}` answer"
        );
        self.screen.print_now(&[Line::wrapped(2).add(Style::Attention, "hint: ").plain(&text)]);
    }
}
