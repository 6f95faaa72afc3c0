//! What an answer cost, wherever a server says it.

use serde_json::{Map, Value};

use crate::model::Usage;

/// What a chunk, or a whole answer, says about it.
pub fn of(chunk: &Map<String, Value>) -> Option<Usage> {
    let in_choice = || chunk.get("choices")?.get(0)?.get("usage").and_then(counted);
    let by_groq = || chunk.get("x_groq")?.get("usage").and_then(counted);
    chunk
        .get("usage")
        .and_then(counted)
        .or_else(in_choice)
        .or_else(by_groq)
        .or_else(|| chunk.get("timings").and_then(timed))
}

/// As OpenAI has it, and those who say what was cached in their own way.
fn counted(usage: &Value) -> Option<Usage> {
    let number = |name: &str| usage.get(name).and_then(number);
    let input = number("prompt_tokens").or_else(|| number("input_tokens"));
    let output = number("completion_tokens").or_else(|| number("output_tokens"));
    if input.is_none() && output.is_none() {
        return None;
    }
    let details = usage.get("prompt_tokens_details");
    let cached = details
        .and_then(|it| it.get("cached_tokens"))
        .and_then(self::number)
        // DeepSeek.
        .or_else(|| number("prompt_cache_hit_tokens"));
    let input = input.unwrap_or(0);
    Some(Usage { input, cached: cached.unwrap_or(0).min(input), output: output.unwrap_or(0) })
}

/// As llama.cpp has it where it is not asked: what it read is beside what it found in its cache.
fn timed(timings: &Value) -> Option<Usage> {
    let number = |name: &str| timings.get(name).and_then(number);
    let cached = number("cache_n").unwrap_or(0);
    Some(Usage { input: number("prompt_n")?.saturating_add(cached), cached, output: number("predicted_n")? })
}

/// A count; some write it with a point.
fn number(value: &Value) -> Option<u64> {
    let whole = |number: f64| (0.0..1e15).contains(&number).then_some(number as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(whole))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_found_where_servers_say_it() {
        let usage = |input, cached, output| Some(Usage { input, cached, output });
        for (chunk, expected) in [
            (
                json!({"usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}}),
                usage(10, 8, 2),
            ),
            (
                json!({"usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}}),
                usage(10, 4, 2),
            ),
            (
                json!({"usage": {"prompt_tokens": 10.0, "completion_tokens": null, "prompt_tokens_details": null}}),
                usage(10, 0, 0),
            ),
            (json!({"usage": {"input_tokens": 3, "output_tokens": 4}}), usage(3, 0, 4)),
            (json!({"usage": {"prompt_tokens": 1, "prompt_cache_hit_tokens": 9}}), usage(1, 1, 0)),
            (json!({"usage": null, "timings": {"prompt_n": 5, "cache_n": 7, "predicted_n": 9}}), usage(12, 7, 9)),
            (json!({"x_groq": {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}}), usage(1, 0, 2)),
            (json!({"choices": [{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}]}), usage(1, 0, 2)),
            (json!({"usage": {"prompt_tokens": -1}}), None),
            (json!({"usage": {"prompt_tokens": 1e300}}), None),
            (json!({"usage": {"total_tokens": 7}}), None),
            (json!({"usage": {}}), None),
            (json!({"usage": "much"}), None),
            (json!({}), None),
        ] {
            let found = chunk.as_object().and_then(of);
            assert_eq!(found, expected, "{chunk}");
        }
    }
}
