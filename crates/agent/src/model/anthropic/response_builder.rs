//! Builds a response from events or from an unstreamed message.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value};
use sympozium_api::text::Chars;

use super::super::{
    Call, CallArguments, MAX_CALLS, MAX_NAME, MAX_RESPONSE, ModelResponse, ResponseError, StopReason, Usage,
};
use super::block::{Block, BlockKind, encoded_length};
use crate::model::call_ids::{CallIds, is_plain};
use crate::model::provider_error::{self, one_line};

pub const MAX_BLOCKS: usize = 1024;
/// What a dropped block is charged.
const DROPPED_BLOCK_COST: usize = 64;
const MAX_REASON: Chars = Chars(500);
/// Characters of a tool's name that the API accepts.
const MAX_SENT_NAME: usize = 128;

#[derive(Debug, Default)]
pub struct ResponseBuilder {
    blocks: Vec<Block>,
    calls: usize,
    dropped_calls: usize,
    /// Kinds of dropped blocks by index, whose deltas belong to no other block. `None` stands for the last started
    /// block when it was dropped.
    dropped: BTreeMap<Option<u64>, BlockKind>,
    pub text: String,
    stop: Option<String>,
    explanation: String,
    usage: Option<TokenCounts>,
    /// Bytes charged so far.
    charged: usize,
}

/// Totals as reported, which only grow; some servers send a zero for unknown.
#[derive(Debug, Clone, Copy, Default)]
struct TokenCounts {
    plain: u64,
    written_to_cache: u64,
    read_from_cache: u64,
    output: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockSlot {
    Kept(usize),
    Dropped,
}

pub fn from_message(mut message: Value, ids: &CallIds) -> Result<ModelResponse, ResponseError> {
    let has_error = message.get("error").is_some_and(|error| !error.is_null());
    if has_error || message.get("type").is_some_and(|kind| kind == "error") {
        return Err(ResponseError::Provider(provider_error::from_event(&message)));
    }
    let mut builder = ResponseBuilder::default();
    match message.get_mut("content").map(Value::take) {
        Some(Value::Array(blocks)) => {
            for block in blocks {
                if let Value::Object(block) = block {
                    builder.start_block(None, block)?;
                }
            }
        }
        // Valid in requests, and some servers answer with it.
        Some(Value::String(text)) => {
            let fields = [("type".to_owned(), "text".into()), ("text".to_owned(), text.into())];
            builder.start_block(None, Map::from_iter(fields))?;
        }
        _ => return Err(ResponseError::Invalid("it has no content".to_owned())),
    }
    builder.set_stop_reason(&message);
    builder.add_usage(message.get("usage"));
    Ok(builder.finish(ids))
}

impl ResponseBuilder {
    /// Starts a block. Blocks beyond the limits are dropped, and calls among them counted.
    pub fn start_block(&mut self, index: Option<u64>, fields: Map<String, Value>) -> Result<(), ResponseError> {
        self.add_block(index, fields).map(|_| ())
    }

    fn add_block(&mut self, index: Option<u64>, fields: Map<String, Value>) -> Result<BlockSlot, ResponseError> {
        let kind = BlockKind::from_fields(&fields);
        let is_call = kind == BlockKind::Call;
        if self.blocks.len() == MAX_BLOCKS || (is_call && self.calls == MAX_CALLS) {
            self.charge(DROPPED_BLOCK_COST)?;
            self.dropped_calls += usize::from(is_call);
            self.dropped.insert(index, kind);
            self.dropped.insert(None, kind);
            return Ok(BlockSlot::Dropped);
        }
        self.dropped.remove(&index);
        self.dropped.remove(&None);
        self.calls += usize::from(is_call);
        self.charge(encoded_length(&fields))?;
        let mut block = Block::start(index, fields);
        let text = std::mem::take(&mut block.text);
        let position = self.blocks.len();
        self.blocks.push(block);
        match kind {
            BlockKind::Text => self.append_text(position, &text),
            _ => self.blocks[position].text = text,
        }
        Ok(BlockSlot::Kept(position))
    }

    /// Applies a delta to its block. Unknown kinds are ignored.
    pub fn apply_delta(&mut self, index: Option<u64>, delta: &mut Value) -> Result<(), ResponseError> {
        match delta.get("type").and_then(Value::as_str) {
            Some("text_delta") => {
                let delta_text = text(delta, "text");
                self.charge(delta_text.len())?;
                if let BlockSlot::Kept(position) = self.find_or_start(index, BlockKind::Text, "text")? {
                    self.append_text(position, delta_text);
                }
            }
            Some("thinking_delta") => {
                let delta_text = text(delta, "thinking");
                self.charge(delta_text.len())?;
                if let BlockSlot::Kept(position) = self.find_or_start(index, BlockKind::Thinking, "thinking")? {
                    self.blocks[position].text.push_str(delta_text);
                }
            }
            Some("signature_delta") => {
                let delta_text = text(delta, "signature");
                self.charge(delta_text.len())?;
                if let BlockSlot::Kept(position) = self.find_or_start(index, BlockKind::Thinking, "thinking")? {
                    self.blocks[position].append_signature(delta_text);
                }
            }
            Some("input_json_delta") => {
                let delta_text = text(delta, "partial_json");
                let found = self.find(index, |kind| matches!(kind, BlockKind::Call | BlockKind::Other));
                match found {
                    Some(BlockSlot::Kept(position)) => {
                        let added = self.blocks[position].append_input(delta_text);
                        self.charge(added)?;
                    }
                    Some(BlockSlot::Dropped) => {}
                    None => {
                        let problem = "there are arguments that belong to no call";
                        return Err(ResponseError::Invalid(problem.to_owned()));
                    }
                }
            }
            Some("citations_delta") => {
                let citation = delta.get_mut("citation").map(Value::take);
                let position = self.find(index, |kind| kind == BlockKind::Text);
                if let (Some(BlockSlot::Kept(position)), Some(citation @ Value::Object(_))) = (position, citation) {
                    self.charge(citation.to_string().len())?;
                    self.blocks[position].add_citation(citation);
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub fn set_stop_reason(&mut self, delta: &Value) {
        if let Some(reason) = delta.get("stop_reason").and_then(Value::as_str) {
            self.stop = Some(one_line(reason, MAX_REASON));
        }
        let explanation = delta.pointer("/stop_details/explanation");
        if let Some(explanation) = explanation.and_then(Value::as_str) {
            self.explanation = one_line(explanation, MAX_REASON);
        }
    }

    pub fn has_stop_reason(&self) -> bool {
        self.stop.is_some()
    }

    pub fn add_usage(&mut self, usage: Option<&Value>) {
        let Some(usage @ Value::Object(_)) = usage else {
            return;
        };
        let counts = self.usage.get_or_insert_default();
        let raise = |total: &mut u64, name: &str| {
            let reported = usage.get(name).and_then(Value::as_u64).unwrap_or_default();
            *total = (*total).max(reported);
        };
        raise(&mut counts.plain, "input_tokens");
        raise(&mut counts.written_to_cache, "cache_creation_input_tokens");
        raise(&mut counts.read_from_cache, "cache_read_input_tokens");
        raise(&mut counts.output, "output_tokens");
    }

    /// The message of the response is empty when nothing in it could be sent back.
    pub fn finish(mut self, ids: &CallIds) -> ModelResponse {
        let stop = self.stop_reason();
        let blocks = std::mem::take(&mut self.blocks);
        // If the last block was dropped, no kept block was truncated.
        let is_last_block_kept = !self.dropped.contains_key(&None);
        let last = blocks.len().checked_sub(1).filter(|_| is_last_block_kept);
        let mut calls = Vec::new();
        let mut content = Vec::new();
        for (position, mut block) in blocks.into_iter().enumerate() {
            if block.kind != BlockKind::Call {
                content.extend(block.into_value().map(ContentPart::Block));
            } else {
                let id = ids.assign(block.str_field("id"));
                let name = block.str_field("name");
                let name = name[..name.floor_char_boundary(MAX_NAME)].to_owned();
                let arguments = block.arguments(stop == StopReason::Length && Some(position) == last);
                let input = match &arguments {
                    CallArguments::Object(object) => Some(object),
                    CallArguments::Invalid(_) => None,
                };
                content.push(ContentPart::Call(block.into_call(&id, &sanitize_name(&name), input)));
                calls.push(Call { id, name, arguments });
            }
        }
        ModelResponse {
            text: self.text,
            calls,
            dropped_calls: self.dropped_calls,
            stop,
            usage: self.usage.map(TokenCounts::sum),
            message: message(content),
        }
    }

    fn stop_reason(&self) -> StopReason {
        match self.stop.as_deref() {
            None | Some("end_turn" | "tool_use" | "stop_sequence") => StopReason::Finished,
            Some("max_tokens" | "model_context_window_exceeded") => StopReason::Length,
            Some("refusal") if self.explanation.is_empty() => StopReason::refusal(&self.text),
            Some("refusal") => StopReason::refusal(&self.explanation),
            Some(other) => StopReason::Other(other.to_owned()),
        }
    }

    /// Texts on either side of a call or of thinking are separate paragraphs.
    fn append_text(&mut self, position: usize, delta_text: &str) {
        let follows_other = position > 0 && self.blocks[position - 1].kind != BlockKind::Text;
        let is_first = self.blocks[position].text.is_empty() && !delta_text.is_empty();
        if is_first && follows_other && !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.blocks[position].text.push_str(delta_text);
        self.text.push_str(delta_text);
    }

    /// The block with this index that matches, or the last match without an index. A repeated index means the later
    /// block.
    fn find(&self, index: Option<u64>, fits: impl Fn(BlockKind) -> bool) -> Option<BlockSlot> {
        if self.dropped.get(&index).is_some_and(|kind| fits(*kind)) {
            return Some(BlockSlot::Dropped);
        }
        let is_match = |block: &Block| (index.is_none() || block.index == index) && fits(block.kind);
        self.blocks.iter().rposition(is_match).map(BlockSlot::Kept)
    }

    /// As [`Self::find`], for servers that omit `content_block_start`.
    fn find_or_start(&mut self, index: Option<u64>, kind: BlockKind, name: &str) -> Result<BlockSlot, ResponseError> {
        match self.find(index, |found| found == kind) {
            Some(slot) => Ok(slot),
            None => self.add_block(index, Map::from_iter([("type".to_owned(), name.into())])),
        }
    }

    fn charge(&mut self, bytes: usize) -> Result<(), ResponseError> {
        self.charged = self.charged.saturating_add(bytes);
        if self.charged > MAX_RESPONSE {
            return Err(ResponseError::TooLarge(MAX_RESPONSE));
        }
        Ok(())
    }
}

impl TokenCounts {
    fn sum(self) -> Usage {
        let cache = self.written_to_cache.saturating_add(self.read_from_cache);
        Usage { input: self.plain.saturating_add(cache), cached: self.read_from_cache, output: self.output }
    }
}

/// The name reduced to characters that the API accepts.
fn sanitize_name(name: &str) -> String {
    let plain = name.chars().map(|character| match u8::try_from(character) {
        Ok(byte) if is_plain(byte) => character,
        _ => '_',
    });
    let sent: String = plain.take(MAX_SENT_NAME).collect();
    if sent.is_empty() { "_".to_owned() } else { sent }
}

enum ContentPart {
    Block(Value),
    /// Encoded JSON.
    Call(Bytes),
}

/// The assistant message for later requests; empty when nothing is left of it. Trailing white space stays: the API
/// refuses it only in the last message of a request, which is never the model's.
fn message(mut content: Vec<ContentPart>) -> Bytes {
    // The API refuses a message that ends with thinking: the model was truncated there.
    while content.last().is_some_and(is_thinking) {
        content.pop();
    }
    let Some((first, rest)) = content.split_first() else {
        return Bytes::new();
    };
    let mut message = br#"{"role":"assistant","content":["#.to_vec();
    write(first, &mut message);
    for part in rest {
        message.push(b',');
        write(part, &mut message);
    }
    message.extend_from_slice(b"]}");
    Bytes::from(message)
}

fn write(part: &ContentPart, message: &mut Vec<u8>) {
    match part {
        ContentPart::Block(block) => message.extend_from_slice(block.to_string().as_bytes()),
        ContentPart::Call(call) => message.extend_from_slice(call),
    }
}

fn is_thinking(part: &ContentPart) -> bool {
    match part {
        ContentPart::Block(block) => block["type"] == "thinking" || block["type"] == "redacted_thinking",
        ContentPart::Call(_) => false,
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
