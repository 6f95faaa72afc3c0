//! The usage of an answer: as the provider reports it, or else an estimate from its text.

use serde_json::Value;
use sympozium_api::run_plan::WireFormat;

use super::scan::{UsagePosition, UsageScanner};
use super::text_length::{Counting, TextLength};
use sympozium_ipc::sse;

/// Estimated bytes of text per token.
const BYTES_PER_TOKEN: u64 = 4;
/// Maximum number of bytes of text per token: the longest tokens of common tokenizers are runs of spaces. A report of
/// fewer tokens than this implies is wrong.
const MAX_BYTES_PER_TOKEN: u64 = 128;

/// Estimated number of tokens of a text.
pub const fn estimate_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Minimum number of tokens of a text.
pub const fn min_tokens(bytes: u64) -> u64 {
    bytes / MAX_BYTES_PER_TOKEN
}

/// Counts an answer while it is passed on.
#[derive(Debug)]
pub struct UsageCounter {
    wire: WireFormat,
    format: AnswerFormat,
    text: TextLength,
    reported: ReportedUsage,
}

#[derive(Debug)]
enum AnswerFormat {
    /// Server-sent events, each of them JSON.
    Events(sse::Reader, UsageScanner),
    /// One JSON text.
    Json(UsageScanner),
    /// Any other content type. Every byte counts.
    Other(UsageScanner, u64),
}

/// What the provider has reported so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportedUsage {
    /// Prompt tokens.
    pub input: Option<u64>,
    /// Completion tokens.
    pub output: Option<u64>,
}

impl UsageCounter {
    pub fn new(wire: WireFormat, content_type: Option<&[u8]>) -> Self {
        const EVENTS: &[u8] = b"text/event-stream";
        const JSON: &[u8] = b"application/json";
        let begins = |with: &[u8]| {
            let begin = content_type.and_then(|content_type| content_type.get(..with.len()));
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(with))
        };
        let form = match (begins(EVENTS), begins(JSON)) {
            (true, _) => AnswerFormat::Events(sse::Reader::default(), UsageScanner::default()),
            (_, true) => AnswerFormat::Json(UsageScanner::default()),
            _ => AnswerFormat::Other(UsageScanner::default(), 0),
        };
        Self { wire, format: form, text: TextLength::new(Counting::Answer), reported: ReportedUsage::default() }
    }

    /// Counts the next bytes.
    pub fn count(&mut self, bytes: &[u8]) {
        match &mut self.format {
            AnswerFormat::Json(scan) => {
                scan.scan(bytes);
                self.text.read(bytes);
            }
            AnswerFormat::Events(reader, scan) => {
                let mut events =
                    EventSink { scan, text: &mut self.text, wire: self.wire, reported: &mut self.reported };
                reader.read(bytes, &mut events);
            }
            AnswerFormat::Other(scan, all) => {
                scan.scan(bytes);
                *all = all.saturating_add(bytes.len() as u64);
            }
        }
    }

    /// Bytes of text so far.
    pub fn text_bytes(&self) -> u64 {
        match self.format {
            AnswerFormat::Other(_, all) => all,
            AnswerFormat::Events(..) | AnswerFormat::Json(_) => self.text.bytes(),
        }
    }

    /// The reported usage so far. Ends the text of a non-streamed answer.
    pub fn finish(&mut self) -> ReportedUsage {
        if let AnswerFormat::Json(scan) | AnswerFormat::Other(scan, _) = &mut self.format
            && let Some(found) = scan.finish()
        {
            self.reported.add(self.wire, found);
        }
        self.reported
    }
}

struct EventSink<'c> {
    scan: &'c mut UsageScanner,
    text: &'c mut TextLength,
    wire: WireFormat,
    reported: &'c mut ReportedUsage,
}

impl sse::Sink for EventSink<'_> {
    fn data(&mut self, bytes: &[u8]) {
        self.scan.scan(bytes);
        self.text.read(bytes);
    }

    fn end_event(&mut self) {
        self.text.finish();
        if let Some(found) = self.scan.finish() {
            self.reported.add(self.wire, found);
        }
    }
}

impl ReportedUsage {
    /// Takes the maximum, because counts in a stream only grow.
    fn add(&mut self, wire: WireFormat, (place, json): (UsagePosition, Vec<u8>)) {
        let Ok(usage) = serde_json::from_slice::<Value>(&json) else {
            return;
        };
        let number = |name: &str| usage.get(name).and_then(Value::as_u64);
        let (input, output) = match wire {
            WireFormat::OpenAi => (number("prompt_tokens"), number("completion_tokens")),
            WireFormat::Anthropic => {
                // Tokens read from or written to a cache are input as well, and not part of the first number.
                let parts = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
                let parts = parts.iter().filter_map(|name| number(name));
                (parts.reduce(u64::saturating_add), number("output_tokens"))
            }
        };
        self.input = self.input.max(input);
        // The output count at the beginning of a stream is not the final one.
        if place == UsagePosition::Top {
            self.output = self.output.max(output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_AI: WireFormat = WireFormat::OpenAi;
    const ANTHROPIC: WireFormat = WireFormat::Anthropic;

    fn counted(wire: WireFormat, content_type: &str, body: &str) -> (Option<u64>, Option<u64>) {
        let mut whole = UsageCounter::new(wire, Some(content_type.as_bytes()));
        whole.count(body.as_bytes());
        let mut bytes = UsageCounter::new(wire, Some(content_type.as_bytes()));
        for byte in body.as_bytes().chunks(1) {
            bytes.count(byte);
        }
        let reported = whole.finish();
        assert_eq!(reported, bytes.finish());
        (reported.input, reported.output)
    }

    #[test]
    fn tokens_are_taken_from_where_each_format_has_them() {
        let events = "Text/Event-Stream; charset=utf-8";
        for (wire, content_type, body, expected) in [
            (
                OPEN_AI,
                "application/json",
                r#"{"choices":[{"message":{"content":"{\"usage\":{\"prompt_tokens\":9}}"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}"#,
                (Some(12), Some(3)),
            ),
            (
                OPEN_AI,
                events,
                "data: {\"choices\":[{}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
                (Some(7), Some(2)),
            ),
            (
                ANTHROPIC,
                "application/json",
                r#"{"content":[],"usage":{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":20,"output_tokens":5}}"#,
                (Some(130), Some(5)),
            ),
            (
                ANTHROPIC,
                events,
                "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":90,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":42}}\n\n",
                (Some(100), Some(42)),
            ),
            // Broken off before the output was reported.
            (
                ANTHROPIC,
                events,
                "data: {\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\ndata: {\"usage\":{\"output_tokens\":42}}\n",
                (Some(10), None),
            ),
            (OPEN_AI, "application/json", r#"{"usage":{"prompt_tokens":-1,"completion_tokens":"3"}}"#, (None, None)),
            (OPEN_AI, "text/html", "<html>", (None, None)),
        ] {
            assert_eq!(counted(wire, content_type, body), expected, "{body}");
        }
        assert_eq!((estimate_tokens(0), estimate_tokens(1), estimate_tokens(8)), (0, 1, 2));
        assert_eq!((min_tokens(0), min_tokens(127), min_tokens(256)), (0, 0, 2));
    }

    /// As llama.cpp streams it: an event for each token, and no usage.
    #[test]
    fn a_streamed_answer_is_its_text_and_not_its_envelopes() {
        let words: Vec<String> = (0..25).map(|number| format!(" w{:02}", number)).collect();
        let event = |delta: serde_json::Value| {
            let chunk = serde_json::json!({
                "choices": [{ "finish_reason": null, "index": 0, "delta": delta }],
                "created": 1_763_000_000,
                "id": "chatcmpl-XQ0S3lzE0kbmyb5Hq8KMBmLGiYvwJPPg",
                "model": "qwen2.5-0.5b-instruct-q4_k_m.gguf",
                "system_fingerprint": "b6940-c5023daf6",
                "object": "chat.completion.chunk",
                "timings": { "prompt_n": 31, "prompt_ms": 105.2, "predicted_n": 25 },
            });
            format!("data: {chunk}\n\n")
        };
        let mut body = event(serde_json::json!({ "role": "assistant", "content": null }));
        for word in &words {
            body += &event(serde_json::json!({ "content": word }));
        }
        body += "data: [DONE]\n\n";
        for (content_type, expected) in [
            ("text/event-stream", 25),
            // What cannot be parsed counts entirely.
            ("text/plain", estimate_tokens(body.len() as u64)),
        ] {
            let mut counter = UsageCounter::new(OPEN_AI, Some(content_type.as_bytes()));
            counter.count(body.as_bytes());
            assert_eq!(counter.finish(), ReportedUsage::default());
            assert_eq!(estimate_tokens(counter.text_bytes()), expected, "{content_type}");
        }
    }

    #[test]
    fn text_is_counted_in_every_field_that_a_model_writes() {
        let events = "text/event-stream";
        for (wire, content_type, body, expected) in [
            (
                OPEN_AI,
                "application/json",
                r#"{"choices":[{"message":{"role":"assistant","content":"12345678","reasoning_content":"1234","tool_calls":[{"id":"a","type":"function","function":{"name":"1234","arguments":"{\"a\":1}"}}]}}]}"#,
                23,
            ),
            (
                OPEN_AI,
                events,
                "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"list\",\"arguments\":\"{}\"}}]}}]}\n\n",
                6,
            ),
            (
                ANTHROPIC,
                events,
                "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}\n\n",
                7,
            ),
            // An unknown field.
            (OPEN_AI, events, "data: {\"choices\":[{\"delta\":{\"thoughts\":[\"12\",\"34\"]}}]}\n\n", 4),
        ] {
            let mut counter = UsageCounter::new(wire, Some(content_type.as_bytes()));
            counter.count(body.as_bytes());
            assert_eq!(counter.text_bytes(), expected, "{body}");
        }
    }
}
