//! Fuzz targets: bytes from a provider.

use serde_json::Value;
use sympozium_api::run_plan::AgentView;

use super::OpenAi;
use crate::model::events::{Event, EventDecoder};
use crate::model::{BodyFormat, CallArguments, MAX_CALLS, MAX_NAME, MAX_RESPONSE, Model, ModelResponse, ResponseError};

/// What requests are made of here: two tools.
const VIEW: &str = include_str!("fixtures/view.json");
/// A message may be longer than what is kept of an answer: letters that JSON escapes have up to six bytes.
const MAX_MESSAGE: usize = 6 * MAX_RESPONSE + (64 << 10);

/// Where to cut, in the first byte; a stream in the rest. In whatever pieces it comes, the events are the same.
pub fn agent_sse(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else {
        return;
    };
    let size = usize::from(*cut) + 1;
    let whole = events([stream].into_iter());
    let chunks = events(stream.chunks(size));
    assert_eq!(chunks, whole);
}

/// The events of a stream, and whether it broke.
fn events<'s>(chunks: impl Iterator<Item = &'s [u8]>) -> Option<Vec<Event<Value>>> {
    let mut events = EventDecoder::default();
    let mut all = Vec::new();
    for chunk in chunks {
        all.extend(events.read(chunk).ok()?);
    }
    all.extend(events.finish().ok()?);
    Some(all)
}

/// Where to cut, in the first byte; an answer in the rest, as a stream and as a whole. What it is does not depend on
/// pieces, it is bounded, and its message says what its calls say.
pub fn agent_openai(data: &[u8]) {
    let Some((cut, body)) = data.split_first() else {
        return;
    };
    let size = usize::from(*cut) + 1;
    for shape in [BodyFormat::EventStream, BodyFormat::Json] {
        let whole = answer(shape, [body].into_iter());
        let chunks = answer(shape, body.chunks(size));
        match (whole, chunks) {
            (Ok(whole), Ok(chunks)) => {
                check(&whole);
                assert_eq!(whole, chunks);
            }
            (Err(_), Err(_)) => {}
            (whole, chunks) => panic!("{whole:?} is not {chunks:?}"),
        }
    }
    let problem = model().provider_error(400, body);
    assert!(problem.message.len() <= 4096);
    assert!(!problem.message.chars().any(char::is_control));
}

fn model() -> OpenAi {
    match serde_json::from_str::<AgentView>(VIEW) {
        Ok(view) => OpenAi::new(&view, "You help."),
        Err(error) => panic!("the view is one: {error}"),
    }
}

fn answer<'s>(shape: BodyFormat, chunks: impl Iterator<Item = &'s [u8]>) -> Result<ModelResponse, ResponseError> {
    let mut reader = model().reader(shape);
    for chunk in chunks {
        reader.read(chunk)?;
        assert!(reader.text().len() <= MAX_RESPONSE);
    }
    reader.finish()
}

fn check(answer: &ModelResponse) {
    assert!(answer.text.len() <= MAX_RESPONSE);
    assert!(answer.calls.len() <= MAX_CALLS);
    assert!(answer.message.len() <= MAX_MESSAGE);
    let message: Value = match serde_json::from_slice(&answer.message) {
        Ok(message) => message,
        Err(error) => panic!("a message is JSON: {error}"),
    };
    assert_eq!(message["role"], "assistant");
    let empty = Vec::new();
    let written = message["tool_calls"].as_array().unwrap_or(&empty);
    assert_eq!(written.len(), answer.calls.len());
    let mut ids = std::collections::BTreeSet::new();
    for (call, written) in answer.calls.iter().zip(written) {
        assert!(!call.id.is_empty() && call.id.len() <= MAX_NAME);
        assert!(call.name.len() <= MAX_NAME);
        assert!(ids.insert(&call.id), "{} is there twice", call.id);
        assert_eq!(written["id"], call.id.as_str());
        let arguments = written["function"]["arguments"].as_str().unwrap_or_default();
        let expected = match &call.arguments {
            CallArguments::Object(fields) => Value::Object(fields.clone()),
            CallArguments::Invalid(why) => {
                assert!(!why.is_empty());
                Value::Object(serde_json::Map::new())
            }
        };
        match serde_json::from_str::<Value>(arguments) {
            Ok(arguments) if arguments == expected => {}
            // Nothing but white space, or null, is an empty object too; numbers are as exact as they were read.
            other => panic!("{other:?} is not {expected:?}"),
        }
    }
}
