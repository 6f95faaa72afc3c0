//! An answer as it comes together, from a stream or at once.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value};
use sympozium_api::text::Chars;

use super::super::{Answer, Arguments, Broken, Call, MAX_ANSWER, MAX_CALLS, MAX_NAME, Stop, Usage};
use super::block::{Block, Kind, encoded_length};
use crate::model::ids::{Ids, is_plain};
use crate::model::problem::{self, line};

/// Blocks of one answer that are kept.
pub const MAX_BLOCKS: usize = 1024;
/// What knowing of a block costs that is left out.
const LEFT_OUT: usize = 64;
/// Characters of a provider's word for why the model stopped, and of what it says about that.
const MAX_REASON: Chars = Chars(500);
/// Characters of a tool's name that the API takes back.
const MAX_SENT_NAME: usize = 128;

/// An answer in the making.
#[derive(Debug, Default)]
pub struct Draft {
    blocks: Vec<Block>,
    /// How many of them are calls, and how many more calls there were.
    calls: usize,
    calls_left_out: usize,
    /// Blocks that are left out, by number: what they grow by is no part of any other. Without a number, the last block that
    /// started, if it is one of them.
    left_out: BTreeMap<Option<u64>, Kind>,
    /// What people read, as it came.
    pub text: String,
    stop: Option<String>,
    /// What the provider says about a refusal.
    explanation: String,
    usage: Option<Costs>,
    /// Bytes of everything that is kept.
    kept: usize,
}

/// What the provider says that it cost. Numbers are totals and only grow; some servers send a zero where they do not know.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    plain: u64,
    written_to_cache: u64,
    read_from_cache: u64,
    output: u64,
}

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Kept(usize),
    LeftOut,
}

/// The answer that a whole message is.
///
/// # Errors
///
/// When it is none, or says that something went wrong.
pub fn whole(mut message: Value, ids: &Ids) -> Result<Answer, Broken> {
    let has_error = message.get("error").is_some_and(|it| !it.is_null());
    if has_error || message.get("type").is_some_and(|it| it == "error") {
        return Err(Broken::Provider(problem::of_error(&message)));
    }
    let mut draft = Draft::default();
    match message.get_mut("content").map(Value::take) {
        Some(Value::Array(blocks)) => {
            for block in blocks {
                if let Value::Object(block) = block {
                    draft.start(None, block)?;
                }
            }
        }
        // As it may stand in a request.
        Some(Value::String(text)) => {
            let fields = [("type".to_owned(), "text".into()), ("text".to_owned(), text.into())];
            draft.start(None, Map::from_iter(fields))?;
        }
        _ => return Err(Broken::Unreadable("it has no content".to_owned())),
    }
    draft.stop(&message);
    draft.cost(message.get("usage"));
    Ok(draft.finish(ids))
}

impl Draft {
    /// A block starts. Those that are too many are left out, and calls among them counted.
    ///
    /// # Errors
    ///
    /// When the answer is too large.
    pub fn start(&mut self, index: Option<u64>, fields: Map<String, Value>) -> Result<(), Broken> {
        self.begin(index, fields).map(|_| ())
    }

    fn begin(&mut self, index: Option<u64>, fields: Map<String, Value>) -> Result<Place, Broken> {
        let kind = Kind::of(&fields);
        let is_call = kind == Kind::Call;
        if self.blocks.len() == MAX_BLOCKS || (is_call && self.calls == MAX_CALLS) {
            self.keep(LEFT_OUT)?;
            self.calls_left_out += usize::from(is_call);
            self.left_out.insert(index, kind);
            self.left_out.insert(None, kind);
            return Ok(Place::LeftOut);
        }
        self.left_out.remove(&index);
        self.left_out.remove(&None);
        self.calls += usize::from(is_call);
        self.keep(encoded_length(&fields))?;
        let mut block = Block::start(index, fields);
        let text = std::mem::take(&mut block.text);
        let at = self.blocks.len();
        self.blocks.push(block);
        match kind {
            Kind::Text => self.say(at, &text),
            _ => self.blocks[at].text = text,
        }
        Ok(Place::Kept(at))
    }

    /// A block grows, as a delta says. Kinds that are not known are passed over.
    ///
    /// # Errors
    ///
    /// When the answer is too large, or the arguments of a call come without the call.
    pub fn grow(&mut self, index: Option<u64>, delta: &mut Value) -> Result<(), Broken> {
        match delta.get("type").and_then(Value::as_str) {
            Some("text_delta") => {
                let more = text(delta, "text");
                self.keep(more.len())?;
                if let Place::Kept(at) = self.find_or_start(index, Kind::Text, "text")? {
                    self.say(at, more);
                }
            }
            Some("thinking_delta") => {
                let more = text(delta, "thinking");
                self.keep(more.len())?;
                if let Place::Kept(at) = self.find_or_start(index, Kind::Thought, "thinking")? {
                    self.blocks[at].text.push_str(more);
                }
            }
            Some("signature_delta") => {
                let more = text(delta, "signature");
                self.keep(more.len())?;
                if let Place::Kept(at) = self.find_or_start(index, Kind::Thought, "thinking")? {
                    self.blocks[at].sign(more);
                }
            }
            Some("input_json_delta") => {
                let more = text(delta, "partial_json");
                let found = self.find(index, |kind| matches!(kind, Kind::Call | Kind::Other));
                match found {
                    Some(Place::Kept(at)) => {
                        let kept = self.blocks[at].input(more);
                        self.keep(kept)?;
                    }
                    Some(Place::LeftOut) => {}
                    None => {
                        let problem = "there are arguments that belong to no call";
                        return Err(Broken::Unreadable(problem.to_owned()));
                    }
                }
            }
            Some("citations_delta") => {
                let citation = delta.get_mut("citation").map(Value::take);
                let at = self.find(index, |kind| kind == Kind::Text);
                if let (Some(Place::Kept(at)), Some(citation @ Value::Object(_))) = (at, citation) {
                    self.keep(citation.to_string().len())?;
                    self.blocks[at].cite(citation);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The provider says why it stops.
    pub fn stop(&mut self, delta: &Value) {
        if let Some(reason) = delta.get("stop_reason").and_then(Value::as_str) {
            self.stop = Some(line(reason, MAX_REASON));
        }
        let explanation = delta.pointer("/stop_details/explanation");
        if let Some(explanation) = explanation.and_then(Value::as_str) {
            self.explanation = line(explanation, MAX_REASON);
        }
    }

    /// Whether the provider has said why it stops.
    pub fn has_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// The provider says what it cost.
    pub fn cost(&mut self, usage: Option<&Value>) {
        let Some(usage @ Value::Object(_)) = usage else {
            return;
        };
        let costs = self.usage.get_or_insert_default();
        let grow = |total: &mut u64, name: &str| {
            let said = usage.get(name).and_then(Value::as_u64).unwrap_or_default();
            *total = (*total).max(said);
        };
        grow(&mut costs.plain, "input_tokens");
        grow(&mut costs.written_to_cache, "cache_creation_input_tokens");
        grow(&mut costs.read_from_cache, "cache_read_input_tokens");
        grow(&mut costs.output, "output_tokens");
    }

    /// The answer.
    ///
    /// Its message is empty when nothing is left in it that could be sent back: such an answer is not said.
    pub fn finish(mut self, ids: &Ids) -> Answer {
        let stop = self.why();
        let blocks = std::mem::take(&mut self.blocks);
        // Where the last block is left out, none of those that are kept was cut.
        let is_last_kept = !self.left_out.contains_key(&None);
        let last = blocks.len().checked_sub(1).filter(|_| is_last_kept);
        let mut calls = Vec::new();
        let mut content = Vec::new();
        for (at, mut block) in blocks.into_iter().enumerate() {
            if block.kind != Kind::Call {
                content.extend(block.into_value().map(Part::Block));
            } else {
                let id = ids.take(block.field("id"));
                let name = block.field("name");
                let name = name[..name.floor_char_boundary(MAX_NAME)].to_owned();
                let arguments = block.arguments(stop == Stop::Length && Some(at) == last);
                let input = match &arguments {
                    Arguments::Object(object) => Some(object),
                    Arguments::Unreadable(_) => None,
                };
                content.push(Part::Call(block.into_call(&id, &sent_name(&name), input)));
                calls.push(Call { id, name, arguments });
            }
        }
        Answer {
            text: self.text,
            calls,
            calls_left_out: self.calls_left_out,
            stop,
            usage: self.usage.map(Costs::sum),
            message: message(content),
        }
    }

    fn why(&self) -> Stop {
        match self.stop.as_deref() {
            None | Some("end_turn" | "tool_use" | "stop_sequence") => Stop::Finished,
            Some("max_tokens" | "model_context_window_exceeded") => Stop::Length,
            Some("refusal") if self.explanation.is_empty() => Stop::refused(&self.text),
            Some("refusal") => Stop::refused(&self.explanation),
            Some(other) => Stop::Other(other.to_owned()),
        }
    }

    /// More text of a block. What stands on either side of a call or a thought is not one sentence.
    fn say(&mut self, at: usize, more: &str) {
        let follows_other = at > 0 && self.blocks[at - 1].kind != Kind::Text;
        let is_first = self.blocks[at].text.is_empty() && !more.is_empty();
        if is_first && follows_other && !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.blocks[at].text.push_str(more);
        self.text.push_str(more);
    }

    /// The block with this number that fits; without a number, the last one that does. Numbers that come twice mean the
    /// later block.
    fn find(&self, index: Option<u64>, fits: impl Fn(Kind) -> bool) -> Option<Place> {
        if self.left_out.get(&index).is_some_and(|kind| fits(*kind)) {
            return Some(Place::LeftOut);
        }
        let is_meant = |block: &Block| (index.is_none() || block.index == index) && fits(block.kind);
        self.blocks.iter().rposition(is_meant).map(Place::Kept)
    }

    /// The same, of servers that do not say that a block starts.
    fn find_or_start(&mut self, index: Option<u64>, kind: Kind, name: &str) -> Result<Place, Broken> {
        match self.find(index, |it| it == kind) {
            Some(place) => Ok(place),
            None => self.begin(index, Map::from_iter([("type".to_owned(), name.into())])),
        }
    }

    fn keep(&mut self, bytes: usize) -> Result<(), Broken> {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept > MAX_ANSWER {
            return Err(Broken::TooLarge(MAX_ANSWER));
        }
        Ok(())
    }
}

impl Costs {
    fn sum(self) -> Usage {
        let cache = self.written_to_cache.saturating_add(self.read_from_cache);
        Usage { input: self.plain.saturating_add(cache), cached: self.read_from_cache, output: self.output }
    }
}

/// A name as the API takes it back, which is like the one that the model wrote.
fn sent_name(name: &str) -> String {
    let plain = name.chars().map(|it| match u8::try_from(it) {
        Ok(byte) if is_plain(byte) => it,
        _ => '_',
    });
    let sent: String = plain.take(MAX_SENT_NAME).collect();
    if sent.is_empty() { "_".to_owned() } else { sent }
}

/// A block of the message that stands in later requests.
enum Part {
    Block(Value),
    /// Encoded already.
    Call(Bytes),
}

/// The message as it stands in later requests; nothing where nothing is left in it. White space at its end stays: the API
/// refuses that only in the last message of a request, which is never the model's.
fn message(mut content: Vec<Part>) -> Bytes {
    // The API takes no message that ends with a thought: the model was cut off there.
    while content.last().is_some_and(is_thought) {
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

fn write(part: &Part, message: &mut Vec<u8>) {
    match part {
        Part::Block(block) => message.extend_from_slice(block.to_string().as_bytes()),
        Part::Call(call) => message.extend_from_slice(call),
    }
}

fn is_thought(part: &Part) -> bool {
    match part {
        Part::Block(block) => block["type"] == "thinking" || block["type"] == "redacted_thinking",
        Part::Call(_) => false,
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
