//! How much of an answer is kept.

use serde_json::Value;

use crate::model::{Broken, MAX_ANSWER};

/// What a value costs beside its bytes: it is in a tree, or in a list.
const VALUE: usize = 32;

/// Counts what is kept of one answer.
#[derive(Debug, Default)]
pub struct Budget {
    kept: usize,
}

impl Budget {
    /// So many bytes more.
    ///
    /// # Errors
    ///
    /// When that is too many.
    pub fn take(&mut self, bytes: usize) -> Result<(), Broken> {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept > MAX_ANSWER {
            return Err(Broken::TooLarge(MAX_ANSWER));
        }
        Ok(())
    }

    /// So many bytes are not kept any more.
    pub fn give(&mut self, bytes: usize) {
        self.kept = self.kept.saturating_sub(bytes);
    }
}

/// What a value costs. What was read is not nested deeper than a reader goes, so this does not either.
pub fn weight(value: &Value) -> usize {
    VALUE
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + VALUE + weight(value)).sum(),
        }
}
