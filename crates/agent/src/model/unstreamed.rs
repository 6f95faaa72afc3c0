//! Reads responses of servers that do not stream: one JSON object.

use serde_json::Value;

use super::{MAX_EVENT, ModelResponse, ResponseError, ResponseReader, json};

pub struct UnstreamedReader<F> {
    bytes: Vec<u8>,
    parse: F,
}

impl<F> UnstreamedReader<F> {
    pub fn new(parse: F) -> Self {
        Self { bytes: Vec::new(), parse }
    }
}

impl<F: FnOnce(Value) -> Result<ModelResponse, ResponseError> + Send> ResponseReader for UnstreamedReader<F> {
    fn read(&mut self, bytes: &[u8]) -> Result<(), ResponseError> {
        if self.bytes.len() + bytes.len() > MAX_EVENT {
            return Err(ResponseError::TooLarge(MAX_EVENT));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Known only at the end of the body.
    fn is_complete(&self) -> bool {
        false
    }

    fn text(&self) -> &str {
        ""
    }

    fn finish(self: Box<Self>) -> Result<ModelResponse, ResponseError> {
        let Self { bytes, parse } = *self;
        let value = json::parse(&bytes).map_err(|error| {
            if error.is_eof() { ResponseError::Truncated } else { ResponseError::Invalid(error.to_string()) }
        })?;
        drop(bytes);
        parse(value)
    }
}
