//! What a starting cluster reports to its owner: one JSON line per event, from the first process to the keeper to `up`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::state::Record;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// A step is done, and took so long.
    Step {
        name: String,
        milliseconds: u64,
    },
    Ready(Box<Record>),
    Failed(String),
    /// The cluster of that name belongs to another keeper.
    Taken,
}

/// Writes an event; a closed pipe is no error, because the owner may have been killed.
pub fn send(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    }
}

/// Measures steps.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Sends the time since the last step.
    pub fn step(&mut self, name: &str) {
        let milliseconds = u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX);
        send(&Event::Step { name: name.to_owned(), milliseconds });
        self.0 = Instant::now();
    }
}

/// Seconds with one digit, right-aligned.
pub fn seconds(duration: Duration) -> String {
    format!("{:>7.1} s", duration.as_secs_f64())
}
