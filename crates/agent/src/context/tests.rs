//! What is left out, and what never is.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::model::{Arguments, Call, Choice, Outcome, Problem, Reader, Shape};

/// A format in which everything can be read back.
struct Plain;

impl Model for Plain {
    fn user(&self, text: &str) -> Bytes {
        json!({ "user": text }).to_string().into()
    }

    fn result(&self, id: &str, text: &str, _: Outcome) -> Bytes {
        json!({ "result": id, "text": text }).to_string().into()
    }

    fn request(&self, _: &Conversation, _: Choice) -> Vec<Bytes> {
        unreachable!("nothing is sent here")
    }

    fn reader(&self, _: Shape) -> Box<dyn Reader> {
        unreachable!("nothing is read here")
    }

    fn problem(&self, _: u16, _: &[u8]) -> Problem {
        unreachable!("nothing goes wrong here")
    }
}

/// Rounds of calls, each with a result of so many bytes.
fn conversation(rounds: &[Vec<usize>]) -> Conversation {
    let mut conversation = Conversation::default();
    conversation.say(Plain.user("the task"));
    for (round, sizes) in rounds.iter().enumerate() {
        let id = |index: usize| format!("{round}.{index}");
        let calls: Vec<String> = (0..sizes.len()).map(id).collect();
        conversation.say(json!({ "calls": calls }).to_string().into());
        let kept = sizes.iter().enumerate().map(|(index, size)| {
            let call = Call { id: id(index), name: "read_file".to_owned(), arguments: Arguments::Object(Map::new()) };
            let encoded = Plain.result(&call.id, &"x".repeat(*size), Outcome::Done);
            Kept::new(&call, Outcome::Done, *size, encoded)
        });
        conversation.answer(kept.collect());
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
        request_time: std::time::Duration::from_secs(1),
    }
}

/// Ids of the results that are whole.
fn whole(conversation: &Conversation) -> Vec<&str> {
    let whole = results(conversation).filter(|it| !it.elided);
    whole.map(|it| it.id.as_str()).collect()
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
                let ids: Vec<String> = results.iter().map(|it| it.id.clone()).collect();
                assert_eq!(ids, std::mem::take(&mut open));
            }
        }
    }
    assert!(open.is_empty(), "calls without results: {open:?}");
}

#[test]
fn a_text_is_cut_at_a_character_and_says_so() {
    assert_eq!(clamp("short".to_owned(), 5), "short");
    for most in [100, 101, 102, 103] {
        let text = clamp("ö€".repeat(1000), most);
        assert!(text.len() <= most, "{} > {most}", text.len());
        assert!(text.contains("of 5000 bytes"), "{text}");
    }
    // However little room there is, it is no more than the note.
    assert!(clamp("x".repeat(1000), 3).len() < 100);
}

#[test]
fn the_oldest_results_go_first_down_to_the_low_mark() {
    let rounds = vec![vec![400]; 6];
    let mut conversation = conversation(&rounds);
    assert_eq!(elide(&mut conversation, &Plain, &settings(2400, 1000, 1)), 0);
    // 2,400 bytes are too many; 800 are left.
    assert_eq!(elide(&mut conversation, &Plain, &settings(2399, 1000, 1)), 4);
    assert_eq!(whole(&conversation), ["4.0", "5.0"]);
    // What is left out stays out, and is not counted again.
    assert_eq!(elide(&mut conversation, &Plain, &settings(2399, 1000, 1)), 0);
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
fn the_newest_and_the_last_round_stay_whatever_they_weigh() {
    // Three of the last round, and the newest three beside.
    let mut long = conversation(&[vec![900], vec![900], vec![900, 900, 900]]);
    assert_eq!(elide(&mut long, &Plain, &settings(100, 0, 1)), 2);
    assert_eq!(whole(&long), ["2.0", "2.1", "2.2"]);
    let mut long = conversation(&[vec![900], vec![900], vec![900], vec![900]]);
    assert_eq!(elide(&mut long, &Plain, &settings(100, 0, 3)), 1);
    assert_eq!(whole(&long), ["1.0", "2.0", "3.0"]);
    // What is no longer than the line about it stays as well.
    let mut short = conversation(&vec![vec![20]; 10]);
    assert_eq!(elide(&mut short, &Plain, &settings(100, 0, 1)), 0);
}

#[test]
fn a_conversation_that_is_too_long_gets_shorter_until_only_the_task_and_two_rounds_are_left() {
    let mut long = conversation(&vec![vec![900]; 9]);
    let mut before = long.bytes();
    let mut times = 0;
    while shorten(&mut long, &Plain) {
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
    assert_eq!(whole(&long), [""; 0]);
    assert_eq!(results(&long).count(), 2);
    let last = results(&long).last().expect("a result");
    let text: Value = serde_json::from_slice(&last.encoded).expect("JSON");
    assert_eq!(
        text["text"],
        "(The result of `read_file` has 900 bytes, which is more than you can read at once. Ask for less: fewer lines, a narrower question.)"
    );
}

#[test]
fn where_the_weight_is_in_what_the_model_said_whole_rounds_go_first() {
    let mut long = conversation(&vec![vec![200]; 8]);
    let said = "x".repeat(50_000);
    for entry in long.entries_mut() {
        if let Entry::Message(message) = entry {
            let mut parsed: Value = serde_json::from_slice(message).expect("JSON");
            parsed["said"] = json!(said);
            *message = parsed.to_string().into();
        }
    }
    let before = results(&long).count();
    assert!(shorten(&mut long, &Plain));
    assert!(results(&long).count() < before, "rounds are gone");
    assert!(results(&long).all(|it| !it.elided), "and no result was left out for nothing");
    pairs_hold(&long);
}

#[test]
fn nobody_is_invited_to_do_something_twice() {
    assert_eq!(again("read_file"), " Call it again if you need it.");
    for tool in ["execute_command", "send_channel_message", "write_file", "rows"] {
        assert_eq!(again(tool), "", "{tool}");
    }
}

proptest! {
    #[test]
    fn no_call_is_ever_without_its_result(
        rounds in prop::collection::vec(prop::collection::vec(0_usize..600, 1..4), 0..8),
        high in 0_usize..3000,
        kept in 0_usize..5,
        shortenings in 0_usize..6,
    ) {
        let mut conversation = conversation(&rounds);
        elide(&mut conversation, &Plain, &settings(high, high / 2, kept));
        pairs_hold(&conversation);
        for _ in 0..shortenings {
            shorten(&mut conversation, &Plain);
            pairs_hold(&conversation);
        }
    }
}
