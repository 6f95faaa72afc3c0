//! What the agent is doing, in a line, for people who watch. Only the newest line matters, so no more are sent than can be read.

use std::sync::Mutex;
use std::time::Duration;

use sympozium_api::text::{Bytes, is_prose, truncate};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::door::Door;

/// Between two lines.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes of a line.
const MAX_LINE: usize = 300;

/// Where lines go.
#[derive(Debug)]
pub struct Status {
    lines: watch::Sender<String>,
    /// When a line of what the model writes was last made.
    written: Mutex<Option<Instant>>,
}

impl Status {
    /// Sends lines to the door until this is dropped.
    pub fn start(door: Door) -> (Self, JoinHandle<()>) {
        let (lines, mut newest) = watch::channel(String::new());
        let sending = tokio::spawn(async move {
            while newest.changed().await.is_ok() {
                let line = newest.borrow_and_update().clone();
                // A line that is not taken is worth no second try: there will be another.
                let _ = door.progress(line).await;
                sleep(PAUSE).await;
            }
        });
        let status = Self { lines, written: Mutex::default() };
        (status, sending)
    }

    /// A new line.
    pub fn set(&self, line: &str) {
        self.lines.send_replace(one_line(line));
    }

    /// What the model has written so far.
    pub fn writing(&self, text: &str) {
        if text.is_empty() {
            return;
        }
        let mut written = match self.written.lock() {
            Ok(written) => written,
            Err(poisoned) => poisoned.into_inner(),
        };
        // Not for every word: most would never be sent.
        if written.is_none_or(|written| written.elapsed() >= PAUSE) {
            *written = Some(Instant::now());
            let tail = text.floor_char_boundary(text.len().saturating_sub(MAX_LINE));
            self.set(&text[tail..]);
        }
    }
}

/// White space in one piece each, without what nobody sees, at most [`MAX_LINE`] bytes.
fn one_line(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_LINE * 4)];
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().filter(|it| is_prose(*it)));
    }
    truncate(line, Bytes(MAX_LINE)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_and_short() {
        assert_eq!(one_line("  a\n\tb  c "), "a b c");
        assert_eq!(one_line("a\u{1b}[2J\u{202e}b \u{3164}"), "a[2Jb ");
        let long = one_line(&"ö".repeat(10_000));
        assert_eq!((long.len(), long.chars().last()), (299, Some('…')));
    }
}
