//! Limits how much of a response is kept.

use serde_json::Value;

use crate::model::{MAX_RESPONSE, ResponseError};

/// Overhead of a value in a tree or a list.
const VALUE_OVERHEAD: usize = 32;

/// Bytes of one response that are kept, up to [`MAX_RESPONSE`].
#[derive(Debug, Default)]
pub struct Budget {
    charged: usize,
}

impl Budget {
    pub fn charge(&mut self, bytes: usize) -> Result<(), ResponseError> {
        self.charged = self.charged.saturating_add(bytes);
        if self.charged > MAX_RESPONSE {
            return Err(ResponseError::TooLarge(MAX_RESPONSE));
        }
        Ok(())
    }

    pub fn refund(&mut self, bytes: usize) {
        self.charged = self.charged.saturating_sub(bytes);
    }
}

/// The depth is bounded by the parser.
pub fn memory_size(value: &Value) -> usize {
    VALUE_OVERHEAD
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(memory_size).sum(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| name.len() + VALUE_OVERHEAD + memory_size(value)).sum()
            }
        }
}
