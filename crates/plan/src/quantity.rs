//! Kubernetes quantities of CPU and memory (`200m`, `256Mi`, `1.5e3`) as exact numbers.

use std::fmt;
use std::ops::Mul as _;

use sympozium_api::text::quote;

/// Maximum length of the text of a quantity.
pub const MAX_QUANTITY_BYTES: usize = 32;
/// The largest value of a quantity, as in Kubernetes: the largest signed 64-bit number.
pub const MAX_VALUE: u128 = i64::MAX as u128;

/// Precision: a quantity is counted in billionths.
const NANOS_PER_UNIT: u128 = 1_000_000_000;
/// The largest power of ten that can matter between a billionth and [`MAX_WHOLE`]. It stays far from overflow.
const MAX_EXPONENT: u32 = 28;

/// A quantity that is not negative, exact to a billionth. Smaller fractions are rounded up, as Kubernetes does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExactQuantity(u128);

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    /// The text does not have the syntax of a quantity.
    #[error("{} is not an amount such as `2`, `200m` or `256Mi`", quote(.0))]
    Malformed(String),
    /// The value is above [`MAX_WHOLE`].
    #[error("{} is more than any machine has", quote(.0))]
    TooLarge(String),
}

impl ExactQuantity {
    /// The quantity 0.
    pub const ZERO: Self = Self(0);
    /// The largest quantity; sums saturate here.
    pub const MAX: Self = Self(MAX_VALUE * NANOS_PER_UNIT);

    /// From a whole number of units, such as bytes.
    pub const fn from_units(number: u64) -> Self {
        Self(number as u128 * NANOS_PER_UNIT)
    }

    /// From thousandths of a unit, such as millicores.
    pub const fn from_millis(number: u64) -> Self {
        Self(number as u128 * (NANOS_PER_UNIT / 1_000))
    }

    /// The value in billionths, for comparisons.
    pub const fn as_nanos(self) -> u128 {
        self.0
    }

    /// Parses the text of a quantity.
    ///
    /// # Errors
    ///
    /// When the syntax is wrong, or the value is negative or too large.
    pub fn parse(text: &str) -> Result<Self, InvalidQuantity> {
        let form = || InvalidQuantity::Malformed(text.to_owned());
        if text.len() > MAX_QUANTITY_BYTES {
            return Err(form());
        }
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (digits, decimals) = split_decimal(number).ok_or_else(form)?;
        let suffix = Suffix::parse(suffix).ok_or_else(form)?;
        suffix
            .scale(digits, decimals)
            .filter(|amount| *amount <= Self::MAX)
            .ok_or_else(|| InvalidQuantity::TooLarge(text.to_owned()))
    }

    /// Saturating subtraction: zero where `other` is larger.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Saturating addition, at most [`Self::MAX`].
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0)).min(Self::MAX)
    }
}

/// Splits a decimal number into its digits without the point, and the number of digits after the point.
fn split_decimal(number: &str) -> Option<(u128, u32)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let decimals = u32::try_from(fraction.len()).ok()?;
    // At most 32 digits, far below the capacity of 128 bits.
    let digits = [whole, fraction].concat().parse().ok()?;
    Some((digits, decimals))
}

/// The factor that a suffix stands for: a power of 1024 or a power of ten.
enum Suffix {
    Binary(u32),
    Decimal(i32),
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        let suffix = match text {
            "" => Self::Decimal(0),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(1),
            "Mi" => Self::Binary(2),
            "Gi" => Self::Binary(3),
            "Ti" => Self::Binary(4),
            "Pi" => Self::Binary(5),
            "Ei" => Self::Binary(6),
            _ => Self::Decimal(parse_exponent(text.strip_prefix(['e', 'E'])?)?),
        };
        Some(suffix)
    }

    /// Multiplies a decimal number (its digits, and how many of them follow the point) by this factor. `None` on
    /// overflow.
    fn scale(&self, digits: u128, decimals: u32) -> Option<ExactQuantity> {
        let decimals = i64::from(decimals);
        let (factor, power) = match self {
            Self::Binary(step) => (1024_u128.pow(*step), 9 - decimals),
            Self::Decimal(exponent) => (1, 9 - decimals + i64::from(*exponent)),
        };
        if digits == 0 {
            return Some(ExactQuantity::ZERO);
        }
        let product = digits.checked_mul(factor)?;
        let power_of = |power: i64| u32::try_from(power).ok().filter(|power| *power <= MAX_EXPONENT);
        if power >= 0 {
            return Some(ExactQuantity(product.checked_mul(10_u128.pow(power_of(power)?))?));
        }
        // Round up, because half a billionth is still more than nothing. Below the smallest known power, the result is
        // 1.
        match power_of(-power) {
            Some(power) => Some(ExactQuantity(product.div_ceil(10_u128.pow(power)))),
            None => divide_large(product, -power),
        }
    }
}

/// Divides by a power of ten beyond [`MAX_EXPONENT`], in two steps.
fn divide_large(product: u128, power: i64) -> Option<ExactQuantity> {
    let first = product.div_ceil(10_u128.pow(MAX_EXPONENT));
    let rest = u32::try_from(power).ok()?.checked_sub(MAX_EXPONENT)?;
    let rest = 10_u128.checked_pow(rest).unwrap_or(u128::MAX);
    Some(ExactQuantity(first.div_ceil(rest)))
}

/// Parses a signed exponent. Values far out of range are clamped to a value that is still out of range.
fn parse_exponent(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse::<i32>().unwrap_or(1_000_000).min(1_000_000);
    Some(size.mul(if text.starts_with('-') { -1 } else { 1 }))
}

impl fmt::Display for ExactQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (suffix, size) in [("n", 1), ("u", 1_000), ("m", 1_000_000)] {
            if !self.0.is_multiple_of(size * 1_000) {
                return write!(f, "{}{suffix}", self.0 / size);
            }
        }
        let whole = self.0 / NANOS_PER_UNIT;
        // The shortest text that is exact: `1T` and not `976562500Ki`.
        let shortest = UNITS
            .iter()
            .filter(|(_, size)| whole != 0 && whole.is_multiple_of(*size))
            .map(|(suffix, size)| format!("{}{suffix}", whole / size))
            .min_by_key(String::len);
        f.write_str(&shortest.unwrap_or_else(|| whole.to_string()))
    }
}

/// Suffixes of whole quantities and their factors. Among texts of the same length, the first suffix is printed.
const UNITS: &[(&str, u128)] = &[
    ("", 1),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meaning(text: &str) -> String {
        match ExactQuantity::parse(text) {
            Ok(amount) => amount.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn meanings() {
        for (text, expected) in [
            ("0", "0"),
            ("2", "2"),
            ("2.", "2"),
            (".5", "500m"),
            ("0.5", "500m"),
            ("200m", "200m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1500u", "1500u"),
            ("3n", "3n"),
            ("0.5n", "1n"),
            ("1e-100", "1n"),
            ("1e-30", "1n"),
            ("0e999999999999", "0"),
            ("128Mi", "128Mi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.1Ki", "102400m"),
            ("1k", "1k"),
            ("1M", "1M"),
            ("1G", "1G"),
            ("1T", "1T"),
            ("1P", "1P"),
            ("9E", "9E"),
            ("1e3", "1k"),
            ("1E3", "1k"),
            ("1E-3", "1m"),
            ("1.5e+3", "1500"),
            ("7Ei", "7Ei"),
            ("9223372036854775807", "9223372036854775807"),
        ] {
            assert_eq!(meaning(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_amount() {
        for text in [
            "", ".", "-1", "+1", "1.2.3", "1 Gi", "Gi", "1gi", "1KI", "1ki", "1mi", "1K", "0x10", "1e", "1e+", "1e1.5",
            "1_000", "٣", "1Gi ", "NaN", "inf",
        ] {
            assert_eq!(ExactQuantity::parse(text), Err(InvalidQuantity::Malformed(text.into())), "{text}");
        }
        for text in ["8Ei", "10E", "9223372036854775808", "1e19", "1e999999999999", "99999999999999999999999999999999"]
        {
            assert_eq!(ExactQuantity::parse(text), Err(InvalidQuantity::TooLarge(text.into())), "{text}");
        }
        let long = "1".repeat(MAX_QUANTITY_BYTES + 1);
        assert_eq!(ExactQuantity::parse(&long), Err(InvalidQuantity::Malformed(long)));
    }

    #[test]
    fn sums_stop_at_the_largest() {
        let one = ExactQuantity::parse("1").expect("an amount");
        assert_eq!(one.saturating_add(one).to_string(), "2");
        assert_eq!(ExactQuantity::MAX.saturating_add(one), ExactQuantity::MAX);
    }

    proptest! {
        #[test]
        fn printed_amounts_read_back(parts in 0..=ExactQuantity::MAX.0) {
            let amount = ExactQuantity(parts);
            prop_assert_eq!(ExactQuantity::parse(&amount.to_string()), Ok(amount));
        }

        #[test]
        fn any_text_is_read_or_refused(text in prop_oneof!["[0-9.]{0,12}([KMGTPEkmun]i?|[eE][+-]?[0-9]{0,8})?", any::<String>()]) {
            if let Ok(amount) = ExactQuantity::parse(&text) {
                prop_assert_eq!(ExactQuantity::parse(&amount.to_string()), Ok(amount));
            }
        }

        #[test]
        fn order_is_the_order_of_numbers(left in 0_u64..1 << 40, right in 0_u64..1 << 40) {
            let amount = |number: u64| ExactQuantity::parse(&format!("{number}u"));
            prop_assert_eq!(amount(left)?.cmp(&amount(right)?), left.cmp(&right));
            prop_assert_eq!(amount(left)?.saturating_add(amount(right)?), amount(left + right)?);
        }
    }
}
