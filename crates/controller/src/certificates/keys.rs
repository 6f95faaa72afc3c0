//! Rotation of the keys that sign gateway credentials.
//!
//! The id of a key is its creation time (`k` and seconds of Unix time). A new key is first appended, where it only
//! verifies: the gateway reads a changed Secret minutes later, and refuses unknown keys. An hour later it moves to the
//! front and signs. Keys with other ids were added by a person, who rotates them as well.

use std::time::Duration;

use jiff::Timestamp;
use sympozium_api::hex;
use sympozium_ipc::credential::{KEY_BYTES, KeyRing, KeyRingError, MAX_KEYS};
use zeroize::Zeroizing;

use crate::random::{RandomError, random_bytes};

/// Age at which a key gets a successor.
pub const ROTATE_AFTER: Duration = Duration::from_secs(30 * 86_400);
/// How long a new key only verifies before it signs.
pub const VERIFY_ONLY_PERIOD: Duration = Duration::from_secs(60 * 60);
/// How long after that its predecessor still verifies: longer than any credential is valid.
pub const OLD_KEY_RETENTION: Duration = Duration::from_secs(2 * 86_400);

/// The content of the Secret with one new key.
pub fn first_key(now: Timestamp) -> Result<Zeroizing<String>, RandomError> {
    new_key_line(now)
}

/// The content that replaces `text`, or `None` if no rotation is due.
///
/// # Errors
///
/// When `text` holds no valid keys.
pub fn rotate(
    text: &str,
    now: Timestamp,
    make: impl FnOnce(Timestamp) -> Result<Zeroizing<String>, RandomError>,
) -> Result<Option<Zeroizing<String>>, RotateError> {
    let ring = KeyRing::parse(text)?;
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let made: Vec<Option<Timestamp>> = ring.ids().map(creation_time).collect();
    let (Some(signing), Some(Some(signing_made))) = (lines.first(), made.first().copied()) else {
        return Ok(None);
    };
    let age = |made: Timestamp| now.duration_since(made).unsigned_abs();
    let is_past = |made: Timestamp| made <= now;
    let successor = made.iter().position(|candidate| candidate.is_some_and(|made| made > signing_made));

    let mut keep = Zeroizing::new(String::with_capacity(text.len() + 128));
    let mut add = |line: &str| {
        keep.push_str(line);
        keep.push('\n');
    };
    if let Some(at) = successor {
        let ready = made[at].is_some_and(|made| is_past(made) && age(made) >= VERIFY_ONLY_PERIOD);
        if !ready {
            return Ok(None);
        }
        add(lines[at]);
        for (_, line) in lines.iter().enumerate().filter(|(index, _)| *index != at) {
            add(line);
        }
        return Ok(Some(keep));
    }
    if is_past(signing_made) && age(signing_made) >= ROTATE_AFTER && lines.len() < MAX_KEYS {
        let new = make(now)?;
        for line in &lines {
            add(line);
        }
        add(new.trim_end());
        return Ok(Some(keep));
    }
    // No key is newer than the signing one: its predecessors are removed when no credential of theirs can be valid.
    let old = |index: usize| index > 0 && made[index].is_some();
    let superseded = is_past(signing_made) && age(signing_made) >= VERIFY_ONLY_PERIOD + OLD_KEY_RETENTION;
    if superseded && (0..lines.len()).any(old) {
        add(signing);
        for (index, line) in lines.iter().enumerate().skip(1) {
            if !old(index) {
                add(line);
            }
        }
        return Ok(Some(keep));
    }
    Ok(None)
}

#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    #[error(transparent)]
    Keys(#[from] KeyRingError),
    #[error(transparent)]
    Randomness(#[from] RandomError),
}

/// A new key, as a line of the Secret.
pub fn new_key_line(now: Timestamp) -> Result<Zeroizing<String>, RandomError> {
    let key = random_bytes::<KEY_BYTES>()?;
    let digits = Zeroizing::new(hex::encode(&*key));
    Ok(Zeroizing::new(format!("k{} {}\n", now.as_second(), *digits)))
}

fn creation_time(id: &str) -> Option<Timestamp> {
    let digits = id.strip_prefix('k')?;
    let plain = digits.len() >= 9 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then_some(())?;
    Timestamp::from_second(digits.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_790_000_000;
    const HOUR: i64 = 3_600;
    const DAY: i64 = 24 * HOUR;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(START + seconds).unwrap()
    }

    fn after(text: &str, seconds: i64) -> Option<String> {
        let rotated = rotate(text, at(seconds), new_key_line).unwrap();
        rotated.map(|text| text.to_string())
    }

    fn ids(text: &str) -> Vec<i64> {
        let ring = KeyRing::parse(text).unwrap();
        ring.ids().map(|id| id.strip_prefix('k').unwrap().parse::<i64>().unwrap() - START).collect()
    }

    #[test]
    fn a_successor_verifies_then_signs_then_is_alone() {
        let one = first_key(at(0)).unwrap().to_string();
        assert_eq!(after(&one, 0), None);
        assert_eq!(after(&one, 30 * DAY - 1), None);
        let two = after(&one, 30 * DAY).unwrap();
        assert_eq!(ids(&two), [0, 30 * DAY]);
        assert_eq!(after(&two, 30 * DAY + HOUR - 1), None);
        let turned = after(&two, 30 * DAY + HOUR).unwrap();
        assert_eq!(ids(&turned), [30 * DAY, 0]);
        assert_eq!(after(&turned, 32 * DAY + HOUR - 1), None);
        let alone = after(&turned, 32 * DAY + HOUR).unwrap();
        assert_eq!(ids(&alone), [30 * DAY]);
        assert_eq!(after(&alone, 32 * DAY + HOUR), None);
    }

    #[test]
    fn an_installation_that_slept_for_months_loses_no_step() {
        let one = first_key(at(0)).unwrap().to_string();
        let two = after(&one, 300 * DAY).unwrap();
        assert_eq!(ids(&two), [0, 300 * DAY]);
        let turned = after(&two, 400 * DAY).unwrap();
        assert_eq!(ids(&turned), [300 * DAY, 0]);
        // The signing key is old already: it gets a successor first.
        assert_eq!(ids(&after(&turned, 400 * DAY).unwrap()), [300 * DAY, 0, 400 * DAY]);
    }

    #[test]
    fn a_clock_that_went_back_changes_nothing() {
        let one = first_key(at(60 * DAY)).unwrap().to_string();
        assert_eq!(after(&one, 0), None);
    }

    #[test]
    fn keys_of_a_person_stay_and_what_is_no_key_is_an_error() {
        let theirs = format!("# mine\nmine {}\n", "0".repeat(64));
        assert_eq!(after(&theirs, 900 * DAY), None);
        assert!(rotate("damaged", at(0), new_key_line).is_err());
        let both = format!("{}spare {}\n", *first_key(at(0)).unwrap(), "1".repeat(64));
        let ring = KeyRing::parse(&after(&both, 30 * DAY).unwrap()).unwrap();
        let ids: Vec<_> = ring.ids().collect();
        assert_eq!(ids[1], "spare");
    }
}
