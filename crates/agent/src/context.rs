//! What of the conversation is sent again: results are cut when they come, the oldest are left out when there is too much of
//! them, and whole rounds when the model still cannot read it all. A call is never without its result.

use sympozium_api::builtin_tool::{FETCH_URL, LIST_DIRECTORY, LOAD_SKILL, READ_FILE};

use crate::conversation::{Conversation, Entry, Kept};
use crate::model::Model;
use crate::settings::Settings;

/// Rounds that stay when whole rounds are left out.
const KEPT_ROUNDS: usize = 2;

/// Stands for rounds that were left out.
const ROUNDS_LEFT_OUT: &str = "(The oldest rounds were left out here to save room.)";

/// Cuts a text to so many bytes, at a character, and says so with the text itself.
pub fn clamp(mut text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let whole = text.len();
    let note = |kept: usize| format!("\n… (cut: {kept} of {whole} bytes; ask for less at a time)");
    let room = most.saturating_sub(note(whole).len());
    let end = text.floor_char_boundary(room);
    text.truncate(end);
    text.push_str(&note(end));
    text
}

/// Leaves the oldest results out where there are more bytes of them than the settings allow. Never those of the last round,
/// nor the newest few. Gives how many were.
pub fn elide(conversation: &mut Conversation, model: &dyn Model, settings: &Settings) -> usize {
    if live_bytes(conversation) <= settings.history_bytes {
        return 0;
    }
    elide_to(conversation, model, settings.history_low_bytes, settings.kept_results)
}

/// Makes the conversation shorter because the model cannot read it all: half of the results go, or whole rounds where the
/// weight is in what the model itself said; at last the longest result of the last round. Gives whether anything could be
/// left out.
pub fn shorten(conversation: &mut Conversation, model: &dyn Model) -> bool {
    let live = live_bytes(conversation);
    let results_weigh = live >= conversation.bytes() / 2;
    results_weigh && elide_to(conversation, model, live / 2, 0) > 0
        || drop_rounds(conversation, model)
        || elide_to(conversation, model, live / 2, 0) > 0
        || elide_newest(conversation, model)
}

fn live_bytes(conversation: &Conversation) -> usize {
    results(conversation).filter(|it| !it.elided).map(|it| it.bytes).sum()
}

fn results(conversation: &Conversation) -> impl Iterator<Item = &Kept> {
    conversation.entries().iter().flat_map(|entry| match entry {
        Entry::Results(results) => results.as_slice(),
        Entry::Message(_) => &[],
    })
}

fn elide_to(conversation: &mut Conversation, model: &dyn Model, target: usize, kept: usize) -> usize {
    let mut live = live_bytes(conversation);
    let newest = results(conversation).count().saturating_sub(kept);
    let is_results = |entry: &Entry| matches!(entry, Entry::Results(_));
    let entries = conversation.entries_mut();
    let last = entries.iter().rposition(is_results).unwrap_or(0);
    let old = entries[..last].iter_mut().flat_map(|entry| match entry {
        Entry::Results(results) => results.as_mut_slice(),
        Entry::Message(_) => &mut [],
    });
    let mut elided = 0;
    for result in old.take(newest) {
        if live <= target {
            break;
        }
        let stub = format!(
            "(The result of `{}`, {} bytes, was left out to save room.{})",
            result.tool,
            result.bytes,
            again(&result.tool)
        );
        let bytes = result.bytes;
        if replace(result, &stub, model) {
            live -= bytes;
            elided += 1;
        }
    }
    elided
}

/// What can be looked at twice without doing anything twice.
fn again(tool: &str) -> &'static str {
    match tool {
        READ_FILE | LIST_DIRECTORY | LOAD_SKILL | FETCH_URL => " Call it again if you need it.",
        _ => "",
    }
}

/// Leaves out the longest result of the last round: it alone may be more than the model reads.
fn elide_newest(conversation: &mut Conversation, model: &dyn Model) -> bool {
    let last = conversation.entries_mut().iter_mut().rev();
    let results = last.filter_map(|entry| match entry {
        Entry::Results(results) => Some(results),
        Entry::Message(_) => None,
    });
    let results = results.take(1).flatten();
    let Some(longest) = results.filter(|it| !it.elided).max_by_key(|it| it.bytes) else {
        return false;
    };
    let stub = format!(
        "(The result of `{}` has {} bytes, which is more than you can read at once. Ask for less: fewer lines, a narrower question.)",
        longest.tool, longest.bytes
    );
    replace(longest, &stub, model)
}

/// Puts a line in the place of a result. What is hardly longer than the line stays.
fn replace(result: &mut Kept, line: &str, model: &dyn Model) -> bool {
    if result.elided || result.bytes <= line.len() {
        return false;
    }
    result.encoded = model.result(&result.id, line, result.outcome);
    result.elided = true;
    true
}

/// Leaves out the oldest half of the rounds, but for the task and the newest.
fn drop_rounds(conversation: &mut Conversation, model: &dyn Model) -> bool {
    let entries = conversation.entries();
    // A round begins with the model's message before its results.
    let starts: Vec<usize> = (1..entries.len())
        .filter(|index| matches!(entries[*index], Entry::Results(_)))
        .map(|index| index - 1)
        .collect();
    let Some(droppable) = starts.len().checked_sub(KEPT_ROUNDS).filter(|it| *it > 0) else {
        return false;
    };
    let to = starts[droppable.div_ceil(2)];
    // From behind the task on: the line about what was left out before is not said twice.
    conversation.replace(1..to, model.user(ROUNDS_LEFT_OUT));
    true
}

#[cfg(test)]
mod tests;
