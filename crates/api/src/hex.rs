//! Hexadecimal digits.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Encodes bytes as lower-case digits.
///
/// The text is allocated at its full size, because a text that grows leaves copies behind. If the bytes are secret, the
/// caller puts the result into a `Zeroizing`.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_in_lower_case_and_the_text_does_not_grow() {
        let text = encode(&[0, 1, 0xab, 0xff]);
        assert_eq!((text.as_str(), text.capacity()), ("0001abff", 8));
    }
}
