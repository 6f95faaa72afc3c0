//! The conversation as requests carry it. Every message is encoded once, when it is added, and stored only in that
//! form.

use std::ops::Range;

use bytes::Bytes;

use crate::model::{Call, ToolOutcome};

#[derive(Debug, Clone, Default)]
pub struct Conversation {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
pub enum Entry {
    Message(Bytes),
    /// The results of all calls of the message before, in its order.
    Results(Vec<EncodedResult>),
}

#[derive(Debug, Clone)]
pub struct EncodedResult {
    pub id: String,
    pub tool: String,
    pub outcome: ToolOutcome,
    /// Bytes of the text, not of its encoding.
    pub bytes: usize,
    /// Whether the result was replaced by a stub.
    pub elided: bool,
    /// One JSON object: a message, or a content block of one.
    pub encoded: Bytes,
}

impl EncodedResult {
    pub fn new(call: &Call, outcome: ToolOutcome, bytes: usize, encoded: Bytes) -> Self {
        Self { id: call.id.clone(), tool: call.name.clone(), outcome, bytes, elided: false, encoded }
    }
}

impl Conversation {
    pub fn push_message(&mut self, message: Bytes) {
        self.entries.push(Entry::Message(message));
    }

    pub fn push_results(&mut self, results: Vec<EncodedResult>) {
        self.entries.push(Entry::Results(results));
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    pub fn replace(&mut self, range: Range<usize>, message: Bytes) {
        self.entries.splice(range, [Entry::Message(message)]);
    }

    pub fn bytes(&self) -> usize {
        self.entries
            .iter()
            .map(|entry| match entry {
                Entry::Message(message) => message.len(),
                Entry::Results(results) => results.iter().map(|result| result.encoded.len()).sum(),
            })
            .sum()
    }
}
