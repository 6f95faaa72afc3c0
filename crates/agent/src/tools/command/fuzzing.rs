//! The body of a fuzz target: what programs write.

use sympozium_api::text::is_prose;

use super::terminal::strip_terminal_codes;
use super::{CommandOutput, render};

/// The limit in the first two bytes, then both streams with a NUL between them: the text is within the limit and does
/// not control a terminal, and a stream that fits is complete.
pub fn command_output(data: &[u8]) {
    let Some((room, streams)) = data.split_first_chunk::<2>() else {
        return;
    };
    let max_bytes = usize::from(u16::from_le_bytes(*room));
    let streams = String::from_utf8_lossy(streams);
    let (stdout, stderr) = streams.split_once('\0').unwrap_or((&streams, ""));
    let rendered = render(&CommandOutput { exit_code: 1, stdout, stderr, timed_out: true, truncated: true }, max_bytes);
    assert!(rendered.len() <= max_bytes, "{} bytes of {max_bytes}", rendered.len());
    assert!(rendered.chars().all(is_prose), "{rendered:?}");
    let clean = strip_terminal_codes(stdout);
    assert_eq!(strip_terminal_codes(&clean), clean, "nothing is left to take out");
    let whole = clean.trim_end().trim_start_matches('\n');
    if clean.len() + strip_terminal_codes(stderr).len() + 400 < max_bytes {
        assert!(rendered.starts_with(whole), "{rendered:?}");
    }
}
