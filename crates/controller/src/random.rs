//! Random bytes from the operating system.

use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

#[derive(Debug, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct RandomError(#[from] rustix::io::Errno);

/// Random bytes that are suitable for keys.
///
/// # Errors
///
/// When the operating system returns an error.
pub fn random_bytes<const N: usize>() -> Result<Zeroizing<[u8; N]>, RandomError> {
    let mut bytes = Zeroizing::new([0; N]);
    let mut filled = 0;
    while filled < N {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

pub fn to_hex(bytes: &[u8]) -> Zeroizing<String> {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    // Allocated at its full size: a string that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

/// A random duration between half of the given one and all of it, so that concurrent failures are not retried together.
pub fn with_jitter(duration: Duration) -> Duration {
    // Without randomness the whole duration: later is the safe side.
    let share = random_bytes::<1>().map_or(255, |bytes| bytes[0]);
    duration.mul_f64(0.5 + f64::from(share) / 510.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        assert_eq!(*to_hex(&[0, 1, 0xab, 0xff]), "0001abff");
    }

    #[test]
    fn jitter_stays_within_half_and_whole_and_differs() {
        let whole = Duration::from_secs(8);
        let drawn: Vec<_> = (0..64).map(|_| with_jitter(whole)).collect();
        assert!(drawn.iter().all(|value| *value >= whole / 2 && *value <= whole));
        assert!(drawn.iter().any(|value| *value != drawn[0]));
    }
}
