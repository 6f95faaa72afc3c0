//! Durations as Go and Kubernetes write them: `90s`, `1h30m`, `1.5h`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration, stored as it was written. Deserialisation never fails; [`Self::get`] returns the value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationText(String);

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a span of time such as `90s`, `10m` or `1h30m`")]
pub struct InvalidDuration(String);

impl DurationText {
    /// Maximum number of characters.
    pub const MAX_CHARS: usize = 64;
    /// The syntax, as a regular expression for the schema. Nine digits per number are far from any overflow.
    pub const PATTERN: &'static str = r"^(0|([0-9]{1,9}(\.[0-9]{1,9})?(ns|us|µs|ms|s|m|h))+)$";

    /// Takes the text as it is.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of the duration.
    ///
    /// # Errors
    ///
    /// When the text does not match [`Self::PATTERN`].
    pub fn to_duration(&self) -> Result<Duration, InvalidDuration> {
        parse(&self.0).ok_or_else(|| InvalidDuration(self.0.chars().take(Self::MAX_CHARS).collect()))
    }
}

/// Maximum number of digits before or after the point.
const MAX_DIGITS: usize = 9;

fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() || text.chars().count() > DurationText::MAX_CHARS {
        return None;
    }
    let mut nanoseconds: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (whole, after) = split_digits(rest)?;
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => split_digits(after)?,
            None => ("", after),
        };
        let (unit, after) = split_unit(after)?;
        nanoseconds += whole.parse::<u128>().ok()? * unit;
        if !fraction.is_empty() {
            let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
            nanoseconds += fraction.parse::<u128>().ok()? * unit / scale;
        }
        rest = after;
    }
    let seconds = u64::try_from(nanoseconds / 1_000_000_000).ok()?;
    let rest = u32::try_from(nanoseconds % 1_000_000_000).ok()?;
    Some(Duration::new(seconds, rest))
}

/// Splits one to [`DIGITS`] digits from the rest.
fn split_digits(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (1..=MAX_DIGITS).contains(&end).then(|| text.split_at(end))
}

/// A unit in nanoseconds, and the rest. Longer names come first, or `ms` would be parsed as `m`.
fn split_unit(text: &str) -> Option<(u128, &str)> {
    const UNITS: &[(&str, u128)] = &[
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    UNITS.iter().find_map(|(name, size)| Some((*size, text.strip_prefix(name)?)))
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<&str> for DurationText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "DurationText".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": Self::MAX_CHARS, "pattern": Self::PATTERN })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn meanings() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("90s", 90_000),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("1m0.5s", 60_500),
            ("250ms", 250),
            ("1500us", 1),
            ("1500µs", 1),
        ] {
            let meaning = DurationText::new(text).to_duration().map(|span| span.as_millis());
            assert_eq!(meaning, Ok(milliseconds), "{text}");
        }
        for text in ["", "10", "m", "-5m", "5 m", "1d", ".5s", "5.s", "1h30", "1234567890s", "٣s"] {
            assert_eq!(DurationText::new(text).to_duration(), Err(InvalidDuration(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn what_the_schema_takes_has_a_meaning(text in r"(0|([0-9.]{0,10}(ns|us|µs|ms|s|m|h|d)?){0,8})") {
            let taken = regex::Regex::new(DurationText::PATTERN)?.is_match(&text)
                && text.chars().count() <= DurationText::MAX_CHARS;
            prop_assert_eq!(DurationText::new(text).to_duration().is_ok(), taken);
        }
    }
}
