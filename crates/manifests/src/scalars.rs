//! Resolves plain scalars.
//!
//! We use the core schema of YAML 1.2. kubectl and helm use a Go library that keeps much of YAML 1.1, where `no` is
//! false and `012` is ten. Where the two differ, the user is warned.

use serde_json::Number;

/// A plain scalar, resolved.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Number(Number),
    /// `.inf` or `.nan`, which JSON cannot represent.
    NotFinite,
    /// The text itself.
    Text,
}

impl Scalar {
    /// Whether two values are the same to the API server: `8` and `8.0` are.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => one == other || one.as_f64() == other.as_f64(),
            _ => self == other,
        }
    }

    /// The value as JSON writes it, for messages.
    pub fn to_json_text(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::NotFinite => "a number that is not finite".to_owned(),
            Self::Text => "string".to_owned(),
        }
    }
}

/// The core schema of YAML 1.2 (section 10.3.2).
pub fn parse_core(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "true" | "True" | "TRUE" => return Scalar::Bool(true),
        "false" | "False" | "FALSE" => return Scalar::Bool(false),
        _ => {}
    }
    if !may_be_number(text) {
        return Scalar::Text;
    }
    if is_not_finite(text) {
        return Scalar::NotFinite;
    }
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return parse_digits(Sign::Plus, digits, radix);
        }
    }
    if is_decimal_integer(text) {
        let (sign, digits) = split_sign(text);
        return parse_digits(sign, digits, 10);
    }
    parse_float(text)
}

/// As `go.yaml.in/yaml/v2` resolves it, which kubectl and helm use.
///
/// Its timestamps need no case here: they stay text in JSON.
pub fn parse_kubectl(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
            return Scalar::Bool(false);
        }
        _ => {}
    }
    if !may_be_number(text) {
        return Scalar::Text;
    }
    if is_not_finite(text) {
        return Scalar::NotFinite;
    }
    if text.starts_with('.') {
        return if has_valid_separators(text) { parse_go_float(&text.replace('_', "")) } else { Scalar::Text };
    }
    let plain = text.replace('_', "");
    let (sign, unsigned) = split_sign(&plain);
    // As Go's ParseInt with base 0: the prefix decides, and a lone leading zero means octal.
    let (digits, radix) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&unsigned[2..], 16),
        [b'0', b'o' | b'O', ..] => (&unsigned[2..], 8),
        [b'0', b'b' | b'B', ..] => (&unsigned[2..], 2),
        [b'0', _, ..] => (&unsigned[1..], 8),
        _ => (unsigned, 10),
    };
    match parse_digits(sign, digits, radix) {
        // Its own parser of binary numbers accepts a sign behind the prefix.
        Scalar::Text if plain.starts_with("0b-") || plain.starts_with("0b+") => {
            let (sign, digits) = split_sign(&plain[2..]);
            parse_digits(sign, digits, 2)
        }
        Scalar::Text => parse_go_float(&plain),
        number => number,
    }
}

/// For Go, a number that is too large for a float is not a number.
fn parse_go_float(text: &str) -> Scalar {
    match parse_float(text) {
        Scalar::NotFinite => Scalar::Text,
        other => other,
    }
}

/// Whether every `_` has a digit on both sides.
fn has_valid_separators(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let mut underscores = text.match_indices('_');
    underscores.all(|(at, _)| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)))
}

/// A quick check that excludes most words.
fn may_be_number(text: &str) -> bool {
    matches!(text.as_bytes(), [b'0'..=b'9' | b'+' | b'-' | b'.', ..])
}

fn is_not_finite(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN")
}

#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Plus,
    Minus,
}

fn split_sign(text: &str) -> (Sign, &str) {
    match text.as_bytes() {
        [b'-', ..] => (Sign::Minus, &text[1..]),
        [b'+', ..] => (Sign::Plus, &text[1..]),
        _ => (Sign::Plus, text),
    }
}

fn is_decimal_integer(text: &str) -> bool {
    let (_, digits) = split_sign(text);
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

fn parse_digits(sign: Sign, digits: &str, radix: u32) -> Scalar {
    let fits = |character: char| character.is_digit(radix);
    if digits.is_empty() || !digits.chars().all(fits) {
        return Scalar::Text;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok();
    let number = match (sign, magnitude) {
        (Sign::Plus, Some(magnitude)) => Some(Number::from(magnitude)),
        (Sign::Minus, Some(magnitude)) => 0i64.checked_sub_unsigned(magnitude).map(Number::from),
        (_, None) => None,
    };
    match number {
        Some(number) => Scalar::Number(number),
        // Too large for an integer; only a decimal number can become a float.
        None if radix == 10 => parse_float(&format!("{}{digits}", if sign == Sign::Minus { "-" } else { "" })),
        None => Scalar::Text,
    }
}

/// `[-+]? ( . digits | digits ( . digits? )? ) ( [eE] [-+]? digits )?`, the same for both.
fn parse_float(text: &str) -> Scalar {
    let (_, unsigned) = split_sign(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let is_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some((whole, fraction)) => is_digits(whole) && is_digits(fraction) && mantissa.len() > 1,
        None => is_digits(mantissa) && !mantissa.is_empty(),
    };
    let exponent_fits = exponent.is_none_or(is_decimal_integer);
    if !mantissa_fits || !exponent_fits {
        return Scalar::Text;
    }
    match text.parse::<f64>() {
        Ok(value) => Number::from_f64(value).map_or(Scalar::NotFinite, Scalar::Number),
        Err(_) => Scalar::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: impl Into<Number>) -> Scalar {
        Scalar::Number(value.into())
    }

    fn real(value: f64) -> Scalar {
        Scalar::Number(Number::from_f64(value).unwrap())
    }

    #[test]
    fn both_schemas_agree_on_common_scalars() {
        for (text, expected) in [
            ("", Scalar::Null),
            ("~", Scalar::Null),
            ("null", Scalar::Null),
            ("true", Scalar::Bool(true)),
            ("False", Scalar::Bool(false)),
            ("0", number(0)),
            ("-0", number(0)),
            ("12", number(12)),
            ("+12", number(12)),
            ("-12", number(-12)),
            ("-9223372036854775808", number(i64::MIN)),
            ("18446744073709551615", number(u64::MAX)),
            ("18446744073709551616", real(18_446_744_073_709_551_616.0)),
            ("0x1F", number(31)),
            ("0o14", number(12)),
            ("1.5", real(1.5)),
            ("1.", real(1.0)),
            (".5", real(0.5)),
            ("1e3", real(1000.0)),
            ("-1.5E-2", real(-0.015)),
            (".inf", Scalar::NotFinite),
            ("-.Inf", Scalar::NotFinite),
            (".nan", Scalar::NotFinite),
            ("words", Scalar::Text),
            ("k8s-ops", Scalar::Text),
            ("500m", Scalar::Text),
            ("1Gi", Scalar::Text),
            ("1.2.3", Scalar::Text),
            ("2026-11-16", Scalar::Text),
            ("2026-11-16T00:00:00Z", Scalar::Text),
            ("10:30", Scalar::Text),
            (".", Scalar::Text),
            ("-", Scalar::Text),
            ("+", Scalar::Text),
            ("0x", Scalar::Text),
            ("1e", Scalar::Text),
            ("-.", Scalar::Text),
            ("nULL", Scalar::Text),
            ("._1", Scalar::Text),
            (".1_", Scalar::Text),
        ] {
            assert_eq!(parse_core(text), expected, "core: {text:?}");
            let other = parse_kubectl(text);
            assert!(other.is_equivalent(&expected), "kubectl: {text:?}: {other:?}");
        }
    }

    #[test]
    fn scalars_that_kubectl_reads_differently() {
        for (text, ours, theirs) in [
            ("yes", Scalar::Text, Scalar::Bool(true)),
            ("y", Scalar::Text, Scalar::Bool(true)),
            ("On", Scalar::Text, Scalar::Bool(true)),
            ("NO", Scalar::Text, Scalar::Bool(false)),
            ("n", Scalar::Text, Scalar::Bool(false)),
            ("off", Scalar::Text, Scalar::Bool(false)),
            ("012", number(12), number(10)),
            ("0755", number(755), number(493)),
            ("1_000", Scalar::Text, number(1000)),
            ("1_0.5", Scalar::Text, real(10.5)),
            ("0b11", Scalar::Text, number(3)),
            ("-0x10", Scalar::Text, number(-16)),
            ("0b-1", Scalar::Text, number(-1)),
            (".0_1", Scalar::Text, real(0.01)),
            ("1e999", Scalar::NotFinite, Scalar::Text),
        ] {
            assert_eq!(parse_core(text), ours, "core: {text:?}");
            assert_eq!(parse_kubectl(text), theirs, "kubectl: {text:?}");
            assert!(!ours.is_equivalent(&theirs));
        }
    }

    #[test]
    fn a_leading_zero_that_is_not_octal_is_the_same_number_in_both() {
        assert!(parse_core("08").is_equivalent(&parse_kubectl("08")));
        assert!(parse_core("-09.5").is_equivalent(&parse_kubectl("-09.5")));
    }
}
