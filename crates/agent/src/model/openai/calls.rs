//! Calls of tools, put together from the pieces in which they come.
//!
//! A piece says which call it belongs to by `index`. Not every server does. Google sends none; others, and proxies before
//! Google, send 0 for every call, each whole with an id of its own. So a piece begins a new call also where it names a
//! function and has another id, or where it names one and begins an object after the last one has ended.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use super::arguments::{self, Fate, Scan};
use super::budget::Budget;
use super::extra::Extra;
use super::recovered::Offered;
use crate::model::ids::Ids;
use crate::model::{Broken, Call, MAX_ARGUMENTS, MAX_CALLS, MAX_NAME};

/// What a call costs beside its bytes, and what knowing of one costs that is left out.
const CALL: usize = 256;
const LEFT_OUT: usize = 64;
/// Letters of a function's name that every provider takes.
const MAX_FUNCTION: usize = 64;

/// Calls in the making.
#[derive(Debug, Default)]
pub struct Calls {
    drafts: Vec<Draft>,
    /// What is known of calls that are left out.
    others: BTreeSet<Other>,
    left_out: usize,
    /// Where a piece goes that does not say so, and what the last one said.
    last: Option<Slot>,
    last_index: Option<u64>,
}

#[derive(Debug, Default)]
struct Draft {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    scan: Scan,
    is_too_long: bool,
    /// Fields of the call, and of its function.
    extra: Extra,
    function: Extra,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Other {
    Index(u64),
    /// By a hash: ids may be long.
    Id(u64),
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Kept(usize),
    LeftOut,
}

/// How calls are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// Piece by piece.
    InPieces,
    /// Each whole.
    Whole,
}

/// A piece of a call.
#[derive(Debug, Default)]
struct Piece {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    extra: Map<String, Value>,
    function: Map<String, Value>,
}

/// A call, and how it stands in later requests.
pub type Made = (Call, Value);

impl Calls {
    /// Adds a piece.
    ///
    /// # Errors
    ///
    /// When the answer has become too large.
    pub fn add(&mut self, piece: Value, listed: Listed, budget: &mut Budget) -> Result<(), Broken> {
        let Value::Object(piece) = piece else {
            return Ok(());
        };
        let piece = Piece::of(piece);
        let slot = match (listed, self.slot(&piece)) {
            (Listed::InPieces, Some(slot)) => slot,
            _ => self.begin(&piece, budget)?,
        };
        self.last = Some(slot);
        self.last_index = piece.index;
        match slot {
            Slot::Kept(at) => match self.drafts.get_mut(at) {
                Some(draft) => draft.add(piece, budget),
                None => Ok(()),
            },
            Slot::LeftOut => Ok(()),
        }
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// How many are left out.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Whether the arguments of one break off.
    pub fn are_open(&self) -> bool {
        self.drafts.iter().any(|draft| draft.scan.is_open())
    }

    /// The calls.
    pub fn finish(self, is_cut_off: bool, ids: &Ids, offered: &Offered) -> Vec<Made> {
        let count = self.drafts.len();
        let mut made = Vec::with_capacity(count);
        for (index, draft) in self.drafts.into_iter().enumerate() {
            if draft.says_nothing() {
                continue;
            }
            let fate = if draft.is_too_long {
                Fate::TooLong
            } else if is_cut_off && index + 1 == count {
                Fate::CutOff
            } else {
                Fate::Whole
            };
            let id = ids.take(&draft.id);
            let read = arguments::read(draft.arguments, fate);
            let sent = acceptable(&draft.name, offered);
            made.push(make(id, draft.name, sent, read, draft.extra, draft.function));
        }
        made
    }

    /// Where a piece belongs; nowhere, where it begins a call.
    fn slot(&self, piece: &Piece) -> Option<Slot> {
        let follows = piece.id.is_empty() && piece.index == self.last_index;
        if let (true, Some(Slot::LeftOut)) = (follows, self.last) {
            return (!piece.begins_anew()).then_some(Slot::LeftOut);
        }
        let found = match piece.index {
            Some(index) => self.drafts.iter().rposition(|it| it.index == Some(index)),
            None if !piece.id.is_empty() => self.drafts.iter().rposition(|it| it.id_is(&piece.id)),
            None => match self.last? {
                Slot::Kept(at) => Some(at),
                Slot::LeftOut => return Some(Slot::LeftOut),
            },
        };
        match found {
            Some(at) => {
                let draft = self.drafts.get(at)?;
                (!draft.is_followed_by(piece)).then_some(Slot::Kept(at))
            }
            None => self.others.contains(&piece.other()?).then_some(Slot::LeftOut),
        }
    }

    /// A new call.
    fn begin(&mut self, piece: &Piece, budget: &mut Budget) -> Result<Slot, Broken> {
        if self.drafts.len() < MAX_CALLS {
            budget.take(CALL)?;
            self.drafts.push(Draft { index: piece.index, ..Draft::default() });
            return Ok(Slot::Kept(self.drafts.len() - 1));
        }
        let is_kept_index = self.drafts.iter().any(|it| it.index == piece.index);
        let other = match piece.other() {
            // The index is that of a call which is kept; only the id tells them apart.
            Some(Other::Index(_)) if is_kept_index => piece.other_by_id(),
            other => other,
        };
        let is_new = match other {
            Some(other) => self.others.insert(other),
            None => true,
        };
        if is_new {
            budget.take(LEFT_OUT)?;
            self.left_out += 1;
        }
        Ok(Slot::LeftOut)
    }
}

impl Piece {
    fn of(mut fields: Map<String, Value>) -> Self {
        let text = |value: Option<Value>| match value {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let index = fields.remove("index").and_then(|it| it.as_u64());
        let id = text(fields.remove("id"));
        fields.remove("type");
        let mut function = match fields.remove("function") {
            Some(Value::Object(function)) => function,
            _ => Map::new(),
        };
        Self {
            index,
            id,
            name: text(function.remove("name")),
            arguments: match function.remove("arguments") {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text,
                // Some write the object itself.
                Some(other) => other.to_string(),
            },
            extra: fields,
            function,
        }
    }

    fn begins_an_object(&self) -> bool {
        self.arguments.trim_start().starts_with('{')
    }

    fn begins_anew(&self) -> bool {
        !self.name.is_empty() && (self.arguments.is_empty() || self.begins_an_object())
    }

    fn other(&self) -> Option<Other> {
        match self.index {
            Some(index) => Some(Other::Index(index)),
            None => self.other_by_id(),
        }
    }

    fn other_by_id(&self) -> Option<Other> {
        if self.id.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        self.id.hash(&mut hasher);
        Some(Other::Id(hasher.finish()))
    }
}

impl Draft {
    /// Whether a piece that seems to be of this call begins the next one.
    fn is_followed_by(&self, piece: &Piece) -> bool {
        if piece.name.is_empty() || self.name.is_empty() {
            return false;
        }
        let is_other = !piece.id.is_empty() && !self.id.is_empty() && !self.id_is(&piece.id);
        let is_known = !piece.id.is_empty() && self.id_is(&piece.id);
        let is_over = self.scan.is_closed() && piece.begins_an_object();
        let has_other_name = piece.index.is_none() && piece.name != self.name;
        is_other || (!is_known && (is_over || has_other_name))
    }

    /// Whether the call goes by this id; ours may have been cut.
    fn id_is(&self, id: &str) -> bool {
        self.id == id[..id.floor_char_boundary(MAX_NAME)]
    }

    fn add(&mut self, piece: Piece, budget: &mut Budget) -> Result<(), Broken> {
        if self.id.is_empty() && !piece.id.is_empty() {
            self.id = piece.id[..piece.id.floor_char_boundary(MAX_NAME)].to_owned();
            budget.take(self.id.len())?;
        }
        self.add_name(&piece.name, budget)?;
        // Who sends a whole call again says nothing new.
        let is_repeated = self.scan.is_closed() && piece.begins_an_object();
        if !is_repeated {
            self.add_arguments(&piece.arguments, budget)?;
        }
        for (name, value) in piece.extra {
            self.extra.add(&name, value, budget)?;
        }
        for (name, value) in piece.function {
            self.function.add(&name, value, budget)?;
        }
        Ok(())
    }

    /// A name comes whole, again with every piece, or, rarely, in pieces before any arguments.
    fn add_name(&mut self, name: &str, budget: &mut Budget) -> Result<(), Broken> {
        let is_known = self.name == name || !self.arguments.is_empty() || self.is_too_long;
        if name.is_empty() || (is_known && !self.name.is_empty()) {
            return Ok(());
        }
        let room = MAX_NAME.saturating_sub(self.name.len());
        let name = &name[..name.floor_char_boundary(room)];
        budget.take(name.len())?;
        self.name.push_str(name);
        Ok(())
    }

    fn add_arguments(&mut self, text: &str, budget: &mut Budget) -> Result<(), Broken> {
        self.scan.read(text);
        if self.is_too_long {
            return Ok(());
        }
        if self.arguments.len() + text.len() > MAX_ARGUMENTS {
            self.is_too_long = true;
            budget.give(self.arguments.len());
            self.arguments = String::new();
            return Ok(());
        }
        budget.take(text.len())?;
        self.arguments.push_str(text);
        Ok(())
    }

    fn says_nothing(&self) -> bool {
        self.id.is_empty() && self.name.is_empty() && self.arguments.trim().is_empty() && !self.is_too_long
    }
}

/// A call, and how it stands in later requests, by the name that is sent.
pub fn make(
    id: String,
    name: String,
    sent: String,
    read: arguments::Read,
    extra: Extra,
    function_extra: Extra,
) -> Made {
    let mut function = Map::new();
    function.insert("name".to_owned(), sent.into());
    function.insert("arguments".to_owned(), read.written.into());
    function_extra.finish(&mut function);
    let mut call = Map::new();
    call.insert("id".to_owned(), json!(id));
    call.insert("type".to_owned(), "function".into());
    call.insert("function".to_owned(), function.into());
    extra.finish(&mut call);
    let arguments = read.arguments;
    (Call { id, name, arguments }, call.into())
}

/// A name as it may stand in a request. Providers refuse a conversation in which a call has a name that no function could
/// have, so a model that makes one up would end its run.
fn acceptable(name: &str, offered: &Offered) -> String {
    if offered.has(name) {
        return name.to_owned();
    }
    let plain = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => letter,
        _ => '_',
    };
    let name: String = name.chars().take(MAX_FUNCTION).map(plain).collect();
    if name.is_empty() {
        return "unnamed".to_owned();
    }
    name
}
