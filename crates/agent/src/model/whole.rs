//! Answers that come as one JSON object, of servers that do not stream.

use serde_json::Value;

use super::{Answer, Broken, MAX_EVENT, Reader, json};

/// Gathers an answer, and reads it when nothing more comes.
pub struct Whole<F> {
    bytes: Vec<u8>,
    of: F,
}

impl<F> Whole<F> {
    /// Before anything came. `of` makes an answer of the value.
    pub fn new(of: F) -> Self {
        Self { bytes: Vec::new(), of }
    }
}

impl<F: FnOnce(Value) -> Result<Answer, Broken> + Send> Reader for Whole<F> {
    fn read(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if self.bytes.len() + bytes.len() > MAX_EVENT {
            return Err(Broken::TooLarge(MAX_EVENT));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Only the end of the body tells.
    fn is_whole(&self) -> bool {
        false
    }

    fn text(&self) -> &str {
        ""
    }

    fn finish(self: Box<Self>) -> Result<Answer, Broken> {
        let Self { bytes, of } = *self;
        let value = json::read(&bytes).map_err(|error| match error.is_eof() {
            true => Broken::CutOff,
            false => Broken::Unreadable(error.to_string()),
        })?;
        drop(bytes);
        of(value)
    }
}
