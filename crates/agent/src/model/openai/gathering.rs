//! An answer in the making: what streams and whole completions have in common.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::budget::Budget;
use super::calls::{Calls, Listed, Made};
use super::content::Content;
use super::extra::Extra;
use super::recovered::{self, Offered};
use super::usage;
use crate::model::ids::Ids;
use crate::model::{Answer, Broken, MAX_CALLS, Stop, Usage, problem};

/// Letters of a reason to stop that are told.
const MAX_REASON: usize = 64;
/// Fields of a message that are of no use in the next request: what was never offered, and what the provider says about
/// the message rather than in it.
const DROPPED: &[&str] = &["annotations", "audio", "function_call", "images", "name"];

/// What is known of an answer.
#[derive(Debug)]
pub struct Gathering {
    content: Content,
    refusal: String,
    calls: Calls,
    extra: Extra,
    /// Why the model stopped, in the provider's word.
    reason: Option<String>,
    usage: Option<Usage>,
    /// Whether the model said anything at all.
    has_begun: bool,
    budget: Budget,
    offered: Arc<Offered>,
    ids: Ids,
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Marked,
    /// It just did.
    Unmarked,
}

impl Gathering {
    /// Of nothing so far.
    pub fn new(offered: Arc<Offered>, ids: Ids) -> Self {
        Self {
            content: Content::default(),
            refusal: String::new(),
            calls: Calls::default(),
            extra: Extra::default(),
            reason: None,
            usage: None,
            has_begun: false,
            budget: Budget::default(),
            offered,
            ids,
        }
    }

    /// Adds a chunk of a stream, or a whole completion; whether it has choices.
    ///
    /// # Errors
    ///
    /// When it is none, says that something went wrong, or makes the answer too large.
    pub fn add(&mut self, chunk: Value, listed: Listed) -> Result<bool, Broken> {
        let mut chunk = match chunk {
            Value::Object(chunk) => chunk,
            // Google's errors are in a list.
            Value::Array(items) => match items.into_iter().next() {
                Some(Value::Object(chunk)) => chunk,
                _ => return Err(unreadable("a list is no part of an answer")),
            },
            _ => return Err(unreadable("a part of it is not an object")),
        };
        if let Some(problem) = problem::in_part(&chunk) {
            return Err(Broken::Provider(problem));
        }
        if let Some(usage) = usage::of(&chunk) {
            self.usage = Some(usage);
        }
        let Some(Value::Array(choices)) = chunk.remove("choices") else {
            return Ok(false);
        };
        let mut has_choice = false;
        for choice in choices {
            if let Value::Object(choice) = choice
                && is_first(&choice)
            {
                has_choice = true;
                self.add_choice(choice, listed)?;
            }
        }
        Ok(has_choice)
    }

    /// The answer that a whole completion is.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn whole(mut self, completion: Value) -> Result<Answer, Broken> {
        if !self.add(completion, Listed::Whole)? {
            return Err(unreadable("it has no choice"));
        }
        self.finish(End::Marked)
    }

    /// What people read, so far.
    pub fn visible(&self) -> &str {
        self.content.visible()
    }

    /// Whether nothing of use can follow: some servers leave the connection open.
    pub fn is_whole(&self) -> bool {
        self.reason.is_some() && self.usage.is_some()
    }

    /// Whether the model said why it stopped.
    pub fn has_stopped(&self) -> bool {
        self.reason.is_some()
    }

    /// The answer.
    ///
    /// # Errors
    ///
    /// When it broke off. Servers that do not say why a model stopped are believed when they end the stream, as long as
    /// there was anything in it, and no call breaks off in the middle.
    pub fn finish(mut self, end: End) -> Result<Answer, Broken> {
        let is_broken = match (&self.reason, end) {
            (Some(_), _) => false,
            (None, End::Marked) => !self.has_begun,
            (None, End::Unmarked) => !self.has_begun || self.calls.are_open(),
        };
        if is_broken {
            return Err(Broken::CutOff);
        }
        self.content.end();
        let stop = stop(self.reason.as_deref().unwrap_or_default(), &self.refusal);
        // White space at either end stays: an answer that was cut may go on in the next one.
        let mut text = self.content.visible().to_owned();
        let mut left_out = self.calls.left_out();
        let made = if self.calls.is_empty() {
            let (made, more) = self.recover(&mut text);
            left_out = more;
            made
        } else {
            let calls = std::mem::take(&mut self.calls);
            calls.finish(stop == Stop::Length, &self.ids, &self.offered)
        };
        let (calls, written): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        Ok(Answer { text, calls_left_out: left_out, stop, usage: self.usage, message: self.message(written), calls })
    }

    fn add_choice(&mut self, mut choice: Map<String, Value>, listed: Listed) -> Result<(), Broken> {
        if let Some(problem) = problem::in_part(&choice) {
            return Err(Broken::Provider(problem));
        }
        let said = match choice.remove("delta") {
            Some(Value::Object(delta)) => Some(delta),
            _ => match choice.remove("message") {
                Some(Value::Object(message)) => Some(message),
                _ => None,
            },
        };
        if let Some(said) = said {
            self.add_said(said, listed)?;
        }
        match choice.remove("finish_reason") {
            Some(Value::String(reason)) if !reason.is_empty() => {
                if reason.eq_ignore_ascii_case("error") {
                    return Err(Broken::Provider(problem::without_words()));
                }
                self.reason = Some(reason.chars().take(MAX_REASON).collect());
            }
            _ => {}
        }
        Ok(())
    }

    fn add_said(&mut self, said: Map<String, Value>, listed: Listed) -> Result<(), Broken> {
        for (name, value) in said {
            let says = match name.as_str() {
                "role" => false,
                "content" => self.content.add(value, &mut self.budget)?,
                "refusal" => self.add_refusal(value)?,
                "tool_calls" => self.add_calls(value, listed)?,
                name if DROPPED.contains(&name) => false,
                name => self.extra.add(name, value, &mut self.budget)?,
            };
            self.has_begun |= says;
        }
        Ok(())
    }

    fn add_refusal(&mut self, value: Value) -> Result<bool, Broken> {
        let Value::String(text) = value else {
            return Ok(false);
        };
        self.budget.take(text.len())?;
        self.refusal.push_str(&text);
        Ok(!text.is_empty())
    }

    fn add_calls(&mut self, value: Value, listed: Listed) -> Result<bool, Broken> {
        let Value::Array(pieces) = value else {
            return Ok(false);
        };
        let says = !pieces.is_empty();
        for piece in pieces {
            self.calls.add(piece, listed, &mut self.budget)?;
        }
        Ok(says)
    }

    /// Calls that the model wrote as text, which leave the text.
    fn recover(&mut self, text: &mut String) -> (Vec<Made>, usize) {
        if !self.content.is_plain() {
            return (Vec::new(), 0);
        }
        let Some(found) = recovered::at_end(text, &self.offered) else {
            return (Vec::new(), 0);
        };
        // What people read is the end of the content.
        let visible = self.content.visible();
        let start = self.content.len() - visible.len() + found.start;
        self.content.truncate(start);
        text.truncate(found.start);
        text.truncate(text.trim_end().len());
        let mut calls = found.calls;
        let left_out = calls.len().saturating_sub(MAX_CALLS);
        calls.truncate(MAX_CALLS);
        let named = calls.into_iter().map(|call| call.make(self.ids.take("")));
        (named.collect(), left_out)
    }

    /// The message as it stands in later requests.
    fn message(self, calls: Vec<Value>) -> Bytes {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        let content = match self.content.into_value() {
            // Who neither calls nor speaks says an empty text: null is for those who call.
            Value::Null if calls.is_empty() => Value::from(""),
            content => content,
        };
        message.insert("content".to_owned(), content);
        if !self.refusal.is_empty() {
            message.insert("refusal".to_owned(), self.refusal.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
        self.extra.finish(&mut message);
        Value::Object(message).to_string().into()
    }
}

/// We ask for one choice. Others are not read.
fn is_first(choice: &Map<String, Value>) -> bool {
    match choice.get("index") {
        None | Some(Value::Null) => true,
        Some(index) => index.as_u64() == Some(0),
    }
}

/// What a reason means. Whoever stops to call a tool has finished, for now.
fn stop(reason: &str, refusal: &str) -> Stop {
    if !refusal.is_empty() {
        return Stop::refused(refusal);
    }
    match reason.to_ascii_lowercase().as_str() {
        "" | "stop" | "tool_calls" | "function_call" | "tool_use" | "end_turn" | "eos" | "stop_sequence" => {
            Stop::Finished
        }
        "length" | "max_tokens" | "model_length" => Stop::Length,
        "refusal" => Stop::refused(""),
        "content_filter" | "safety" => Stop::Refused("the provider's content filter stopped the answer".to_owned()),
        _ => Stop::Other(reason.to_owned()),
    }
}

fn unreadable(why: &str) -> Broken {
    Broken::Unreadable(why.to_owned())
}
