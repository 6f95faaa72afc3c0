//! Decodes server-sent events, one bounded JSON value each.

use serde::de::DeserializeOwned;
use sympozium_ipc::sse;

use super::{MAX_EVENT, ResponseError, json};

const DONE: &[u8] = b"[DONE]";

#[derive(Debug, Default)]
pub struct EventDecoder {
    reader: sse::Reader,
    buffer: EventBuffer,
    /// Whether `[DONE]` came; everything after it is ignored.
    is_done: bool,
}

#[derive(Debug, Default)]
struct EventBuffer {
    partial: Vec<u8>,
    complete: Vec<Vec<u8>>,
    /// Whether the partial event exceeds the limit. Events before it are still valid.
    is_too_large: bool,
}

impl sse::Sink for EventBuffer {
    fn data(&mut self, bytes: &[u8]) {
        if self.is_too_large {
            return;
        }
        if self.partial.len() + bytes.len() > MAX_EVENT {
            self.is_too_large = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn end_event(&mut self) {
        if !self.is_too_large {
            self.complete.push(std::mem::take(&mut self.partial));
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Event<T> {
    Data(T),
    Done,
}

impl EventDecoder {
    /// The events that these bytes complete.
    pub fn read<T: DeserializeOwned>(&mut self, bytes: &[u8]) -> Result<Vec<Event<T>>, ResponseError> {
        if self.is_done {
            return Ok(Vec::new());
        }
        self.reader.read(bytes, &mut self.buffer);
        let mut events = Vec::new();
        for data in std::mem::take(&mut self.buffer.complete) {
            let Some(parse_event) = parse_event(&data).transpose()? else {
                continue;
            };
            self.is_done = matches!(parse_event, Event::Done);
            events.push(parse_event);
            if self.is_done {
                return Ok(events);
            }
        }
        if self.buffer.is_too_large {
            return Err(ResponseError::TooLarge(MAX_EVENT));
        }
        Ok(events)
    }

    /// The last event of servers that omit the empty line after it. To be called at the end of the stream.
    pub fn finish<T: DeserializeOwned>(&mut self) -> Result<Option<Event<T>>, ResponseError> {
        if self.is_done {
            return Ok(None);
        }
        let partial = std::mem::take(&mut self.buffer.partial);
        parse_event(&partial).transpose().map_err(|_| ResponseError::Truncated)
    }
}

fn parse_event<T: DeserializeOwned>(data: &[u8]) -> Option<Result<Event<T>, ResponseError>> {
    let data = data.trim_ascii();
    match data {
        [] => None,
        DONE => Some(Ok(Event::Done)),
        _ => {
            let read = json::parse(data).map(Event::Data);
            Some(read.map_err(|error| ResponseError::Invalid(error.to_string())))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The events of a stream in these chunks.
    fn read(chunks: &[&[u8]]) -> Result<Vec<Event<Value>>, ResponseError> {
        let mut events = EventDecoder::default();
        let mut all = Vec::new();
        for chunk in chunks {
            all.extend(events.read(chunk)?);
        }
        all.extend(events.finish()?);
        Ok(all)
    }

    #[test]
    fn events_are_read_to_the_end() {
        let data = |value: Value| Event::Data(value);
        for (stream, expected) in [
            ("data: {\"a\":1}\n\n", vec![data(json!({"a": 1}))]),
            ("data: 1\r\n\r\ndata: 2", vec![data(json!(1)), data(json!(2))]),
            ("data: [1,\ndata: 2]\n\n", vec![data(json!([1, 2]))]),
            ("data: 1\n\ndata: [DONE]\n\n", vec![data(json!(1)), Event::Done]),
            ("data: 1\n\ndata: [DONE]", vec![data(json!(1)), Event::Done]),
            ("data:  [DONE] \n\ndata: {\n\ndata: 2\n\n", vec![Event::Done]),
            ("event: ping\ndata:\n\n: hi\n\ndata\n\n", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(read(&[stream.as_bytes()]), Ok(expected), "{stream:?}");
        }
    }

    #[test]
    fn invalid_events_end_the_stream() {
        for (stream, expected) in [
            ("data: 1\n\ndata: {\"a\"", ResponseError::Truncated),
            ("data: {a}\n\ndata: 1\n\n", ResponseError::Invalid("key must be a string at line 1 column 2".to_owned())),
            ("data: nothing\n\n", ResponseError::Invalid("expected ident at line 1 column 2".to_owned())),
        ] {
            assert_eq!(read(&[stream.as_bytes()]), Err(expected), "{stream:?}");
        }
        let not_text = read(&[b"data: \"\xff\"\n\n"]);
        assert!(matches!(not_text, Err(ResponseError::Invalid(_))), "{not_text:?}");
    }

    #[test]
    fn an_event_is_bounded_and_those_before_it_count() {
        let fits = format!("data: \"{}\"\n\n", "x".repeat(MAX_EVENT - 2));
        let expected = Value::from("x".repeat(MAX_EVENT - 2));
        assert_eq!(read(&[fits.as_bytes()]), Ok(vec![Event::Data(expected)]));
        let large = format!("data: \"{}\"\n\n", "x".repeat(MAX_EVENT - 1));
        let too_large = Err(ResponseError::TooLarge(MAX_EVENT));
        assert_eq!(read(&[large.as_bytes()]), too_large);
        let done = format!("data: [DONE]\n\n{large}");
        assert_eq!(read(&[done.as_bytes()]), Ok(vec![Event::Done]));
        // An endless event is refused, and its buffer is released.
        let mut events = EventDecoder::default();
        let line = [b'x'; 1 << 16];
        events.read::<Value>(b"data: ").expect("a beginning");
        let count = (0..1000).find(|_| events.read::<Value>(&line).is_err());
        assert_eq!(count, Some(MAX_EVENT / line.len()));
        assert_eq!(events.buffer.partial.capacity(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The events do not depend on how the stream is split.
        #[test]
        fn splits_do_not_matter(stream in "(data: |\\[DONE\\]|\n|\r|\\{\\}|[1-3]|\"ö\"|: ){0,30}", cuts in prop::collection::vec(0_usize..120, 0..6)) {
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(&chunks), read(&[bytes]));
        }
    }
}
