//! Timestamps.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// The current time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX)
}

/// Converts from milliseconds since 1970. A value that is out of range becomes the epoch.
pub fn to_timestamp(at_ms: u64) -> Timestamp {
    let at = i64::try_from(at_ms).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    at.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Formats milliseconds since 1970 as RFC 3339, UTC, with milliseconds.
pub fn format_timestamp(at_ms: u64) -> String {
    format!("{:.3}", to_timestamp(at_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_formatted_with_milliseconds() {
        assert_eq!(format_timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format_timestamp(1_794_836_641_042), "2026-11-16T13:44:01.042Z");
        assert_eq!(format_timestamp(u64::MAX), "1970-01-01T00:00:00.000Z");
    }
}
