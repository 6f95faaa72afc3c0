//! Hexadecimal digits of secrets, without leaving copies in memory.

use zeroize::Zeroizing;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

pub(super) fn encode(bytes: &[u8]) -> Zeroizing<String> {
    // Allocated at its full size: a string that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
    text
}

/// Lower-case digits only, so that each value has exactly one form.
pub(super) fn decode<const N: usize>(digits: &str) -> Option<Zeroizing<[u8; N]>> {
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
