//! What is left out, and what never is.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::model::{BodyFormat, Call, CallArguments, ProviderError, ResponseReader, ToolChoice, ToolOutcome};

/// A format in which everything can be read back.
struct Plain;

impl Model for Plain {
    fn user_message(&self, text: &str) -> Bytes {
        json!({ "user": text }).to_string().into()
    }

    fn tool_result(&self, id: &str, text: &str, _: ToolOutcome) -> Bytes {
        json!({ "result": id, "text": text }).to_string().into()
    }

    fn request(&self, _: &Conversation, _: ToolChoice) -> Vec<Bytes> {
        unreachable!("nothing is sent here")
    }

    fn reader(&self, _: BodyFormat) -> Box<dyn ResponseReader> {
        unreachable!("nothing is read here")
    }

    fn provider_error(&self, _: u16, _: &[u8]) -> ProviderError {
        unreachable!("nothing goes wrong here")
    }
}

/// Rounds of calls, each with a result of so many bytes.
fn conversation(rounds: &[Vec<usize>]) -> Conversation {
    let mut conversation = Conversation::default();
    conversation.push_message(Plain.user_message("the task"));
    for (round, sizes) in rounds.iter().enumerate() {
        let id = |index: usize| format!("{round}.{index}");
        let calls: Vec<String> = (0..sizes.len()).map(id).collect();
        conversation.push_message(json!({ "calls": calls }).to_string().into());
        let kept_results = sizes.iter().enumerate().map(|(index, size)| {
            let call =
                Call { id: id(index), name: "read_file".to_owned(), arguments: CallArguments::Object(Map::new()) };
            let encoded = Plain.tool_result(&call.id, &"x".repeat(*size), ToolOutcome::Succeeded);
            EncodedResult::new(&call, ToolOutcome::Succeeded, *size, encoded)
        });
        conversation.push_results(kept_results.collect());
    }
    conversation
}

fn settings(history_bytes: usize, history_low_bytes: usize, kept_results: usize) -> Settings {
    Settings {
        iterations: 50,
        result_bytes: 1000,
        history_bytes,
        history_low_bytes,
        kept_results,
        retries: 0,
        request_timeout: std::time::Duration::from_secs(1),
    }
}

/// Ids of the results that are whole.
fn unelided(conversation: &Conversation) -> Vec<&str> {
    let unelided = results(conversation).filter(|result| !result.elided);
    unelided.map(|result| result.id.as_str()).collect()
}

/// Every call has its result right behind it, and no result is without its call.
fn pairs_hold(conversation: &Conversation) {
    let mut open: Vec<String> = Vec::new();
    for entry in conversation.entries() {
        match entry {
            Entry::Message(message) => {
                assert!(open.is_empty(), "calls without results: {open:?}");
                let message: Value = serde_json::from_slice(message).expect("JSON");
                open = match &message["calls"] {
                    Value::Null => Vec::new(),
                    calls => serde_json::from_value(calls.clone()).expect("ids"),
                };
            }
            Entry::Results(results) => {
                let ids: Vec<String> = results.iter().map(|result| result.id.clone()).collect();
                assert_eq!(ids, std::mem::take(&mut open));
            }
        }
    }
    assert!(open.is_empty(), "calls without results: {open:?}");
}

#[test]
fn a_text_is_cut_at_a_character_and_says_so() {
    assert_eq!(truncate_with_note("short".to_owned(), 5), "short");
    for max_bytes in [100, 101, 102, 103] {
        let text = truncate_with_note("ö€".repeat(1000), max_bytes);
        assert!(text.len() <= max_bytes, "{} > {max_bytes}", text.len());
        assert!(text.contains("of 5000 bytes"), "{text}");
    }
    // However little room there is, it is no more than the note.
    assert!(truncate_with_note("x".repeat(1000), 3).len() < 100);
}

#[test]
fn the_oldest_results_go_first_down_to_the_low_mark() {
    let rounds = vec![vec![400]; 6];
    let mut conversation = conversation(&rounds);
    assert_eq!(elide_results(&mut conversation, &Plain, &settings(2400, 1000, 1)), 0);
    // 2,400 bytes are too many; 800 are left.
    assert_eq!(elide_results(&mut conversation, &Plain, &settings(2399, 1000, 1)), 4);
    assert_eq!(unelided(&conversation), ["4.0", "5.0"]);
    // What is left out stays out, and is not counted again.
    assert_eq!(elide_results(&mut conversation, &Plain, &settings(2399, 1000, 1)), 0);
    let Entry::Results(first) = &conversation.entries()[2] else { panic!("results") };
    let text: Value = serde_json::from_slice(&first[0].encoded).expect("JSON");
    assert_eq!(
        text,
        json!({
            "result": "0.0",
            "text": "(The result of `read_file`, 400 bytes, was left out to save room. Call it again if you need it.)",
        })
    );
}

#[test]
fn the_newest_results_and_the_last_round_are_never_elided() {
    // Three results of the last round, then the newest three.
    let mut long = conversation(&[vec![900], vec![900], vec![900, 900, 900]]);
    assert_eq!(elide_results(&mut long, &Plain, &settings(100, 0, 1)), 2);
    assert_eq!(unelided(&long), ["2.0", "2.1", "2.2"]);
    let mut long = conversation(&[vec![900], vec![900], vec![900], vec![900]]);
    assert_eq!(elide_results(&mut long, &Plain, &settings(100, 0, 3)), 1);
    assert_eq!(unelided(&long), ["1.0", "2.0", "3.0"]);
    // What is no longer than the line about it stays as well.
    let mut short = conversation(&vec![vec![20]; 10]);
    assert_eq!(elide_results(&mut short, &Plain, &settings(100, 0, 1)), 0);
}

#[test]
fn a_long_conversation_shrinks_to_the_task_and_two_rounds() {
    let mut long = conversation(&vec![vec![900]; 9]);
    let mut before = long.bytes();
    let mut times = 0;
    while shrink(&mut long, &Plain) {
        pairs_hold(&long);
        assert!(long.bytes() < before, "it gets shorter each time");
        before = long.bytes();
        times += 1;
        assert!(times < 20, "it ends");
    }
    let first: Value = match &long.entries()[0] {
        Entry::Message(message) => serde_json::from_slice(message).expect("JSON"),
        Entry::Results(_) => panic!("the task"),
    };
    assert_eq!(first, json!({ "user": "the task" }));
    // Even the last result went, with a line on what to do instead.
    assert_eq!(unelided(&long), [""; 0]);
    assert_eq!(results(&long).count(), 2);
    let last = results(&long).last().expect("a result");
    let text: Value = serde_json::from_slice(&last.encoded).expect("JSON");
    assert_eq!(
        text["text"],
        "(The result of `read_file` has 900 bytes, which is more than you can read at once. Ask for less: fewer lines, a narrower question.)"
    );
}

#[test]
fn rounds_are_dropped_first_when_messages_are_larger_than_results() {
    let mut long = conversation(&vec![vec![200]; 8]);
    let padding = "x".repeat(50_000);
    for entry in long.entries_mut() {
        if let Entry::Message(message) = entry {
            let mut parsed: Value = serde_json::from_slice(message).expect("JSON");
            parsed["said"] = json!(padding);
            *message = parsed.to_string().into();
        }
    }
    let before = results(&long).count();
    assert!(shrink(&mut long, &Plain));
    assert!(results(&long).count() < before, "rounds are gone");
    assert!(results(&long).all(|result| !result.elided), "and no result was left out for nothing");
    pairs_hold(&long);
}

#[test]
fn only_tools_without_side_effects_are_suggested_again() {
    assert_eq!(repeat_hint("read_file"), " Call it again if you need it.");
    for tool in ["execute_command", "send_channel_message", "write_file", "rows"] {
        assert_eq!(repeat_hint(tool), "", "{tool}");
    }
}

proptest! {
    #[test]
    fn every_call_keeps_its_result(
        rounds in prop::collection::vec(prop::collection::vec(0_usize..600, 1..4), 0..8),
        high in 0_usize..3000,
        kept_results in 0_usize..5,
        shortenings in 0_usize..6,
    ) {
        let mut conversation = conversation(&rounds);
        elide_results(&mut conversation, &Plain, &settings(high, high / 2, kept_results));
        pairs_hold(&conversation);
        for _ in 0..shortenings {
            shrink(&mut conversation, &Plain);
            pairs_hold(&conversation);
        }
    }
}
