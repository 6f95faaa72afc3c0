//! The content of the files: [`ExecRequest`] and [`ExecResult`].

mod fields;
mod quote;
mod request;
mod result;
#[cfg(test)]
mod tests;

pub use quote::shell_word;
pub(crate) use request::Draft;
pub use request::{
    DEFAULT_MAX_TIMEOUT, DEFAULT_TIMEOUT, ExecRequest, MAX_ARGUMENTS, MAX_DEPTH, MAX_META_BYTES, MAX_REQUEST_BYTES,
    MAX_WORD_BYTES, MAX_WORK_DIR_BYTES, RequestError,
};
pub use result::{EXECUTOR_FAILED, ExecResult, MAX_RESULT_BYTES, ResultError, ResultMeta, Truncated};
