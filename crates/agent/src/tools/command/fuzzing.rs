//! The body of a fuzz target: what programs write.

use sympozium_api::text::is_prose;

use super::terminal::plain;
use super::{Ended, shown};

/// The room in the first two bytes, then both streams with a NUL between them: what is told is as short as was asked, and
/// steers no terminal; a stream that fits is told whole.
pub fn command_output(data: &[u8]) {
    let Some((room, streams)) = data.split_first_chunk::<2>() else {
        return;
    };
    let most = usize::from(u16::from_le_bytes(*room));
    let streams = String::from_utf8_lossy(streams);
    let (stdout, stderr) = streams.split_once('\0').unwrap_or((&streams, ""));
    let told = shown(&Ended { exit_code: 1, stdout, stderr, timed_out: true, truncated: true }, most);
    assert!(told.len() <= most, "{} bytes of {most}", told.len());
    assert!(told.chars().all(is_prose), "{told:?}");
    let clean = plain(stdout);
    assert_eq!(plain(&clean), clean, "nothing is left to take out");
    let whole = clean.trim_end().trim_start_matches('\n');
    if clean.len() + plain(stderr).len() + 400 < most {
        assert!(told.starts_with(whole), "{told:?}");
    }
}
