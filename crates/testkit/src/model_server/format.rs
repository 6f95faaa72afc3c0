//! The formats of providers: what they share, and the choice between them.

use std::sync::Arc;

use hyper::body::Bytes;
use serde::Serialize;

use super::reply::{Answer, ProviderError};
use super::{anthropic, openai};

/// When every answer was made, in seconds of Unix time: always the same, so that tests can compare whole answers.
pub const CREATED: u64 = 1_700_000_000;
/// Bytes of text in one piece of a huge answer.
const HUGE_PIECE: usize = 16 * 1024;
/// Stands for the text of a huge answer while the rest of it is written.
const HUGE_PLACE: &str = "@the-huge-text@";

/// How a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Chat completions; the key is `Authorization: Bearer`.
    OpenAi,
    /// The same with the key in `api-key`, and other errors.
    AzureOpenAi,
    /// Messages; the key is `x-api-key`, and `anthropic-version` must be there.
    Anthropic,
}

/// What an answer needs to know of its request.
#[derive(Debug)]
pub struct Asked {
    pub format: Format,
    /// The number of the request, for ids.
    pub number: u64,
    pub model: String,
    pub streamed: bool,
    /// Whether a stream of chat completions ends with its usage.
    pub include_usage: bool,
}

/// What is written at once.
pub struct Piece {
    pub bytes: Bytes,
    /// Whether a gate holds it and a cut counts it.
    pub held: bool,
}

pub type Pieces = Box<dyn Iterator<Item = Piece> + Send>;

/// A part of a streamed answer, whatever the format; it may be several events, or none.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Opening,
    TextStart,
    Text(usize),
    TextEnd,
    CallStart(usize),
    Arguments(usize, usize),
    CallEnd(usize),
    Ending,
}

impl Format {
    /// The provider's JSON for an error.
    pub fn error(self, error: &ProviderError, request_id: &str) -> Bytes {
        match self {
            Self::OpenAi => openai::error(error),
            Self::AzureOpenAi => openai::azure_error(error),
            Self::Anthropic => anthropic::error(error, request_id),
        }
    }

    /// The name of the header with the number of a request.
    pub fn request_id_header(self) -> &'static str {
        match self {
            Self::OpenAi => "x-request-id",
            Self::AzureOpenAi => "apim-request-id",
            Self::Anthropic => "request-id",
        }
    }
}

impl Asked {
    /// A whole answer, not streamed.
    pub fn whole(&self, answer: &Answer) -> Bytes {
        match self.format {
            Format::OpenAi | Format::AzureOpenAi => openai::whole(self, answer),
            Format::Anthropic => anthropic::whole(self, answer),
        }
    }

    /// A streamed answer. Its events are made one by one, as they are sent.
    pub fn stream(self, answer: Arc<Answer>) -> Pieces {
        Box::new(steps(&answer).into_iter().flat_map(move |step| {
            let events = match self.format {
                Format::OpenAi | Format::AzureOpenAi => openai::events(&self, &answer, step),
                Format::Anthropic => anthropic::events(&self, &answer, step),
            };
            let held = matches!(step, Step::Text(_) | Step::Arguments(..) | Step::Ending);
            events.into_iter().enumerate().map(move |(index, bytes)| Piece { bytes, held: held && index == 0 })
        }))
    }

    /// An answer with so many bytes of text, and how many bytes that makes where it is not streamed.
    pub fn huge(self, bytes: u64) -> (Pieces, Option<u64>) {
        let (full, rest) = (bytes / HUGE_PIECE as u64, bytes % HUGE_PIECE as u64);
        let rest = usize::try_from(rest).unwrap_or(0);
        let full = usize::try_from(full).unwrap_or(usize::MAX);
        let text = |length| "x".repeat(length);
        if !self.streamed {
            let whole = self.whole(&Answer::text(HUGE_PLACE));
            // The last, for the name of the model comes earlier and is the client's.
            let place =
                whole.windows(HUGE_PLACE.len()).rposition(|window| window == HUGE_PLACE.as_bytes()).unwrap_or(0);
            let opening = whole.slice(..place);
            let ending = whole.slice(place + HUGE_PLACE.len()..);
            let length = bytes + (opening.len() + ending.len()) as u64;
            let texts = std::iter::repeat_n(Bytes::from(text(HUGE_PIECE)), full);
            let pieces = std::iter::once(opening)
                .chain(texts)
                .chain([Bytes::from(text(rest)), ending])
                .filter(|bytes| !bytes.is_empty())
                .map(|bytes| Piece { bytes, held: true });
            return (Box::new(pieces), Some(length));
        }
        // One event is made, and repeated where the stream has its text.
        let answer = Answer::pieces([text(HUGE_PIECE), text(rest)]);
        let mut texts = 0;
        let repeated = self.stream(Arc::new(answer)).flat_map(move |piece| {
            let is_text = piece.held;
            texts += usize::from(is_text);
            let times = match (is_text, texts) {
                (true, 1) => full,
                (true, 2) => usize::from(rest > 0),
                _ => 1,
            };
            let held = piece.held;
            std::iter::repeat_n(piece.bytes, times).map(move |bytes| Piece { bytes, held })
        });
        (Box::new(repeated), None)
    }
}

fn steps(answer: &Answer) -> Vec<Step> {
    let mut steps = vec![Step::Opening];
    if !answer.text.is_empty() {
        steps.push(Step::TextStart);
        steps.extend((0..answer.text.len()).map(Step::Text));
        steps.push(Step::TextEnd);
    }
    for (call, made) in answer.tool_calls.iter().enumerate() {
        steps.push(Step::CallStart(call));
        steps.extend((0..made.arguments.len()).map(|piece| Step::Arguments(call, piece)));
        steps.push(Step::CallEnd(call));
    }
    steps.push(Step::Ending);
    steps
}

/// The id of a call: the script's, or one in the provider's manner.
pub fn call_id(asked: &Asked, answer: &Answer, call: usize) -> String {
    let prefix = match asked.format {
        Format::OpenAi | Format::AzureOpenAi => "call",
        Format::Anthropic => "toolu",
    };
    match answer.tool_calls.get(call).and_then(|it| it.id.clone()) {
        Some(id) => id,
        None => format!("{prefix}_{}_{call}", asked.number),
    }
}

/// JSON of a value of ours.
pub fn json(value: &impl Serialize) -> Bytes {
    let mut bytes = Vec::with_capacity(512);
    write_json(&mut bytes, value);
    bytes.into()
}

/// Adds the JSON of a value of ours.
pub fn write_json(bytes: &mut Vec<u8>, value: &impl Serialize) {
    if let Err(error) = serde_json::to_writer(bytes, value) {
        unreachable!("these values have no maps and no fallible parts: {error}");
    }
}
