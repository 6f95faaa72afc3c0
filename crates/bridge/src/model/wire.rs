//! Differences between the wire formats: the fields of a request, and headers.
//!
//! A field is allowed if a runner needs it to steer the model's output. Not allowed are fields that make the provider
//! act by itself (search, execute, fetch, store), that make it use anything that outlives the request, or that change
//! the price: the plan says nothing about these.

use http::HeaderName;
use sympozium_api::run_plan::WireFormat;

/// Top-level fields of a request in OpenAI's format, including those of compatible servers: Ollama, vLLM, llama.cpp, LM
/// Studio, OpenRouter, DeepSeek, Mistral.
///
/// Not allowed, besides fields that act: `metadata` and `store` (both concern what the provider stores), `service_tier`
/// (price), `modalities` and `audio` (our runner cannot read such answers), `functions` and `function_call` (tools by
/// an older name), `models`, `provider`, `route` and `plugins` of OpenRouter (another model, another host, a search),
/// `extra_body`.
const OPEN_AI: &[&str] = &[
    "cache_prompt",
    "chat_template_kwargs",
    "enable_thinking",
    "frequency_penalty",
    "include_reasoning",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_mode",
    "random_seed",
    "reasoning",
    "reasoning_effort",
    "reasoning_format",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "safe_prompt",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_a",
    "top_k",
    "top_logprobs",
    "top_p",
    "typical_p",
    "user",
    "verbosity",
];

/// Top-level fields of a request in Anthropic's format. There, `metadata` holds only a `user_id`, and common clients
/// always send it.
///
/// Not allowed, besides fields that act: `service_tier` and `inference_geo` (price and place), `context_management`
/// (the provider would edit the conversation that the runner stores).
const ANTHROPIC: &[&str] = &[
    "cache_control",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "output_config",
    "output_format",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

pub fn is_field_allowed(wire: WireFormat, field: &str) -> bool {
    let fields = match wire {
        WireFormat::OpenAi => OPEN_AI,
        WireFormat::Anthropic => ANTHROPIC,
    };
    fields.binary_search(&field).is_ok()
}

pub const ANTHROPIC_VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Headers that belong to the connection and the encoding. Neither a plan nor a Secret may set them. Names are in lower
/// case.
pub fn is_reserved_header(name: &str) -> bool {
    const OURS: &[&str] = &[
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    OURS.binary_search(&name).is_ok() || name.starts_with("proxy-")
}

/// Headers of an answer that the agent gets: content type, retry hints, and IDs for support requests.
pub fn is_passed_to_agent(name: &HeaderName) -> bool {
    const NAMES: &[&str] =
        &["content-type", "request-id", "retry-after", "retry-after-ms", "x-request-id", "x-should-retry"];
    const BEGINNINGS: &[&str] = &["x-ratelimit-", "anthropic-ratelimit-"];
    let name = name.as_str();
    NAMES.binary_search(&name).is_ok() || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_are_searched_are_in_order() {
        assert!(OPEN_AI.is_sorted() && ANTHROPIC.is_sorted());
        for name in ["accept", "host", "upgrade", "proxy-authorization", "te"] {
            assert!(is_reserved_header(name), "{name}");
        }
        for name in ["content-type", "x-should-retry", "x-ratelimit-limit-tokens"] {
            assert!(is_passed_to_agent(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["set-cookie", "location", "openai-organization", "server"] {
            assert!(!is_passed_to_agent(&HeaderName::from_static(name)), "{name}");
        }
    }
}
