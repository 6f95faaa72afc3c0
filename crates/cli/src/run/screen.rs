//! The user's terminal, or a file instead: lines, and a status line below them.

use std::os::fd::{AsFd as _, OwnedFd};

use clap::ColorChoice;
use rustix::termios::{isatty, tcgetwinsize};
use tokio::sync::oneshot;

use super::display::line::{Line, Style};
use super::writer::Writer;

/// The width of a terminal that does not report one.
const DEFAULT_COLUMNS: usize = 80;
/// Moves to the first column, and erases the line.
const ERASE: &str = "\r\u{1b}[K";
/// The animation of the status line.
const FRAMES: [&str; 4] = ["|", "/", "-", "\\"];
/// Lines that are held back while a question is open.
const MAX_HELD: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenStyle {
    pub colours: bool,
    /// Whether there is a status line.
    pub has_status_line: bool,
}

#[derive(Debug)]
pub struct Screen {
    writer: Writer,
    stream: OwnedFd,
    style: ScreenStyle,
    /// `None` if it is not a terminal.
    columns: Option<usize>,
    is_status_shown: bool,
    frame: usize,
    /// The lines that are held back while a question is open.
    held: Option<Vec<Line>>,
    /// Lines that were dropped because the queue was full.
    dropped: u64,
}

/// What the environment variables tell about the terminal.
#[derive(Debug, Clone, Copy)]
pub struct TerminalEnv {
    /// `NO_COLOR` is set and not empty.
    pub no_color: bool,
    /// `TERM` is `dumb`, or not set.
    pub is_dumb: bool,
}

impl TerminalEnv {
    pub fn read() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty());
        Self { no_color: variable("NO_COLOR").is_some(), is_dumb: variable("TERM").is_none_or(|it| it == "dumb") }
    }
}

impl ScreenStyle {
    /// Combines the user's choice with the abilities of the terminal.
    pub fn new(choice: ColorChoice, is_terminal: bool, environment: TerminalEnv) -> Self {
        let TerminalEnv { no_color, is_dumb } = environment;
        let colours = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && !no_color && !is_dumb,
        };
        Self { colours, has_status_line: is_terminal && colours && !is_dumb }
    }
}

impl Screen {
    pub fn new(stream: OwnedFd, choice: ColorChoice, environment: TerminalEnv) -> anyhow::Result<Self> {
        let is_terminal = isatty(&stream);
        let mut screen = Self {
            writer: Writer::start(stream.try_clone()?)?,
            stream,
            style: ScreenStyle::new(choice, is_terminal, environment),
            columns: is_terminal.then_some(DEFAULT_COLUMNS),
            is_status_shown: false,
            frame: 0,
            held: None,
            dropped: 0,
        };
        screen.measure();
        Ok(screen)
    }

    /// Whether there is a status line.
    pub const fn has_status_line(&self) -> bool {
        self.style.has_status_line
    }

    pub const fn is_terminal(&self) -> bool {
        self.columns.is_some()
    }

    /// Updates the width of the terminal.
    pub fn measure(&mut self) {
        if self.columns.is_some() {
            let size = tcgetwinsize(self.stream.as_fd()).ok();
            let columns = size.map(|it| usize::from(it.ws_col)).filter(|it| *it > 0);
            self.columns = Some(columns.unwrap_or(DEFAULT_COLUMNS));
        }
    }

    /// Prints lines above the status line, or holds them back while a question is open.
    pub fn print(&mut self, lines: &[Line]) {
        if lines.is_empty() {
            return;
        }
        if let Some(held) = &mut self.held {
            let room = MAX_HELD.saturating_sub(held.len()).min(lines.len());
            held.extend_from_slice(&lines[..room]);
            self.dropped += (lines.len() - room) as u64;
            return;
        }
        self.print_now(lines);
    }

    /// Prints lines even while a question is open, because they belong to it.
    pub fn print_now(&mut self, lines: &[Line]) {
        let mut text = String::new();
        if self.is_status_shown {
            text.push_str(ERASE);
        }
        if self.dropped > 0 {
            let lost = format!("… {} lines left out: the terminal was too slow", self.dropped);
            text.push_str(&self.render(&Line::truncated().add(Style::Faint, &lost)));
        }
        for line in lines {
            text.push_str(&self.render(line));
        }
        match self.writer.try_write(text) {
            true => {
                self.dropped = 0;
                self.is_status_shown = false;
            }
            false => self.dropped += lines.len() as u64,
        }
    }

    /// Updates the status line; `None` removes it.
    pub fn show_status(&mut self, status: Option<Line>) {
        // A queued frame would be outdated when it is seen.
        if !self.style.has_status_line || self.held.is_some() || !self.writer.is_idle() {
            return;
        }
        let Some(status) = status else {
            self.clear_status();
            return;
        };
        self.frame = (self.frame + 1) % FRAMES.len();
        let columns = self.columns.unwrap_or(DEFAULT_COLUMNS);
        // A terminal whose last column is used may wrap.
        let room = columns.saturating_sub(3);
        let line = status.render(Some(room), self.style.colours);
        let text = format!("{ERASE}{} {}", FRAMES[self.frame], line.trim_end_matches('\n'));
        if self.writer.try_write(text) {
            self.is_status_shown = true;
        }
    }

    /// Removes the status line.
    pub fn clear_status(&mut self) {
        if self.is_status_shown && self.writer.try_write(ERASE.to_owned()) {
            self.is_status_shown = false;
        }
    }

    /// Holds lines back from now on, because the user types.
    pub fn hold(&mut self) {
        self.clear_status();
        self.held.get_or_insert_default();
    }

    /// Prints the lines that were held back.
    pub fn release(&mut self) {
        if let Some(held) = self.held.take() {
            self.print(&held);
        }
    }

    /// Renders a line for this terminal.
    pub fn render(&self, line: &Line) -> String {
        line.render(self.columns, self.style.colours)
    }

    /// Writes a text as it is, such as one without a line break.
    pub fn write(&mut self, text: String) {
        self.writer.try_write(text);
    }

    /// The receiver is signalled when everything so far is written. `None` if the queue is full.
    pub fn flush_marker(&self) -> Option<oneshot::Receiver<()>> {
        self.writer.flush_marker()
    }

    /// Removes the status line, waits until everything is written, and ends the writer.
    pub async fn finish(mut self) {
        self.release();
        self.clear_status();
        self.writer.finish().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        let environment = |no_color, is_dumb| TerminalEnv { no_color, is_dumb };
        let good = environment(false, false);
        let style = |choice, is_terminal, environment| {
            let it = ScreenStyle::new(choice, is_terminal, environment);
            (it.colours, it.has_status_line)
        };
        use ColorChoice::{Always, Auto, Never};
        assert_eq!(style(Auto, true, good), (true, true));
        assert_eq!(style(Auto, false, good), (false, false));
        assert_eq!(style(Never, true, good), (false, false));
        assert_eq!(style(Auto, true, environment(true, false)), (false, false));
        assert_eq!(style(Auto, true, environment(false, true)), (false, false));
        assert_eq!(style(Always, false, good), (true, false));
        assert_eq!(style(Always, true, environment(true, true)), (true, false));
    }
}
