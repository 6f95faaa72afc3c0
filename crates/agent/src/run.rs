//! The loop: the model is asked, its calls are made, it is told what came of them, until it answers.
//!
//! Everything has an end: rounds, time, tokens, tries, nudges. When one of them is near, the model is told to answer with
//! what it has, without tools; only when it does not is the run a failure.

use std::sync::Arc;
use std::time::Instant;

use sympozium_api::run_plan::AgentView;
use sympozium_api::text::is_prose;
use sympozium_ipc::door::AgentResult;

use crate::ask::{Asker, Unanswered};
use crate::calls::{Caller, CallsEnd, Told};
use crate::context::{clamp, elide};
use crate::conversation::{Conversation, Kept};
use crate::door::{Door, DoorError};
use crate::model::{self, Answer, Choice, Model, Outcome, Stop};
use crate::prompt;
use crate::repeats::Repeats;
use crate::settings::Settings;
use crate::status::Status;
use crate::time::Time;
use crate::tools::native::Native;
use crate::transcript::{Line, Transcript, message};

/// Times that a model that says nothing is asked to say something.
const NUDGES: u32 = 2;
/// Times that an answer that was too long for the model is taken up again.
const CONTINUATIONS: u32 = 4;
/// Of the tokens of a run, the part after which it is time to answer, in tenths.
const TOKENS_TENTHS: u64 = 9;
/// Bytes that one token stands for, where nobody says how many there were.
const BYTES_PER_TOKEN: u64 = 4;
/// Bytes of the last words that a failure quotes.
const LAST_WORDS: usize = 2 << 10;

const EMPTY: &str = "Your last answer was empty. Call a tool, or answer the task in plain words.";
const CONTINUE: &str =
    "Your last answer was cut off because it was too long. Go on exactly where it stopped, without repeating anything.";
const LAST_ROUND: &str =
    "There is no more room for tools in this run. Answer the task now with what you know, and say what is missing.";
const NO_MORE_CALLS: &str =
    "the call was not made: there is no more room for tools in this run; answer the task now with what you know";
const CUT_OFF: &str = "(The model stopped here: its answer was longer than it may be.)";
const TOO_MANY: &str = "(Your answer had more calls than can be made at once. Make the others in your next answers.)";

/// A run, as far as the agent is concerned.
pub struct Run {
    view: AgentView,
    system: String,
    settings: Settings,
    time: Arc<Time>,
    door: Door,
    model: Box<dyn Model>,
    caller: Arc<Caller>,
    status: Arc<Status>,
    transcript: Arc<Transcript>,
    conversation: Conversation,
    repeats: Repeats,
    /// Tokens so far, and of the last answer: a further one costs about as much.
    used: u64,
    last_cost: u64,
    /// The answer so far, where it comes in parts.
    parts: String,
    /// The last words of the model that were not empty.
    last_words: String,
    nudges: u32,
    continuations: u32,
    /// Why the model was told to come to an end, once it was.
    ending: Option<Ending>,
    /// Whether it called tools all the same.
    told_twice: bool,
}

/// What is near its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Rounds,
    Time,
    Tokens,
}

/// Why the loop ended without an answer.
#[derive(Debug, thiserror::Error)]
pub enum LoopEnd {
    /// There is no answer, and this is why.
    #[error("{0}")]
    Failed(String),
    /// The bridge is gone: nobody is there to be told.
    #[error(transparent)]
    Gone(DoorError),
}

impl From<Unanswered> for LoopEnd {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Gone(error) => Self::Gone(error),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<CallsEnd> for LoopEnd {
    fn from(end: CallsEnd) -> Self {
        match end {
            CallsEnd::Gone(error) => Self::Gone(error),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl Run {
    /// A run that has not begun.
    pub fn new(
        view: AgentView,
        settings: Settings,
        native: Native,
        door: Door,
        time: Arc<Time>,
        status: Arc<Status>,
        transcript: Arc<Transcript>,
    ) -> Self {
        let system = prompt::system(&view, settings.iterations);
        let model = model::of(&view, &system);
        let caller = Caller::new(
            door.clone(),
            native,
            &view.tools,
            view.limits.concurrent_tool_calls as usize,
            Arc::clone(&status),
        );
        Self {
            view,
            system,
            settings,
            time,
            door,
            model,
            caller: Arc::new(caller),
            status,
            transcript,
            conversation: Conversation::default(),
            repeats: Repeats::default(),
            used: 0,
            last_cost: 0,
            parts: String::new(),
            last_words: String::new(),
            nudges: 0,
            continuations: 0,
            ending: None,
            told_twice: false,
        }
    }

    /// Whoever makes the calls, for what is still to be said about them when the run is given up.
    pub fn caller(&self) -> Arc<Caller> {
        Arc::clone(&self.caller)
    }

    /// Works until there is an answer, or none can be had. What it says is still to be told at the door.
    ///
    /// # Errors
    ///
    /// When the bridge is gone.
    pub async fn work(&mut self) -> Result<AgentResult, DoorError> {
        let most = usize::try_from(self.view.limits.result_bytes).unwrap_or(usize::MAX);
        let result = match self.rounds().await {
            Ok(text) => AgentResult::Answer { text: clamp(without_hidden(text), most) },
            Err(LoopEnd::Failed(why)) => {
                AgentResult::Failure { error: clamp(without_hidden(self.with_last_words(why)), most) }
            }
            Err(LoopEnd::Gone(error)) => return Err(error),
        };
        self.caller.reported().await;
        Ok(result)
    }

    async fn rounds(&mut self) -> Result<String, LoopEnd> {
        let task = prompt::task(&self.view);
        if task.trim().is_empty() {
            let why = "there is no task: the run's `spec.task` is empty".to_owned();
            return Err(LoopEnd::Failed(why));
        }
        let line = Line::Task { system: &self.system, task: &task };
        self.transcript.add(&line).await;
        self.conversation.say(self.model.user(&task));
        let mut round = 0;
        // One more than there are, for a model that calls tools when it is told to answer.
        while round < self.settings.iterations || self.told_twice && round == self.settings.iterations {
            round += 1;
            let choice = self.choice(round);
            self.status.set(&format!("round {round}: asking the model"));
            let answer = self.ask(round, choice).await?;
            if !answer.text.trim().is_empty() {
                self.last_words.clone_from(&answer.text);
            }
            if let Stop::Refused(why) = &answer.stop {
                return Err(LoopEnd::Failed(format!("the model refused: {why}")));
            }
            if answer.calls.is_empty() {
                if let Some(text) = self.answered(answer)? {
                    return Ok(text);
                }
                continue;
            }
            match choice {
                Choice::Free => {
                    let told = self.caller.make_all(&answer.calls, &mut self.repeats).await?;
                    self.tell(round, answer, &told).await;
                }
                // Some servers do not know that tools may not be called, and some models do not care.
                Choice::NoTools => {
                    let told = self.caller.make_none(&answer.calls, NO_MORE_CALLS);
                    self.tell(round, answer, &told).await;
                    self.told_twice = true;
                }
                Choice::Bare => break,
            }
        }
        // What there is of an answer is better than none.
        if !self.parts.is_empty() {
            let parts = std::mem::take(&mut self.parts);
            return Ok(format!("{}\n\n{CUT_OFF}", parts.trim_end()));
        }
        Err(LoopEnd::Failed(self.not_answered()))
    }

    /// Why there is no answer, where the model went on when it was told to answer.
    fn not_answered(&self) -> String {
        match self.ending {
            Some(Ending::Time) => {
                let seconds = self.time.whole().as_secs();
                format!(
                    "the run's time of {seconds} s is nearly over, and the model called tools when it was told to answer"
                )
            }
            Some(Ending::Tokens) => {
                "the run's tokens are nearly used up, and the model called tools when it was told to answer".to_owned()
            }
            // People search for these words.
            Some(Ending::Rounds) | None => {
                let rounds = self.settings.iterations;
                format!("exceeded maximum tool-call iterations ({rounds})")
            }
        }
    }

    /// Whether the model may call tools in this round. When it may not any more, it is told so once.
    fn choice(&mut self, round: u32) -> Choice {
        if self.ending.is_none() {
            self.ending = self.ending(round);
            if self.ending.is_some() && round > 1 {
                self.conversation.say(self.model.user(LAST_ROUND));
            }
        }
        match self.ending {
            Some(_) if self.told_twice => Choice::Bare,
            Some(_) => Choice::NoTools,
            None => Choice::Free,
        }
    }

    fn ending(&self, round: u32) -> Option<Ending> {
        let next = self.used.saturating_add(self.last_cost);
        let tokens = self.view.limits.model_tokens;
        if tokens.is_some_and(|most| next >= most.saturating_mul(TOKENS_TENTHS) / 10) {
            return Some(Ending::Tokens);
        }
        if self.time.is_ending() {
            return Some(Ending::Time);
        }
        // A run of one round has its tools: it would be of no use without.
        (round == self.settings.iterations && round > 1).then_some(Ending::Rounds)
    }

    async fn ask(&mut self, round: u32, choice: Choice) -> Result<Answer, LoopEnd> {
        let started = Instant::now();
        let asker = Asker {
            door: &self.door,
            model: &*self.model,
            settings: &self.settings,
            time: &self.time,
            status: &self.status,
            transcript: &self.transcript,
        };
        let answer = asker.ask(&mut self.conversation, choice).await?;
        self.last_cost = match answer.usage {
            Some(usage) => usage.input.saturating_add(usage.output),
            // As the bridge counts where the provider does not say.
            None => {
                let bytes = self.system.len() + self.conversation.bytes() + answer.message.len();
                bytes as u64 / BYTES_PER_TOKEN
            }
        };
        self.used = self.used.saturating_add(self.last_cost);
        let line = Line::Answer {
            round,
            message: message(&answer.message),
            text: Some(&answer.text),
            stop: answer.stop.told(),
            input_tokens: answer.usage.map(|it| it.input),
            cached_tokens: answer.usage.map(|it| it.cached),
            output_tokens: answer.usage.map(|it| it.output),
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        self.transcript.add(&line).await;
        Ok(answer)
    }

    /// Tells the model what came of its calls.
    async fn tell(&mut self, round: u32, answer: Answer, told: &[Told]) {
        self.nudges = 0;
        self.continuations = 0;
        self.parts.clear();
        self.conversation.say(answer.message);
        let mut kept = Vec::with_capacity(told.len());
        for (index, (call, told)) in answer.calls.iter().zip(told).enumerate() {
            let line = Line::Result {
                round,
                id: &call.id,
                tool: &call.name,
                failed: told.outcome == Outcome::Failed,
                text: &told.text,
                duration_ms: u64::try_from(told.took.as_millis()).unwrap_or(u64::MAX),
            };
            self.transcript.add(&line).await;
            // With the last result, and not as a message: some templates want the model to speak next.
            let is_last = index + 1 == answer.calls.len();
            let encoded = match answer.calls_left_out {
                1.. if is_last => {
                    let text = format!("{}\n{TOO_MANY}", told.text);
                    self.model.result(&call.id, &text, told.outcome)
                }
                _ => self.model.result(&call.id, &told.text, told.outcome),
            };
            kept.push(Kept::new(call, told.outcome, told.text.len(), encoded));
        }
        self.conversation.answer(kept);
        let elided = elide(&mut self.conversation, &*self.model, &self.settings);
        if elided > 0 {
            self.repeats.forget();
            let text = format!("left out {elided} old results to save room");
            self.transcript.add(&Line::Note { text: &text }).await;
        }
    }

    /// An answer without calls: the end, unless it is empty or was cut off.
    fn answered(&mut self, answer: Answer) -> Result<Option<String>, LoopEnd> {
        let is_empty = answer.text.trim().is_empty();
        if answer.stop == Stop::Length && !is_empty && self.continuations < CONTINUATIONS {
            self.continuations += 1;
            self.parts.push_str(&answer.text);
            self.conversation.say(answer.message);
            self.conversation.say(self.model.user(CONTINUE));
            return Ok(None);
        }
        if !is_empty || !self.parts.is_empty() {
            let mut text = std::mem::take(&mut self.parts);
            text.push_str(&answer.text);
            text.truncate(text.trim_end().len());
            if answer.stop == Stop::Length {
                text.push_str("\n\n");
                text.push_str(CUT_OFF);
            }
            return Ok(Some(text));
        }
        self.nudges += 1;
        if self.nudges > NUDGES {
            let why = match answer.stop {
                Stop::Length => "the model used up its length without an answer",
                _ => "the model gave no answer",
            };
            return Err(LoopEnd::Failed(why.to_owned()));
        }
        self.conversation.say(self.model.user(EMPTY));
        Ok(None)
    }

    fn with_last_words(&self, why: String) -> String {
        let words = self.last_words.trim();
        match words.is_empty() {
            true => why,
            false => {
                let words = clamp(words.to_owned(), LAST_WORDS);
                format!("{why}; the last thing that it said: {words}")
            }
        }
    }
}

/// Without anything that a terminal acts on or that nobody sees: people read this there.
fn without_hidden(mut text: String) -> String {
    text.retain(is_prose);
    text
}

#[cfg(test)]
mod tests {
    use super::without_hidden;

    #[test]
    fn an_answer_holds_nothing_that_a_terminal_acts_on() {
        let text = "a\u{1b}[2J\tb\n\u{9b}2Jc\r\u{7f}ä".to_owned();
        assert_eq!(without_hidden(text), "a[2J\tb\n2Jcä");
        let hidden = "a\u{202e}b\u{e0041}\u{200b}\u{3164}c \u{26a0}\u{fe0f}".to_owned();
        assert_eq!(without_hidden(hidden), "abc \u{26a0}\u{fe0f}");
    }
}
