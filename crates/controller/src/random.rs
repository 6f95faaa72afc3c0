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
    fn jitter_stays_within_half_and_whole_and_differs() {
        let whole = Duration::from_secs(8);
        let drawn: Vec<_> = (0..64).map(|_| with_jitter(whole)).collect();
        assert!(drawn.iter().all(|value| *value >= whole / 2 && *value <= whole));
        assert!(drawn.iter().any(|value| *value != drawn[0]));
    }
}
