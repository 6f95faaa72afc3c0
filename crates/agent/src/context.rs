//! Limits the conversation: results are truncated when they arrive, the oldest are elided when there are too many, and
//! whole rounds are dropped when the model still rejects the length. A call always keeps its result.

use sympozium_api::builtin_tool::{FETCH_URL, LIST_DIRECTORY, LOAD_SKILL, READ_FILE};

use crate::conversation::{Conversation, EncodedResult, Entry};
use crate::model::Model;
use crate::settings::Settings;

const MIN_ROUNDS: usize = 2;

const ROUNDS_ELIDED: &str = "(The oldest rounds were left out here to save room.)";

/// Cuts a text to `max_bytes`, at a character, and appends a note that says so.
pub fn truncate_with_note(mut text: String, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text;
    }
    let total = text.len();
    let note = |kept_bytes: usize| format!("\n… (cut: {kept_bytes} of {total} bytes; ask for less at a time)");
    let room = max_bytes.saturating_sub(note(total).len());
    let end = text.floor_char_boundary(room);
    text.truncate(end);
    text.push_str(&note(end));
    text
}

/// Elides the oldest results when they exceed the settings' budget, but never those of the last round or the newest
/// few. Returns how many.
pub fn elide_results(conversation: &mut Conversation, model: &dyn Model, settings: &Settings) -> usize {
    if unelided_bytes(conversation) <= settings.history_bytes {
        return 0;
    }
    elide_to(conversation, model, settings.history_low_bytes, settings.kept_results)
}

/// Makes the conversation shorter after the model rejected its length: half of the results go, or whole rounds when
/// most bytes are in the model's own messages; finally the longest result of the last round. Returns whether anything
/// was elided.
pub fn shrink(conversation: &mut Conversation, model: &dyn Model) -> bool {
    let unelided = unelided_bytes(conversation);
    let results_dominate = unelided >= conversation.bytes() / 2;
    results_dominate && elide_to(conversation, model, unelided / 2, 0) > 0
        || drop_rounds(conversation, model)
        || elide_to(conversation, model, unelided / 2, 0) > 0
        || elide_longest_recent(conversation, model)
}

fn unelided_bytes(conversation: &Conversation) -> usize {
    results(conversation).filter(|result| !result.elided).map(|result| result.bytes).sum()
}

fn results(conversation: &Conversation) -> impl Iterator<Item = &EncodedResult> {
    conversation.entries().iter().flat_map(|entry| match entry {
        Entry::Results(results) => results.as_slice(),
        Entry::Message(_) => &[],
    })
}

fn elide_to(conversation: &mut Conversation, model: &dyn Model, target: usize, kept_results: usize) -> usize {
    let mut unelided = unelided_bytes(conversation);
    let newest = results(conversation).count().saturating_sub(kept_results);
    let is_results = |entry: &Entry| matches!(entry, Entry::Results(_));
    let entries = conversation.entries_mut();
    let last = entries.iter().rposition(is_results).unwrap_or(0);
    let old = entries[..last].iter_mut().flat_map(|entry| match entry {
        Entry::Results(results) => results.as_mut_slice(),
        Entry::Message(_) => &mut [],
    });
    let mut elided = 0;
    for result in old.take(newest) {
        if unelided <= target {
            break;
        }
        let stub = format!(
            "(The result of `{}`, {} bytes, was left out to save room.{})",
            result.tool,
            result.bytes,
            repeat_hint(&result.tool)
        );
        let bytes = result.bytes;
        if elide_result(result, &stub, model) {
            unelided -= bytes;
            elided += 1;
        }
    }
    elided
}

/// Only tools without side effects are suggested again.
fn repeat_hint(tool: &str) -> &'static str {
    match tool {
        READ_FILE | LIST_DIRECTORY | LOAD_SKILL | FETCH_URL => " Call it again if you need it.",
        _ => "",
    }
}

/// Elides the longest result of the last round: it alone may exceed the model's context.
fn elide_longest_recent(conversation: &mut Conversation, model: &dyn Model) -> bool {
    let last = conversation.entries_mut().iter_mut().rev();
    let results = last.filter_map(|entry| match entry {
        Entry::Results(results) => Some(results),
        Entry::Message(_) => None,
    });
    let results = results.take(1).flatten();
    let Some(longest) = results.filter(|result| !result.elided).max_by_key(|result| result.bytes) else {
        return false;
    };
    let stub = format!(
        "(The result of `{}` has {} bytes, which is more than you can read at once. Ask for less: fewer lines, a narrower question.)",
        longest.tool, longest.bytes
    );
    elide_result(longest, &stub, model)
}

/// Results that are hardly longer than the stub stay.
fn elide_result(result: &mut EncodedResult, stub: &str, model: &dyn Model) -> bool {
    if result.elided || result.bytes <= stub.len() {
        return false;
    }
    result.encoded = model.tool_result(&result.id, stub, result.outcome);
    result.elided = true;
    true
}

/// Drops the oldest half of the rounds, but never the task and the newest rounds.
fn drop_rounds(conversation: &mut Conversation, model: &dyn Model) -> bool {
    let entries = conversation.entries();
    // A round starts with the model's message before its results.
    let starts: Vec<usize> = (1..entries.len())
        .filter(|index| matches!(entries[*index], Entry::Results(_)))
        .map(|index| index - 1)
        .collect();
    let Some(droppable) = starts.len().checked_sub(MIN_ROUNDS).filter(|count| *count > 0) else {
        return false;
    };
    let to = starts[droppable.div_ceil(2)];
    // The range starts after the task and includes an earlier note.
    conversation.replace(1..to, model.user_message(ROUNDS_ELIDED));
    true
}

#[cfg(test)]
mod tests;
