//! Parses hexadecimal digits of secrets, without leaving copies in memory.

use zeroize::Zeroizing;

/// Lower-case digits only, so that each value has exactly one form.
pub(crate) fn decode<const N: usize>(digits: &str) -> Option<Zeroizing<[u8; N]>> {
    if digits.len() != 2 * N {
        return None;
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = Zeroizing::new([0; N]);
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}
