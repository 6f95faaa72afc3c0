//! The native file tools: `read_file`, `write_file`, `edit_file`, `list_directory`.
//!
//! A model chooses paths, and other processes change the workspace meanwhile. So every path is normalized as text
//! first, belongs to one of the [`Roots`], and is opened beneath that root's descriptor by the kernel; joined paths are
//! never opened. A result is bounded by `max_bytes` and says how to read on.

mod access;
mod apply;
mod broken_tokens;
mod edit;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod io_errors;
mod list;
mod path;
mod read;
mod roots;
mod text;
mod write;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

pub use access::{Commands, WRITABLE};
pub use edit::edit_file;
pub use list::list_directory;
pub use read::read_file;
pub(crate) use roots::ResolvedPath;
pub use roots::Roots;
pub use write::write_file;

pub(crate) use access::is_writable_root;
pub(crate) use list::list_entries;
pub(crate) use path::printable_path;
pub(crate) use read::{FilePage, LineRange, page_from_bytes, read_exact, read_page, regular_size};

use super::ToolError;

const MAX_FILE: usize = 16 << 20;
/// Bytes that decide whether a file is text.
const HEAD: usize = 8 << 10;
/// serde repeats its input in errors.
const MAX_SERDE_ERROR: usize = 300;

/// Unknown fields are the bridge's to refuse.
pub(crate) fn parse_arguments<'a, T: Deserialize<'a>>(arguments: &'a Map<String, Value>) -> Result<T, ToolError> {
    T::deserialize(arguments).map_err(|error| {
        let reason = error.to_string();
        let reason = prefix(&reason, MAX_SERDE_ERROR);
        ToolError(format!("the arguments do not fit: {reason}"))
    })
}

/// A positive integer, or none. JSON Schema accepts `10.0` as an integer, and some models write it.
fn positive_integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct PositiveInteger;
    impl<'de> de::Visitor<'de> for PositiveInteger {
        type Value = Option<u64>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("a whole number from 1 on")
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
            if number == 0 {
                return Err(E::invalid_value(de::Unexpected::Unsigned(0), &self));
            }
            Ok(Some(number))
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
            // Above this, floats do not represent every integer.
            const EXACT: f64 = 9_007_199_254_740_992.0;
            if number.fract() != 0.0 || !(1.0..=EXACT).contains(&number) {
                return Err(E::invalid_value(de::Unexpected::Float(number), &self));
            }
            Ok(Some(number as u64))
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(PositiveInteger)
}

pub(crate) fn prefix(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}
