//! Bounds of the spans of time that a run is given.

use std::time::Duration;

/// The shortest time that a run or a hook may be given: less is a mistake in the unit.
pub const MIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a run may be given.
pub const MAX_RUN_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time that a hook may be given.
pub const MAX_HOOK_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// What a run is given when nobody says.
pub const DEFAULT_RUN_TIMEOUT: &str = "10m";

/// A span of time in the largest units that give it exactly, as people write it: `1h30m`, `90s`, `1500ms`.
pub fn written(span: Duration) -> String {
    let seconds = span.as_secs();
    let nanoseconds = span.subsec_nanos();
    let mut text = String::new();
    for (unit, amount) in [("h", seconds / 3600), ("m", seconds / 60 % 60), ("s", seconds % 60)] {
        if amount != 0 {
            text.push_str(&format!("{amount}{unit}"));
        }
    }
    if nanoseconds != 0 {
        text.push_str(&format!("{nanoseconds}ns"));
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}
