//! What was said, line by line, as it happens: for people who want to know later. The bridge keeps it as the agent's word.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;
use sympozium_ipc::door::{MAX_TRANSCRIPT_CHUNK, RefusalCode};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::door::{Door, DoorError};

/// Bytes of each text of a line that would be longer than a piece. Two of them fit, whatever has to be escaped in them.
const CUT_TEXT: usize = MAX_TRANSCRIPT_CHUNK / 13;
/// The last line of a transcript that is full.
const FULL: &[u8] = b"{\"kind\":\"note\",\"text\":\"the transcript is full\"}\n";
/// How long a bridge that has no room is waited for, and between two tries.
const PATIENCE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Lines that wait to be sent. Whoever has more waits.
const WAITING: usize = 64;

/// One line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Line<'l> {
    /// What the model is told first.
    Task {
        /// Before everything else.
        system: &'l str,
        /// The task.
        task: &'l str,
    },
    /// What the model said.
    Answer {
        /// The round.
        round: u32,
        /// All of it, in the provider's format.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'l RawValue>,
        /// The text of it. Without the message, that was too long for a line.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<&'l str>,
        /// Why it stopped, where that is unusual.
        #[serde(skip_serializing_if = "Option::is_none")]
        stop: Option<&'l str>,
        /// Tokens read, where the provider says.
        #[serde(skip_serializing_if = "Option::is_none")]
        input_tokens: Option<u64>,
        /// Of those, from a cache.
        #[serde(skip_serializing_if = "Option::is_none")]
        cached_tokens: Option<u64>,
        /// Tokens written.
        #[serde(skip_serializing_if = "Option::is_none")]
        output_tokens: Option<u64>,
        /// Milliseconds that it took.
        duration_ms: u64,
    },
    /// What came of a call.
    Result {
        /// The round.
        round: u32,
        /// The model's name for the call.
        id: &'l str,
        /// The tool.
        tool: &'l str,
        /// Whether it did what was asked.
        failed: bool,
        /// What the model is told.
        text: &'l str,
        /// Milliseconds that it took.
        duration_ms: u64,
    },
    /// Something else that somebody may want to know.
    Note {
        /// What.
        text: &'l str,
    },
    /// The end.
    End {
        /// The answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<&'l str>,
        /// Or why there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'l str>,
    },
}

/// A line with its time.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Timed<'l> {
    /// Milliseconds since the agent began.
    at_ms: u64,
    #[serde(flatten)]
    line: &'l Line<'l>,
}

/// Where lines go.
#[derive(Debug)]
pub struct Transcript {
    lines: mpsc::Sender<Bytes>,
    since: Instant,
}

impl Transcript {
    /// Sends lines to the door in their order, until this is dropped and all are sent. `most` is how many bytes are kept.
    pub fn start(door: Door, most: u64) -> (Self, JoinHandle<()>) {
        let (lines, waiting) = mpsc::channel(WAITING);
        let sending = tokio::spawn(send(door, waiting, most));
        let since = Instant::now();
        (Self { lines, since }, sending)
    }

    /// Adds a line. Waits where the bridge is slow to take them.
    pub async fn add(&self, line: &Line<'_>) {
        let at_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        // Where the reader is gone, the transcript is full.
        let _ = self.lines.send(written(at_ms, line)).await;
    }
}

/// A line that fits into a piece.
fn written(at_ms: u64, line: &Line<'_>) -> Bytes {
    let write = |line: &Line<'_>| {
        let written = serde_json::to_string(&Timed { at_ms, line }).unwrap_or_default();
        Bytes::from(harmless(written) + "\n")
    };
    let whole = write(line);
    match whole.len() <= MAX_TRANSCRIPT_CHUNK {
        true => whole,
        false => write(&line.cut()),
    }
}

/// JSON without the characters that terminals act on and JSON lets pass: those below 32 are escaped already.
fn harmless(json: String) -> String {
    let acts = |character: char| matches!(character, '\u{7f}'..='\u{9f}');
    if !json.contains(acts) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        match acts(character) {
            // Outside of texts JSON has none of them.
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => escaped.push(character),
        }
    }
    escaped
}

/// A message as it stands in a request.
pub fn message(message: &Bytes) -> Option<&RawValue> {
    serde_json::from_slice(message).ok()
}

impl Line<'_> {
    /// The same, with as much of each text as certainly fits.
    fn cut(&self) -> Line<'_> {
        let cut = |text: &str| text.floor_char_boundary(CUT_TEXT);
        match self {
            Self::Task { system, task } => Line::Task { system: &system[..cut(system)], task: &task[..cut(task)] },
            Self::Answer { round, text, stop, input_tokens, cached_tokens, output_tokens, duration_ms, .. } => {
                Line::Answer {
                    round: *round,
                    message: None,
                    text: text.map(|text| &text[..cut(text)]),
                    stop: stop.map(|text| &text[..cut(text)]),
                    input_tokens: *input_tokens,
                    cached_tokens: *cached_tokens,
                    output_tokens: *output_tokens,
                    duration_ms: *duration_ms,
                }
            }
            Self::Result { round, id, tool, failed, text, duration_ms } => Line::Result {
                round: *round,
                id,
                tool,
                failed: *failed,
                text: &text[..cut(text)],
                duration_ms: *duration_ms,
            },
            Self::Note { text } => Line::Note { text: &text[..cut(text)] },
            Self::End { answer, error } => {
                Line::End { answer: answer.map(|text| &text[..cut(text)]), error: error.map(|text| &text[..cut(text)]) }
            }
        }
    }
}

async fn send(door: Door, mut lines: mpsc::Receiver<Bytes>, most: u64) {
    let mut left = most.saturating_sub(FULL.len() as u64);
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(line) => line,
            None => match lines.recv().await {
                Some(line) => line,
                None => return,
            },
        };
        // What waits already goes along.
        let mut piece = BytesMut::from(&first[..]);
        while let Ok(line) = lines.try_recv() {
            if piece.len() + line.len() > MAX_TRANSCRIPT_CHUNK {
                next = Some(line);
                break;
            }
            piece.extend_from_slice(&line);
        }
        let bytes = piece.len() as u64;
        if bytes > left {
            tracing::info!("the transcript is full");
            // Whoever adds lines does not wait for a reader that is gone.
            let _ = kept(&door, Bytes::from_static(FULL)).await;
            return;
        }
        left -= bytes;
        if let Err(error) = kept(&door, piece.freeze()).await {
            tracing::warn!(%error, "the transcript could not be kept");
            return;
        }
    }
}

/// Has the bridge keep a piece. One that has not passed on what it has yet is waited for, within bounds; then the piece is lost,
/// and the transcript says so.
async fn kept(door: &Door, piece: Bytes) -> Result<(), DoorError> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    loop {
        match door.transcript(piece.clone()).await {
            Err(DoorError::Refused(refusal)) if refusal.code == RefusalCode::Busy => {}
            answer => return answer,
        }
        if tokio::time::Instant::now() >= deadline {
            tracing::warn!(bytes = piece.len(), "a piece of the transcript is lost");
            return Ok(());
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_line_is_what_happened_in_one_line_of_json() {
        let said = Bytes::from_static(br#"{"role":"assistant","content":"Hm.\n"}"#);
        let line = Line::Answer {
            round: 2,
            message: message(&said),
            text: Some("Hm.\n"),
            stop: None,
            input_tokens: Some(7),
            cached_tokens: Some(0),
            output_tokens: None,
            duration_ms: 12,
        };
        let written = written(34, &line);
        assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(
            serde_json::from_slice::<Value>(&written).expect("JSON"),
            json!({
                "atMs": 34, "kind": "answer", "round": 2, "text": "Hm.\n", "inputTokens": 7, "cachedTokens": 0, "durationMs": 12,
                "message": { "role": "assistant", "content": "Hm.\n" },
            })
        );
    }

    #[test]
    fn nothing_in_a_line_is_acted_on_by_a_terminal() {
        let text = "\u{1b}[2J\u{9b}2J\u{7f}ä";
        let written = written(0, &Line::Note { text });
        let line = std::str::from_utf8(&written).expect("UTF-8");
        assert!(!line.trim_end().contains(char::is_control), "{line:?}");
        let read: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(read["text"], text);
    }

    #[test]
    fn a_line_fits_into_a_piece_whatever_is_in_it() {
        // Every character of it is six in JSON.
        let long = "\u{1}".repeat(1 << 20);
        for line in [
            Line::Task { system: &long, task: &long },
            Line::Answer {
                round: 1,
                message: None,
                text: Some(&long),
                stop: None,
                input_tokens: None,
                cached_tokens: None,
                output_tokens: None,
                duration_ms: 0,
            },
            Line::Result { round: 1, id: "a", tool: "b", failed: true, text: &long, duration_ms: 0 },
            Line::Note { text: &long },
            Line::End { answer: Some(&long), error: None },
        ] {
            let written = written(0, &line);
            assert!(written.len() <= MAX_TRANSCRIPT_CHUNK, "{}", written.len());
            assert!(written.len() > 10 << 10, "{}", written.len());
            serde_json::from_slice::<Value>(&written).expect("JSON");
        }
    }
}
