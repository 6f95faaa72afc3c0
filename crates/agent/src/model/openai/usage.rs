//! Token usage, wherever a server reports it.

use serde_json::{Map, Value};

use crate::model::Usage;

pub fn from_chunk(chunk: &Map<String, Value>) -> Option<Usage> {
    let in_choice = || chunk.get("choices")?.get(0)?.get("usage").and_then(from_usage);
    let by_groq = || chunk.get("x_groq")?.get("usage").and_then(from_usage);
    chunk
        .get("usage")
        .and_then(from_usage)
        .or_else(in_choice)
        .or_else(by_groq)
        .or_else(|| chunk.get("timings").and_then(from_timings))
}

/// OpenAI's fields, and the variants of others for cached tokens.
fn from_usage(usage: &Value) -> Option<Usage> {
    let number = |name: &str| usage.get(name).and_then(number);
    let input = number("prompt_tokens").or_else(|| number("input_tokens"));
    let output = number("completion_tokens").or_else(|| number("output_tokens"));
    if input.is_none() && output.is_none() {
        return None;
    }
    let details = usage.get("prompt_tokens_details");
    let cached = details
        .and_then(|details| details.get("cached_tokens"))
        .and_then(self::number)
        // DeepSeek.
        .or_else(|| number("prompt_cache_hit_tokens"));
    let input = input.unwrap_or(0);
    Some(Usage { input, cached: cached.unwrap_or(0).min(input), output: output.unwrap_or(0) })
}

/// llama.cpp without `stream_options`: `prompt_n` excludes cached tokens.
fn from_timings(timings: &Value) -> Option<Usage> {
    let number = |name: &str| timings.get(name).and_then(number);
    let cached = number("cache_n").unwrap_or(0);
    Some(Usage { input: number("prompt_n")?.saturating_add(cached), cached, output: number("predicted_n")? })
}

/// A count; some servers send a float.
fn number(value: &Value) -> Option<u64> {
    let whole = |number: f64| (0.0..1e15).contains(&number).then_some(number as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(whole))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_found_wherever_servers_report_it() {
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
            let found = chunk.as_object().and_then(from_chunk);
            assert_eq!(found, expected, "{chunk}");
        }
    }
}
