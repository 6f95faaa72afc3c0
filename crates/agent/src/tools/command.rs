//! Renders the output of a command for the model.
//!
//! The start and the end of an output are the most informative, so a long one loses its middle, with a note.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod terminal;
#[cfg(test)]
mod tests;

use terminal::strip_terminal_codes;

#[derive(Debug)]
pub struct CommandOutput<'c> {
    pub exit_code: i32,
    pub stdout: &'c str,
    pub stderr: &'c str,
    pub timed_out: bool,
    /// Whether the sidecar cut either stream.
    pub truncated: bool,
}

const STDERR: &str = "STDERR: ";

const CUT: &str =
    "(output cut: narrow the command, or write its output to a file below /workspace and read it in pieces)";

const TRUNCATED: &str = "(the command wrote more than its skill passes on; narrow it, or write its output to a file)";

/// Most bytes of the note in place of a gap, with the longest number.
const MAX_GAP_NOTE: usize = 48;

/// `1 / STDERR_SHARE` of the room is guaranteed to stderr when both streams are long.
const STDERR_SHARE: usize = 3;

pub fn render(command: &CommandOutput<'_>, max_bytes: usize) -> String {
    let stdout = strip_terminal_codes(command.stdout);
    let stderr = strip_terminal_codes(command.stderr);
    let (stdout, stderr) = (stdout.trim_end(), stderr.trim_end());
    // Leading blank lines are dropped; leading spaces may align a table.
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

    let overhead: usize = notes.iter().map(|note| note.len() + 1).sum::<usize>() + STDERR.len() + 1;
    let mut room = max_bytes.saturating_sub(overhead);
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
    let mut render = lines.join("\n");
    // Cuts only if not even the notes fit.
    render.truncate(render.floor_char_boundary(max_bytes));
    render
}

/// The start and the end of a text that exceeds `room`, with a note in between.
fn without_middle(text: &str, room: usize) -> String {
    if text.len() <= room {
        return text.to_owned();
    }
    let Some(half) = room.checked_sub(MAX_GAP_NOTE).map(|left| left / 2) else {
        return text[..text.floor_char_boundary(room)].to_owned();
    };
    let head = &text[..text.floor_char_boundary(half)];
    let tail = &text[text.ceil_char_boundary(text.len() - half)..];
    // Prefer whole lines where they cost little.
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
