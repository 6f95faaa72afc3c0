//! What was said so far, as it stands in requests. Every piece is encoded once, when it is said, and kept in that form
//! only: a request costs no more than sending it, and the conversation is in memory once.

use std::ops::Range;

use bytes::Bytes;

use crate::model::{Call, Outcome};

/// What was said so far.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    entries: Vec<Entry>,
}

/// One thing that was said.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A message of the user or of the model, as one JSON object.
    Message(Bytes),
    /// The results of all calls of the message before, in its order.
    Results(Vec<Kept>),
}

/// The result of a call.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The model's name for the call.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// How it went.
    pub outcome: Outcome,
    /// Bytes of the text that is kept.
    pub bytes: usize,
    /// Whether only a line about it is left.
    pub elided: bool,
    /// The result as one JSON object: a message, or a block of one.
    pub encoded: Bytes,
}

impl Kept {
    /// The result of a call, encoded.
    pub fn new(call: &Call, outcome: Outcome, bytes: usize, encoded: Bytes) -> Self {
        Self { id: call.id.clone(), tool: call.name.clone(), outcome, bytes, elided: false, encoded }
    }
}

impl Conversation {
    /// Adds a message.
    pub fn say(&mut self, message: Bytes) {
        self.entries.push(Entry::Message(message));
    }

    /// Adds the results of the last message's calls.
    pub fn answer(&mut self, results: Vec<Kept>) {
        self.entries.push(Entry::Results(results));
    }

    /// Everything, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Everything, to be shortened.
    pub fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Puts a message in the place of others.
    pub fn replace(&mut self, range: Range<usize>, message: Bytes) {
        self.entries.splice(range, [Entry::Message(message)]);
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> usize {
        self.entries
            .iter()
            .map(|entry| match entry {
                Entry::Message(message) => message.len(),
                Entry::Results(results) => results.iter().map(|it| it.encoded.len()).sum(),
            })
            .sum()
    }
}
