//! Sends the transcript to the bridge, line by line. The bridge stores it as unverified claims of the agent.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;
use sympozium_ipc::door::{MAX_TRANSCRIPT_CHUNK, RefusalCode};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::door::{Door, DoorError};

/// Bytes that remain of each text of a line that exceeds a chunk. Two of them fit, even when every byte is escaped.
const MAX_CUT_TEXT: usize = MAX_TRANSCRIPT_CHUNK / 13;
const FULL: &[u8] = b"{\"kind\":\"note\",\"text\":\"the transcript is full\"}\n";
/// How long to retry a chunk that the bridge has no room for.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Lines in the queue. A full queue delays the agent.
const QUEUE_LINES: usize = 64;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum TranscriptLine<'l> {
    Task {
        system: &'l str,
        task: &'l str,
    },
    Answer {
        round: u32,
        /// The message in the provider's format; `None` when it is too long for a line.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'l RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<&'l str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stop: Option<&'l str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_tokens: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cached_tokens: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        output_tokens: Option<u64>,
        duration_ms: u64,
    },
    Result {
        round: u32,
        id: &'l str,
        tool: &'l str,
        failed: bool,
        text: &'l str,
        duration_ms: u64,
    },
    Note {
        text: &'l str,
    },
    End {
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<&'l str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'l str>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TimedLine<'l> {
    /// Milliseconds since the agent started.
    at_ms: u64,
    #[serde(flatten)]
    line: &'l TranscriptLine<'l>,
}

#[derive(Debug)]
pub struct Transcript {
    lines: mpsc::Sender<Bytes>,
    started: Instant,
}

impl Transcript {
    /// Sends lines to the bridge in order, until this is dropped and the queue is empty. At most `max_bytes` are sent.
    pub fn start(door: Door, max_bytes: u64) -> (Self, JoinHandle<()>) {
        let (lines, receiver) = mpsc::channel(QUEUE_LINES);
        let sender = tokio::spawn(send_lines(door, receiver, max_bytes));
        let started = Instant::now();
        (Self { lines, started }, sender)
    }

    /// Waits while the queue is full.
    pub async fn add(&self, line: &TranscriptLine<'_>) {
        let at_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        // The receiver is gone when the transcript is full.
        let _ = self.lines.send(encode_line(at_ms, line)).await;
    }
}

fn encode_line(at_ms: u64, line: &TranscriptLine<'_>) -> Bytes {
    let write = |line: &TranscriptLine<'_>| {
        let encoded = serde_json::to_string(&TimedLine { at_ms, line }).unwrap_or_default();
        Bytes::from(escape_controls(encoded) + "\n")
    };
    let line_json = write(line);
    if line_json.len() <= MAX_TRANSCRIPT_CHUNK { line_json } else { write(&line.truncated()) }
}

/// Escapes DEL and C1 controls, which JSON lets pass and terminals act on. C0 controls are escaped already.
fn escape_controls(json: String) -> String {
    let is_control = |character: char| matches!(character, '\u{7f}'..='\u{9f}');
    if !json.contains(is_control) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_control(character) {
            // Only strings can contain them.
            escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

pub fn raw_message(message: &Bytes) -> Option<&RawValue> {
    serde_json::from_slice(message).ok()
}

impl TranscriptLine<'_> {
    /// The line with each text cut to what certainly fits.
    fn truncated(&self) -> TranscriptLine<'_> {
        let truncated = |text: &str| text.floor_char_boundary(MAX_CUT_TEXT);
        match self {
            Self::Task { system, task } => {
                TranscriptLine::Task { system: &system[..truncated(system)], task: &task[..truncated(task)] }
            }
            Self::Answer { round, text, stop, input_tokens, cached_tokens, output_tokens, duration_ms, .. } => {
                TranscriptLine::Answer {
                    round: *round,
                    message: None,
                    text: text.map(|text| &text[..truncated(text)]),
                    stop: stop.map(|text| &text[..truncated(text)]),
                    input_tokens: *input_tokens,
                    cached_tokens: *cached_tokens,
                    output_tokens: *output_tokens,
                    duration_ms: *duration_ms,
                }
            }
            Self::Result { round, id, tool, failed, text, duration_ms } => TranscriptLine::Result {
                round: *round,
                id,
                tool,
                failed: *failed,
                text: &text[..truncated(text)],
                duration_ms: *duration_ms,
            },
            Self::Note { text } => TranscriptLine::Note { text: &text[..truncated(text)] },
            Self::End { answer, error } => TranscriptLine::End {
                answer: answer.map(|text| &text[..truncated(text)]),
                error: error.map(|text| &text[..truncated(text)]),
            },
        }
    }
}

async fn send_lines(door: Door, mut lines: mpsc::Receiver<Bytes>, max_bytes: u64) {
    let mut remaining = max_bytes.saturating_sub(FULL.len() as u64);
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(line) => line,
            None => match lines.recv().await {
                Some(line) => line,
                None => return,
            },
        };
        // Batch what is in the queue.
        let mut chunk = BytesMut::from(&first[..]);
        while let Ok(line) = lines.try_recv() {
            if chunk.len() + line.len() > MAX_TRANSCRIPT_CHUNK {
                next = Some(line);
                break;
            }
            chunk.extend_from_slice(&line);
        }
        let bytes = chunk.len() as u64;
        if bytes > remaining {
            tracing::info!("the transcript is full");
            // Senders do not block on a closed channel.
            let _ = send_chunk(&door, Bytes::from_static(FULL)).await;
            return;
        }
        remaining -= bytes;
        if let Err(error) = send_chunk(&door, chunk.freeze()).await {
            tracing::warn!(%error, "the transcript could not be stored");
            return;
        }
    }
}

/// Sends a chunk, with retries while the bridge is busy. After the timeout the chunk is lost, which the log says.
async fn send_chunk(door: &Door, chunk: Bytes) -> Result<(), DoorError> {
    let deadline = tokio::time::Instant::now() + BUSY_TIMEOUT;
    let mut delay = INITIAL_RETRY_DELAY;
    loop {
        match door.transcript(chunk.clone()).await {
            Err(DoorError::Refused(refusal)) if refusal.code == RefusalCode::Busy => {}
            answer => return answer,
        }
        if tokio::time::Instant::now() >= deadline {
            tracing::warn!(bytes = chunk.len(), "a piece of the transcript is lost");
            return Ok(());
        }
        sleep(delay).await;
        delay = (delay * 2).min(MAX_RETRY_DELAY);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_line_is_one_line_of_json() {
        let message = Bytes::from_static(br#"{"role":"assistant","content":"Hm.\n"}"#);
        let line = TranscriptLine::Answer {
            round: 2,
            message: raw_message(&message),
            text: Some("Hm.\n"),
            stop: None,
            input_tokens: Some(7),
            cached_tokens: Some(0),
            output_tokens: None,
            duration_ms: 12,
        };
        let encoded = encode_line(34, &line);
        assert_eq!(encoded.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(
            serde_json::from_slice::<Value>(&encoded).expect("JSON"),
            json!({
                "atMs": 34, "kind": "answer", "round": 2, "text": "Hm.\n", "inputTokens": 7, "cachedTokens": 0, "durationMs": 12,
                "message": { "role": "assistant", "content": "Hm.\n" },
            })
        );
    }

    #[test]
    fn a_line_has_no_control_characters() {
        let text = "\u{1b}[2J\u{9b}2J\u{7f}ä";
        let encoded = encode_line(0, &TranscriptLine::Note { text });
        let line = std::str::from_utf8(&encoded).expect("UTF-8");
        assert!(!line.trim_end().contains(char::is_control), "{line:?}");
        let read: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(read["text"], text);
    }

    #[test]
    fn every_line_fits_a_chunk() {
        // Every character of it is six in JSON.
        let long = "\u{1}".repeat(1 << 20);
        for line in [
            TranscriptLine::Task { system: &long, task: &long },
            TranscriptLine::Answer {
                round: 1,
                message: None,
                text: Some(&long),
                stop: None,
                input_tokens: None,
                cached_tokens: None,
                output_tokens: None,
                duration_ms: 0,
            },
            TranscriptLine::Result { round: 1, id: "a", tool: "b", failed: true, text: &long, duration_ms: 0 },
            TranscriptLine::Note { text: &long },
            TranscriptLine::End { answer: Some(&long), error: None },
        ] {
            let encoded = encode_line(0, &line);
            assert!(encoded.len() <= MAX_TRANSCRIPT_CHUNK, "{}", encoded.len());
            assert!(encoded.len() > 10 << 10, "{}", encoded.len());
            serde_json::from_slice::<Value>(&encoded).expect("JSON");
        }
    }
}
