//! What the model server answers, as data.

use std::sync::Arc;

use hyper::body::Bytes;
use serde_json::Value;

use super::gate::Gate;

/// The answer to one request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// What a model says, in the format of the request and streamed if it asks for a stream.
    Answer(Arc<Answer>),
    /// An answer with a text of this many bytes, made while it is sent: its size costs no memory here.
    Huge {
        /// Bytes of text.
        bytes: u64,
    },
    /// The whole request, its headers too, as the text of an answer.
    Echo,
    /// The provider refuses, in its own JSON.
    Error(ProviderError),
    /// Any HTTP answer.
    Http(HttpAnswer),
    /// These bytes on the connection, instead of an HTTP answer.
    Raw {
        /// What is written, verbatim.
        bytes: Bytes,
        /// What becomes of the connection.
        then: Then,
    },
    /// Nothing, for as long as the client waits.
    Silence,
    /// A reply whose pieces wait for the test.
    Gated(Gate, Box<Reply>),
    /// A reply that breaks off.
    Cut(Cut, Box<Reply>),
}

/// What happens after raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection is closed.
    Close,
    /// The connection stays open, and nothing more comes.
    Hang,
}

/// Where a connection is cut. A reply that ends before is not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// After so many bytes of the HTTP answer, its head included.
    AfterBytes(u64),
    /// After so many pieces of text or of arguments: in place of the next one, or of the end.
    AfterPieces(u64),
}

impl Reply {
    /// A text in one piece.
    pub fn text(text: impl Into<String>) -> Self {
        Answer::text(text).into()
    }

    /// A text in these pieces, each an event of its own when it is streamed.
    pub fn pieces<T: Into<String>>(pieces: impl IntoIterator<Item = T>) -> Self {
        Answer::pieces(pieces).into()
    }

    /// Calls of tools and no text.
    pub fn tools(calls: impl IntoIterator<Item = ToolCall>) -> Self {
        Answer::tools(calls).into()
    }

    /// A refusal; see [`ProviderError`] for more than status and message.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Self::Error(ProviderError::new(status, message))
    }

    /// A redirect, which no client of a model should follow.
    pub fn redirect(status: u16, location: impl Into<String>) -> Self {
        Self::Http(HttpAnswer { status, headers: vec![("location".into(), location.into())], pieces: Vec::new() })
    }

    /// These bytes instead of an HTTP answer; then the connection is closed.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Raw { bytes: Bytes::from(bytes.into()), then: Then::Close }
    }

    /// The same reply, each of its pieces sent when the gate lets it through.
    #[must_use]
    pub fn gated(self, gate: &Gate) -> Self {
        Self::Gated(gate.clone(), Box::new(self))
    }

    /// The same reply, broken off.
    #[must_use]
    pub fn cut(self, cut: Cut) -> Self {
        Self::Cut(cut, Box::new(self))
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self::Answer(Arc::new(answer))
    }
}

impl From<ProviderError> for Reply {
    fn from(error: ProviderError) -> Self {
        Self::Error(error)
    }
}

impl From<HttpAnswer> for Reply {
    fn from(answer: HttpAnswer) -> Self {
        Self::Http(answer)
    }
}

/// What a model says: a text, calls of tools, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The text in pieces.
    pub text: Vec<String>,
    /// The calls, after the text.
    pub tool_calls: Vec<ToolCall>,
    /// What the provider says it counted.
    pub usage: Usage,
    /// Why it stopped; without one, [`Stop::ToolCalls`] where there are calls and [`Stop::Done`] where there are none.
    pub stop: Option<Stop>,
    /// Where the stream breaks with an error event instead of its end. Without a stream it is the whole answer.
    pub failure: Option<ProviderError>,
}

impl Answer {
    /// A text in one piece.
    pub fn text(text: impl Into<String>) -> Self {
        Self::pieces([text])
    }

    /// A text in these pieces.
    pub fn pieces<T: Into<String>>(pieces: impl IntoIterator<Item = T>) -> Self {
        Self { text: pieces.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Calls of tools and no text.
    pub fn tools(calls: impl IntoIterator<Item = ToolCall>) -> Self {
        Self { tool_calls: calls.into_iter().collect(), ..Self::default() }
    }

    /// With one more call.
    #[must_use]
    pub fn tool(mut self, call: ToolCall) -> Self {
        self.tool_calls.push(call);
        self
    }

    /// With these counts.
    #[must_use]
    pub fn usage(mut self, input_tokens: u64, output_tokens: u64) -> Self {
        self.usage = Usage { input_tokens, output_tokens };
        self
    }

    /// With this reason to stop.
    #[must_use]
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// With an error where its end would be.
    #[must_use]
    pub fn then_error(mut self, error: ProviderError) -> Self {
        self.failure = Some(error);
        self
    }

    /// Why it stopped, said or not.
    pub(super) fn stopped(&self) -> Stop {
        match self.stop {
            Some(stop) => stop,
            None if self.tool_calls.is_empty() => Stop::Done,
            None => Stop::ToolCalls,
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Without one, an id in the provider's manner, made of the numbers of request and call.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The text of its arguments in pieces. It should be a JSON object; a test may send what a model gets wrong.
    pub arguments: Vec<String>,
}

impl ToolCall {
    /// A call with these arguments, in one piece.
    pub fn new(name: impl Into<String>, arguments: &Value) -> Self {
        Self { id: None, name: name.into(), arguments: vec![arguments.to_string()] }
    }

    /// With this id.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// With the arguments in pieces of so many characters (at least one).
    #[must_use]
    pub fn in_pieces_of(mut self, characters: usize) -> Self {
        let text: Vec<char> = self.arguments.concat().chars().collect();
        self.arguments = text.chunks(characters.max(1)).map(|piece| piece.iter().collect()).collect();
        self
    }
}

/// What a provider counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the request.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
}

impl Default for Usage {
    /// Different from each other and from zero, so that a test sees which of them was taken.
    fn default() -> Self {
        Self { input_tokens: 11, output_tokens: 7 }
    }
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was done: `stop`, `end_turn`.
    Done,
    /// It wants tools called: `tool_calls`, `tool_use`.
    ToolCalls,
    /// It reached its limit of tokens: `length`, `max_tokens`.
    Length,
    /// It would not go on: `content_filter`, `refusal`.
    Refused,
}

/// A refusal by the provider. What is not said is what the provider says for such a status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderError {
    /// The HTTP status.
    pub status: u16,
    /// What happened.
    pub message: String,
    /// The field `type` of the error.
    pub kind: Option<String>,
    /// The field `code` of the error (OpenAI and Azure).
    pub code: Option<String>,
    /// The header `Retry-After`, verbatim: seconds, a date, or nonsense.
    pub retry_after: Option<String>,
    /// This body, verbatim, instead of the provider's JSON.
    pub body: Option<Bytes>,
}

impl ProviderError {
    /// A refusal with this status and message.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), ..Self::default() }
    }

    /// With this `type`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// With this `code`.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// With this header `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, value: impl Into<String>) -> Self {
        self.retry_after = Some(value.into());
        self
    }

    /// With this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(Bytes::from(body.into()));
        self
    }
}

/// An HTTP answer that has nothing to do with a provider's format, or only seems to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status, which must be a valid one.
    pub status: u16,
    /// Header names and values, which must be valid ones.
    pub headers: Vec<(String, String)>,
    /// The body. One piece or none has a `Content-Length`, more are sent in chunks, each written by itself.
    pub pieces: Vec<Bytes>,
}

impl HttpAnswer {
    /// A stream of events with these bytes in it, however well they are formed.
    pub fn events<T: Into<Vec<u8>>>(pieces: impl IntoIterator<Item = T>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type".into(), "text/event-stream".into())],
            pieces: pieces.into_iter().map(|piece| Bytes::from(piece.into())).collect(),
        }
    }
}
