//! What a command wrote, as a model reads it.
//!
//! The start and the end of an output say most: what was asked, and how it went. So a long one loses its middle, and says so.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod terminal;
#[cfg(test)]
mod tests;

use terminal::plain;

/// What came of a command, as the bridge says.
#[derive(Debug)]
pub struct Ended<'c> {
    /// Its exit code.
    pub exit_code: i32,
    /// What it wrote.
    pub stdout: &'c str,
    /// What it wrote beside that.
    pub stderr: &'c str,
    /// Whether it was ended because its time was up.
    pub timed_out: bool,
    /// Whether there was more of either.
    pub truncated: bool,
}

/// What stands before the second stream.
const STDERR: &str = "STDERR: ";

/// Said once when we left something out.
const CUT: &str =
    "(output cut: narrow the command, or write its output to a file below /workspace and read it in pieces)";

/// Said when the skill had more than it sent.
const TRUNCATED: &str = "(the command wrote more than its skill passes on; narrow it, or write its output to a file)";

/// Most bytes of the line that stands where something was left out, with the longest number.
const MOST_GAP: usize = 48;

/// The part of the room that errors have for sure when both streams are long: one in this many.
const STDERR_SHARE: usize = 3;

/// As the model reads it, in at most `most` bytes.
pub fn shown(command: &Ended<'_>, most: usize) -> String {
    let stdout = plain(command.stdout);
    let stderr = plain(command.stderr);
    let (stdout, stderr) = (stdout.trim_end(), stderr.trim_end());
    // Blank lines at the start go; spaces before the first word may be the alignment of a table.
    let (stdout, stderr) = (stdout.trim_start_matches('\n'), stderr.trim_start_matches('\n'));

    let mut notes = Vec::new();
    if stdout.is_empty() && stderr.is_empty() {
        notes.push("(no output)".to_owned());
    }
    if command.timed_out {
        notes.push("(command timed out)".to_owned());
    }
    if command.exit_code != 0 {
        notes.push(format!("(exit code: {})", command.exit_code));
    }
    if command.truncated {
        notes.push(TRUNCATED.to_owned());
    }

    let around: usize = notes.iter().map(|note| note.len() + 1).sum::<usize>() + STDERR.len() + 1;
    let mut room = most.saturating_sub(around);
    if stdout.len() + stderr.len() > room {
        room = room.saturating_sub(CUT.len() + 1);
        notes.push(CUT.to_owned());
    }
    let for_stderr = stderr.len().min((room / STDERR_SHARE).max(room.saturating_sub(stdout.len())));
    let for_stdout = room - for_stderr;

    let mut lines = Vec::new();
    if !stdout.is_empty() {
        lines.push(without_middle(stdout, for_stdout));
    }
    if !stderr.is_empty() {
        lines.push(format!("{STDERR}{}", without_middle(stderr, for_stderr)));
    }
    lines.extend(notes);
    let mut shown = lines.join("\n");
    // Only a `most` that not even the notes fit in gets here with something to cut.
    shown.truncate(shown.floor_char_boundary(most));
    shown
}

/// Start and end of a text that is longer than `room`, with what is missing said in between.
fn without_middle(text: &str, room: usize) -> String {
    if text.len() <= room {
        return text.to_owned();
    }
    let Some(half) = room.checked_sub(MOST_GAP).map(|left| left / 2) else {
        return text[..text.floor_char_boundary(room)].to_owned();
    };
    let head = &text[..text.floor_char_boundary(half)];
    let tail = &text[text.ceil_char_boundary(text.len() - half)..];
    // Whole lines read better than broken ones, where they do not cost much.
    let head = match head.rfind('\n') {
        Some(end) if end >= half / 2 => &head[..end],
        _ => head,
    };
    let tail = match tail.find('\n') {
        Some(end) if end <= half / 2 => &tail[end + 1..],
        _ => tail,
    };
    let missing = text.len() - head.len() - tail.len();
    format!("{head}\n… {missing} bytes left out …\n{tail}")
}
