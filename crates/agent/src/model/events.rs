//! Events of a stream, one JSON value each, bounded.

use serde::de::DeserializeOwned;
use sympozium_ipc::sse;

use super::{Broken, MAX_EVENT, json};

/// How a stream as OpenAI has it ends.
const DONE: &[u8] = b"[DONE]";

/// Gathers the data of events.
#[derive(Debug, Default)]
pub struct Events {
    reader: sse::Reader,
    gathered: Gathered,
    /// Whether a stream said that nothing follows. Then nothing does, whatever comes.
    is_done: bool,
}

#[derive(Debug, Default)]
struct Gathered {
    open: Vec<u8>,
    whole: Vec<Vec<u8>>,
    /// Whether the event that is being read is. Those before it count.
    is_too_large: bool,
}

impl sse::Sink for Gathered {
    fn data(&mut self, bytes: &[u8]) {
        if self.is_too_large {
            return;
        }
        if self.open.len() + bytes.len() > MAX_EVENT {
            self.is_too_large = true;
            self.open = Vec::new();
        } else {
            self.open.extend_from_slice(bytes);
        }
    }

    fn end_event(&mut self) {
        if !self.is_too_large {
            self.whole.push(std::mem::take(&mut self.open));
        }
    }
}

/// What an event says.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// This.
    Data(T),
    /// That nothing follows.
    Done,
}

impl Events {
    /// The events that are whole with these bytes.
    ///
    /// # Errors
    ///
    /// When an event is too large or is not JSON of this shape.
    pub fn read<T: DeserializeOwned>(&mut self, bytes: &[u8]) -> Result<Vec<Event<T>>, Broken> {
        if self.is_done {
            return Ok(Vec::new());
        }
        self.reader.read(bytes, &mut self.gathered);
        let mut events = Vec::new();
        for data in std::mem::take(&mut self.gathered.whole) {
            let Some(event) = event(&data).transpose()? else {
                continue;
            };
            self.is_done = matches!(event, Event::Done);
            events.push(event);
            if self.is_done {
                return Ok(events);
            }
        }
        if self.gathered.is_too_large {
            return Err(Broken::TooLarge(MAX_EVENT));
        }
        Ok(events)
    }

    /// The last event, of servers that forget the empty line after it.
    ///
    /// # Errors
    ///
    /// When it broke off.
    pub fn last<T: DeserializeOwned>(&mut self) -> Result<Option<Event<T>>, Broken> {
        if self.is_done {
            return Ok(None);
        }
        let open = std::mem::take(&mut self.gathered.open);
        event(&open).transpose().map_err(|_| Broken::CutOff)
    }
}

/// What the data of an event say; nothing where there are none.
fn event<T: DeserializeOwned>(data: &[u8]) -> Option<Result<Event<T>, Broken>> {
    let data = data.trim_ascii();
    match data {
        [] => None,
        DONE => Some(Ok(Event::Done)),
        _ => {
            let read = json::read(data).map(Event::Data);
            Some(read.map_err(|error| Broken::Unreadable(error.to_string())))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// What a stream in these pieces says, to its last event.
    fn read(pieces: &[&[u8]]) -> Result<Vec<Event<Value>>, Broken> {
        let mut events = Events::default();
        let mut all = Vec::new();
        for piece in pieces {
            all.extend(events.read(piece)?);
        }
        all.extend(events.last()?);
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
    fn what_is_no_event_breaks_the_stream() {
        for (stream, expected) in [
            ("data: 1\n\ndata: {\"a\"", Broken::CutOff),
            ("data: {a}\n\ndata: 1\n\n", Broken::Unreadable("key must be a string at line 1 column 2".to_owned())),
            ("data: nothing\n\n", Broken::Unreadable("expected ident at line 1 column 2".to_owned())),
        ] {
            assert_eq!(read(&[stream.as_bytes()]), Err(expected), "{stream:?}");
        }
        let not_text = read(&[b"data: \"\xff\"\n\n"]);
        assert!(matches!(not_text, Err(Broken::Unreadable(_))), "{not_text:?}");
    }

    #[test]
    fn an_event_is_bounded_and_those_before_it_count() {
        let fits = format!("data: \"{}\"\n\n", "x".repeat(MAX_EVENT - 2));
        let expected = Value::from("x".repeat(MAX_EVENT - 2));
        assert_eq!(read(&[fits.as_bytes()]), Ok(vec![Event::Data(expected)]));
        let large = format!("data: \"{}\"\n\n", "x".repeat(MAX_EVENT - 1));
        let too_large = Err(Broken::TooLarge(MAX_EVENT));
        assert_eq!(read(&[large.as_bytes()]), too_large);
        let done = format!("data: [DONE]\n\n{large}");
        assert_eq!(read(&[done.as_bytes()]), Ok(vec![Event::Done]));
        // One that never ends is given up, and nothing of it is kept.
        let mut events = Events::default();
        let line = [b'x'; 1 << 16];
        events.read::<Value>(b"data: ").expect("a beginning");
        let count = (0..1000).find(|_| events.read::<Value>(&line).is_err());
        assert_eq!(count, Some(MAX_EVENT / line.len()));
        assert_eq!(events.gathered.open.capacity(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// In whatever pieces a stream comes, the events are the same.
        #[test]
        fn pieces_do_not_matter(stream in "(data: |\\[DONE\\]|\n|\r|\\{\\}|[1-3]|\"ö\"|: ){0,30}", cuts in prop::collection::vec(0_usize..120, 0..6)) {
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[bytes]));
        }
    }
}
