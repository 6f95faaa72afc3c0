//! Durations as they are typed and printed.

use std::time::Duration;

/// A duration that was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationArgument(pub Duration);

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;

impl DurationArgument {
    /// Parses a number and a unit: `s`, `m`, `h`, `d` or `w`.
    pub fn parse(typed: &str) -> Result<Self, &'static str> {
        let wrong = "invalid duration\n  hint: write a number and a unit, such as 90s, 30m, 12h, 7d or 4w";
        let digits = typed.len().saturating_sub(1);
        let (number, unit) = typed.split_at_checked(digits).ok_or(wrong)?;
        if number.is_empty() || !number.bytes().all(|it| it.is_ascii_digit()) {
            return Err(wrong);
        }
        let seconds = match unit {
            "s" => 1,
            "m" => MINUTE,
            "h" => HOUR,
            "d" => DAY,
            "w" => WEEK,
            _ => return Err(wrong),
        };
        let number: u32 = number.parse().map_err(|_| "the duration is too long")?;
        Ok(Self(Duration::from_secs(u64::from(number) * seconds)))
    }
}

/// Formats a duration in one or two units: `850ms`, `12s`, `3m 20s`, `5h 2m`, `12d`.
pub fn format_duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let two = |large: u64, of: &str, small: u64, and: &str| match small {
        0 => format!("{large}{of}"),
        _ => format!("{large}{of} {small}{and}"),
    };
    match seconds {
        0 => format!("{milliseconds}ms"),
        1..=9 => format!("{}.{}s", seconds, milliseconds % 1000 / 100),
        10..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        HOUR..DAY => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        _ => format!("{}d", seconds / DAY),
    }
}

/// Formats an age in one unit: `12s`, `3m`, `5h`, `12d`.
pub fn format_age(milliseconds: u64) -> String {
    match milliseconds / 1000 {
        seconds @ 0..MINUTE => format!("{seconds}s"),
        seconds @ MINUTE..HOUR => format!("{}m", seconds / MINUTE),
        seconds @ HOUR..DAY => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (typed, seconds) in
            [("0s", 0), ("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 604_800), ("4w", 2_419_200)]
        {
            assert_eq!(DurationArgument::parse(typed), Ok(DurationArgument(Duration::from_secs(seconds))), "{typed}");
        }
        for typed in ["", "7", "d", "-1d", "+1d", "1.5h", "7 d", "7days", "99999999999d", "7é", "é"] {
            assert!(DurationArgument::parse(typed).is_err(), "{typed}");
        }
    }

    #[test]
    fn durations_are_formatted() {
        let cases = [
            (0, "0ms"),
            (850, "850ms"),
            (1_240, "1.2s"),
            (59_999, "59s"),
            (60_000, "1m"),
            (200_000, "3m 20s"),
            (18_120_000, "5h 2m"),
            (86_400_000 * 12 + 5, "12d"),
        ];
        for (milliseconds, expected) in cases {
            assert_eq!(format_duration(milliseconds), expected);
        }
        assert_eq!(
            [format_age(500), format_age(61_000), format_age(7_200_000), format_age(u64::MAX)],
            ["0s", "1m", "2h", "213503982334d"]
        );
    }
}
