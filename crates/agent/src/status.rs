//! Reports progress for people. Only the newest line matters, so intermediate ones are dropped.

use std::sync::Mutex;
use std::time::Duration;

use sympozium_api::text::{Bytes, is_prose, truncate};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::door::Door;

const MIN_INTERVAL: Duration = Duration::from_millis(250);
const MAX_LINE: usize = 300;

#[derive(Debug)]
pub struct Status {
    lines: watch::Sender<String>,
    /// When output of the model was last reported.
    last_output: Mutex<Option<Instant>>,
}

impl Status {
    /// Sends lines to the bridge until this is dropped.
    pub fn start(door: Door) -> (Self, JoinHandle<()>) {
        let (lines, mut receiver) = watch::channel(String::new());
        let sender = tokio::spawn(async move {
            while receiver.changed().await.is_ok() {
                let line = receiver.borrow_and_update().clone();
                // No retry: there will be another line.
                let _ = door.progress(line).await;
                sleep(MIN_INTERVAL).await;
            }
        });
        let status = Self { lines, last_output: Mutex::default() };
        (status, sender)
    }

    pub fn report(&self, line: &str) {
        self.lines.send_replace(one_line(line));
    }

    pub fn report_output(&self, text: &str) {
        if text.is_empty() {
            return;
        }
        let mut last_output = match self.last_output.lock() {
            Ok(last_output) => last_output,
            Err(poisoned) => poisoned.into_inner(),
        };
        // Not for every token: most lines would never be sent.
        if last_output.is_none_or(|last_output| last_output.elapsed() >= MIN_INTERVAL) {
            *last_output = Some(Instant::now());
            let tail = text.floor_char_boundary(text.len().saturating_sub(MAX_LINE));
            self.report(&text[tail..]);
        }
    }
}

/// Collapses white space, removes invisible characters, and cuts at [`MAX_LINE`] bytes.
fn one_line(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_LINE * 4)];
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().filter(|character| is_prose(*character)));
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
