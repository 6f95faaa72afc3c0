//! What an answer cost: what the provider says, or else an estimate that is rather too high.

use serde_json::Value;
use sympozium_api::run_plan::WireFormat;

use super::scan::{Place, Scan};
use sympozium_ipc::sse;

/// Bytes that are taken for one token where nobody counted.
const BYTES_PER_TOKEN: u64 = 4;

/// Tokens for so many bytes.
pub const fn estimate(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Looks at an answer while it passes.
#[derive(Debug)]
pub struct Counter {
    wire: WireFormat,
    form: Form,
    reported: Reported,
}

/// How an answer comes.
#[derive(Debug)]
enum Form {
    /// As a stream of events, each of them JSON.
    Events(sse::Reader, Scan),
    /// As one JSON text.
    Whole(Scan),
}

/// What the provider has said so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reported {
    /// Tokens that the model read.
    pub input: Option<u64>,
    /// Tokens that it wrote.
    pub output: Option<u64>,
}

impl Counter {
    /// For an answer of this type of content.
    pub fn new(wire: WireFormat, content_type: Option<&[u8]>) -> Self {
        const EVENTS: &[u8] = b"text/event-stream";
        let begins = |it: &[u8]| it.get(..EVENTS.len()).map(<[u8]>::to_ascii_lowercase);
        let form = match content_type.and_then(begins) {
            Some(begin) if begin == EVENTS => Form::Events(sse::Reader::default(), Scan::default()),
            _ => Form::Whole(Scan::default()),
        };
        Self { wire, form, reported: Reported::default() }
    }

    /// Reads on.
    pub fn read(&mut self, bytes: &[u8]) {
        match &mut self.form {
            Form::Whole(scan) => scan.read(bytes),
            Form::Events(reader, scan) => {
                let mut events = Events { scan, wire: self.wire, reported: &mut self.reported };
                reader.read(bytes, &mut events);
            }
        }
    }

    /// What was reported until now; for one JSON text that is all of it.
    pub fn end(&mut self) -> Reported {
        if let Form::Whole(scan) = &mut self.form
            && let Some(found) = scan.end()
        {
            self.reported.add(self.wire, found);
        }
        self.reported
    }
}

struct Events<'c> {
    scan: &'c mut Scan,
    wire: WireFormat,
    reported: &'c mut Reported,
}

impl sse::Sink for Events<'_> {
    fn data(&mut self, bytes: &[u8]) {
        self.scan.read(bytes);
    }

    fn end(&mut self) {
        if let Some(found) = self.scan.end() {
            self.reported.add(self.wire, found);
        }
    }
}

impl Reported {
    /// Counts in a stream only grow: the highest is the last.
    fn add(&mut self, wire: WireFormat, (place, json): (Place, Vec<u8>)) {
        let Ok(usage) = serde_json::from_slice::<Value>(&json) else {
            return;
        };
        let number = |name: &str| usage.get(name).and_then(Value::as_u64);
        let (input, output) = match wire {
            WireFormat::OpenAi => (number("prompt_tokens"), number("completion_tokens")),
            WireFormat::Anthropic => {
                // What is read from or put into a cache is read by the model, and not in the first number.
                let parts = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
                let parts = parts.iter().filter_map(|name| number(name));
                (parts.reduce(u64::saturating_add), number("output_tokens"))
            }
        };
        self.input = self.input.max(input);
        // What a stream says of its output when it begins is not what it is in the end.
        if place == Place::Top {
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
        let mut whole = Counter::new(wire, Some(content_type.as_bytes()));
        whole.read(body.as_bytes());
        let mut bytes = Counter::new(wire, Some(content_type.as_bytes()));
        for byte in body.as_bytes().chunks(1) {
            bytes.read(byte);
        }
        let reported = whole.end();
        assert_eq!(reported, bytes.end());
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
            // Broken off before it said what it wrote.
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
        assert_eq!((estimate(0), estimate(1), estimate(8)), (0, 1, 2));
    }
}
