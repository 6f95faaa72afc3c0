//! Bounds of the timeouts of runs and hooks.

use std::time::Duration;

/// The shortest timeout of a run or a hook: less is a mistake in the unit.
pub const MIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest timeout of a run.
pub const MAX_RUN_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest timeout of a hook.
pub const MAX_HOOK_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// The timeout of a run that sets none.
pub const DEFAULT_RUN_TIMEOUT: &str = "10m";

/// Formats a duration in hours, minutes, seconds and nanoseconds, without those that are zero: `1h30m`, `1m30s`,
/// `1s500000000ns`.
pub fn format_duration(span: Duration) -> String {
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
