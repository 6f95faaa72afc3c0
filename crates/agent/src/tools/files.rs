//! The file tools, which the agent acts itself: `read_file`, `write_file`, `edit_file`, `list_directory`.
//!
//! A model names paths, and other processes change the workspace meanwhile. So every path is made plain as text first,
//! belongs to one of the [`Roots`], and is opened beneath that root's descriptor by the kernel; nothing is ever opened by a
//! path that was joined together. What a tool answers is bounded by `most`, and says how to read on.

mod access;
mod apply;
mod broken;
mod edit;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
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
pub(crate) use roots::Place;
pub use roots::Roots;
pub use write::write_file;

pub(crate) use access::is_written;
pub(crate) use list::entries;
pub(crate) use path::shown;
pub(crate) use read::{Page, Wanted, exactly, page_of_bytes, read_page, regular_size};

use super::ToolError;

/// Most bytes of a file that is edited or written, before and after.
const MOST_WRITTEN: usize = 16 << 20;
/// Bytes at the start of a file that tell whether it is text.
const HEAD: usize = 8 << 10;
/// Most bytes of what serde says about arguments: it repeats what it was given.
const MOST_COMPLAINT: usize = 300;

/// The arguments of a tool as its own type. Fields that it does not know are for the bridge to refuse.
pub(crate) fn arguments<'a, T: Deserialize<'a>>(arguments: &'a Map<String, Value>) -> Result<T, ToolError> {
    T::deserialize(arguments).map_err(|error| {
        let complaint = error.to_string();
        let complaint = start(&complaint, MOST_COMPLAINT);
        ToolError(format!("the arguments do not fit: {complaint}"))
    })
}

/// A whole number, or none. JSON Schema takes `10.0` for an integer, and so some models write it.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Whole;
    impl<'de> de::Visitor<'de> for Whole {
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
            // Up to here every whole number has a float of its own.
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
    deserializer.deserialize_any(Whole)
}

/// The start of `text` in at most `most` bytes, ending between characters.
pub(crate) fn start(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
