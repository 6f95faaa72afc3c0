//! The property of the fuzz target, tried with what is almost a stream: any bytes are seldom read far.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::model::anthropic::fuzzing::agent_anthropic;

const STREAM: &str = include_str!("../fixtures/ping_everywhere.sse");
const WHOLE: &str = include_str!("../fixtures/unstreamed.json");

/// Bytes that mean something to one of the readers.
const TELLING: &[u8] = b"\r\n:{}[]\",\\0-\xff\x00de ";

fn index() -> impl Strategy<Value = Value> {
    select(vec![json!(0), json!(1), json!(1), json!(u64::MAX), json!(-1), json!("0"), json!(null)])
}

fn fragment() -> impl Strategy<Value = Value> {
    let fragments = ["", " ", "{", "}", "\"a\":", "[1]", "null", "\\", "é", "\u{0}", "{\"a\":{}}"];
    select(fragments.to_vec()).prop_map(|fragment| json!(fragment))
}

fn block() -> impl Strategy<Value = Value> {
    let kinds = ["text", "tool_use", "tool_use", "thinking", "redacted_thinking", "new", ""];
    let ids = ["", "a", "a", "call_1", "call_2", "b c", "ü"];
    let input = select(vec![json!({}), json!({"a": 1}), json!([]), json!(null), json!("{}")]);
    (select(kinds.to_vec()), select(ids.to_vec()), fragment(), input).prop_map(|(kind, id, text, input)| {
        json!({
            "type": kind, "id": id, "name": text, "text": text, "thinking": text,
            "signature": text, "data": text, "input": input, "cache_control": input,
        })
    })
}

fn event() -> impl Strategy<Value = Value> {
    let deltas = ["text_delta", "input_json_delta", "thinking_delta", "signature_delta", "citations_delta", "new"];
    let stops = ["end_turn", "tool_use", "max_tokens", "refusal", "new"];
    prop_oneof![
        6 => (index(), block()).prop_map(|(index, block)| {
            json!({"type": "content_block_start", "index": index, "content_block": block})
        }),
        6 => (index(), select(deltas.to_vec()), fragment()).prop_map(|(index, kind, more)| {
            let delta = json!({
                "type": kind, "text": more, "partial_json": more, "thinking": more,
                "signature": more, "citation": {"a": more},
            });
            json!({"type": "content_block_delta", "index": index, "delta": delta})
        }),
        2 => select(stops.to_vec()).prop_map(|stop| json!({"type": "message_delta", "delta": {"stop_reason": stop}})),
        1 => fragment(),
    ]
}

proptest! {
    #[test]
    fn streams_of_any_events_hold(all in prop::collection::vec(event(), 0..24)) {
        let mut all = all;
        all.push(json!({"type": "message_stop"}));
        agent_anthropic(events(&all).as_bytes());
    }

    #[test]
    fn unstreamed_messages_of_any_blocks_hold(blocks in prop::collection::vec(block(), 0..12), stop in fragment()) {
        let whole = json!({"content": blocks, "stop_reason": stop});
        agent_anthropic(whole.to_string().as_bytes());
    }

    #[test]
    fn broken_bytes_hold(
        is_stream in any::<bool>(),
        changes in prop::collection::vec((any::<Index>(), select(TELLING), 0..3_u8), 1..6),
    ) {
        let mut data = if is_stream { STREAM } else { WHOLE }.as_bytes().to_vec();
        for (at, byte, change) in changes {
            let at = at.index(data.len());
            match change {
                0 => data[at] = byte,
                1 => data.insert(at, byte),
                _ => drop(data.remove(at)),
            }
        }
        agent_anthropic(&data);
    }
}
