//! A model with predefined answers: for demonstrations, tests and the conformance suite.
//!
//! It answers inside the bridge, in OpenAI's format, and the agent sees no difference. A script is a list of turns that
//! are played in order. A turn may have conditions on the request. If no turn matches, the error says what was
//! expected, because that is what a failed test prints. `docs/scripted-model.md` has the format.
//!
//! `script` parses it, `received` is what turns are compared with, `answer` writes the wire format.

mod answer;
mod received;
mod script;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use sympozium_ipc::door::{Refusal, RefusalCode};

pub use script::{MAX_CALLS, MAX_DELAY_MS, MAX_SCRIPT, MAX_TURNS, ScriptError};

use received::ReceivedRequest;
use script::{NextTurn, Script, Turn};

pub struct Player {
    script: Script,
    position: Mutex<Position>,
}

/// The position in the script.
#[derive(Debug, Default)]
struct Position {
    /// Number of requests so far.
    requests: u64,
    /// Index of the next turn.
    next: usize,
    /// Index of the turn that is repeated while the next one does not match.
    repeating: Option<usize>,
}

/// The answer of a turn.
#[derive(Debug)]
pub struct ScriptedAnswer {
    pub status: StatusCode,
    pub content_type: &'static str,
    /// The body, in the pieces in which it is sent.
    pub pieces: VecDeque<Bytes>,
    /// Time before the answer begins.
    pub delay: Duration,
    pub retry_after_seconds: Option<u64>,
}

impl Player {
    /// Parses a script in YAML.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not valid.
    pub fn new(yaml: &[u8]) -> Result<Self, ScriptError> {
        Ok(Self { script: Script::parse(yaml)?, position: Mutex::default() })
    }

    /// Answers a request, which was checked before.
    ///
    /// # Errors
    ///
    /// Returns a refusal if no turn matches.
    pub fn play(&self, body: &[u8], streamed: bool) -> Result<ScriptedAnswer, Refusal> {
        let received =
            ReceivedRequest::parse(body).map_err(|why| no_match_refusal(format!("it cannot be read: {why}")))?;
        let mut place = self.position.lock();
        place.requests += 1;
        let turn = self.find_turn(&mut place, &received).map_err(no_match_refusal)?;
        let about = answer::RequestInfo { request: place.requests, model: &received.model, bytes: body.len() as u64 };
        Ok(answer::write_answer(turn, &about, streamed))
    }

    /// The next turn, or the one before it if that repeats.
    fn find_turn(&self, place: &mut Position, received: &ReceivedRequest) -> Result<&Turn, String> {
        let turns = &self.script.turns;
        let mut misfits = Vec::new();
        match turns.get(place.next) {
            None if place.repeating.is_none() => {
                return Err(format!("request {} comes after the last of its {} turns", place.requests, turns.len()));
            }
            None => {}
            Some(turn) => match received.mismatch(turn, place.requests) {
                None => {
                    let index = place.next;
                    place.next = match turn.then {
                        NextTurn::End => turns.len(),
                        NextTurn::Next | NextTurn::Repeat => index + 1,
                    };
                    place.repeating = (turn.then == NextTurn::Repeat).then_some(index);
                    return Ok(turn);
                }
                Some(misfit) => misfits.push(format!("turn {} expects {misfit}", place.next + 1)),
            },
        }
        if let Some(index) = place.repeating
            && let Some(turn) = turns.get(index)
        {
            match received.mismatch(turn, place.requests) {
                None => return Ok(turn),
                Some(misfit) => {
                    misfits.push(format!("turn {}, which repeats, expects {misfit}", index + 1));
                }
            }
        }
        Err(format!("request {} fits no turn: {}", place.requests, misfits.join("; ")))
    }
}

/// Not an error of a provider, because retrying would not help.
fn no_match_refusal(why: String) -> Refusal {
    Refusal {
        code: RefusalCode::Request,
        message: format!("the script of the model has no answer: {why}"),
        retry_after_ms: None,
    }
}

#[cfg(test)]
mod tests;
