//! `exec-result-{id}.json`: the result of a request.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::{Fields, FieldsError};
use super::request::{MAX_DEPTH, MAX_META_BYTES};
use crate::id::RequestId;
use crate::volume::FileKind;

/// Limit for a result file, in bytes. Two outputs of 51,200 bytes fit even when every byte needs an escape.
pub const MAX_RESULT_BYTES: usize = 1 << 20;

/// A result: the five documented fields, and our own `_meta`.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecResult {
    /// The id of the request.
    pub id: RequestId,
    /// The command's exit code.
    pub exit_code: i64,
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error.
    pub stderr: String,
    /// Whether it was killed because its time was up.
    pub timed_out: bool,
    /// `_meta`, which only our executors write. From others it is absent, or ignored when it is malformed.
    pub meta: Option<ResultMeta>,
}

/// What our executors add to a result. Like everything in the file, it is an unverified claim of its author.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultMeta {
    /// Which outputs were truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncated>,
    /// Duration of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_millis: Option<u64>,
    /// The isolation that was live, as the executor reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Value>,
    /// Why it did not simply run: `refused`, `ambiguous`, `cancelled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

/// Which outputs were truncated at their limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncated {
    /// Whether standard output was truncated.
    #[serde(default)]
    pub stdout: bool,
    /// Whether standard error was truncated.
    #[serde(default)]
    pub stderr: bool,
}

/// Why a result is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// The file is not a complete JSON object.
    #[error("the result is not a JSON object: {0}")]
    NotJson(String),
    /// Brackets are nested too deeply.
    #[error("the result is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A known field is there more than once.
    #[error("the field `{0}` of the result is there more than once")]
    Duplicate(&'static str),
    /// A required field is missing.
    #[error("the field `{0}` of the result is missing")]
    Missing(&'static str),
    /// A field has the wrong type.
    #[error("the field `{field}` of the result must be {expected}")]
    WrongType {
        /// The field's name.
        field: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// The result is for another request.
    #[error("the field `id` of the result does not equal the id of the request")]
    OtherId,
    /// The file is too large.
    #[error("the result has {bytes} bytes, and may have {MAX_RESULT_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// The entry is a link, a directory, a FIFO or the like.
    #[error("the result must be a regular file, and is {0}")]
    NotAFile(FileKind),
    /// The file has several names.
    #[error("the result has {links} names (hard links), and may have 1")]
    HardLinked {
        /// Number of its names.
        links: u64,
    },
    /// The file cannot be read.
    #[error("the result cannot be read: {0}")]
    Unreadable(String),
}

impl From<FieldsError> for ResultError {
    fn from(damage: FieldsError) -> Self {
        match damage {
            FieldsError::EndsEarly => Self::NotJson("it ends early".to_owned()),
            FieldsError::TooDeep => Self::TooDeep,
            FieldsError::NotJson(what) => Self::NotJson(what),
            FieldsError::NotAnObject => Self::NotJson("it is of another type".to_owned()),
            FieldsError::Duplicate(field) => Self::Duplicate(field),
        }
    }
}

/// The exit code of a result that comes from the executor and not from a command, as in `timeout(1)`.
pub const EXECUTOR_FAILED: i64 = 125;

/// Exit codes of a command that was killed: by `timeout(1)`, by SIGKILL, by SIGTERM.
const KILLED_EXIT_CODES: [i64; 3] = [124, 137, 143];

const ID: &str = "id";
const EXIT_CODE: &str = "exitCode";
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";
const TIMED_OUT: &str = "timedOut";
const META: &str = "_meta";
const NAMES: &[&str; 6] = &[ID, EXIT_CODE, STDOUT, STDERR, TIMED_OUT, META];

impl ExecResult {
    /// Parses the result of the request `id`, written by an untrusted executor.
    ///
    /// A missing `timedOut` is `false`: some executors omit it. Unknown fields are ignored.
    ///
    /// # Errors
    /// The first error.
    pub fn parse(bytes: &[u8], id: &RequestId) -> Result<Self, ResultError> {
        if bytes.len() > MAX_RESULT_BYTES {
            let bytes = bytes.len() as u64;
            return Err(ResultError::TooLarge { bytes });
        }
        let fields = Fields::split(bytes, NAMES, MAX_DEPTH)?;
        if required::<String>(&fields, ID, "a string")? != id.as_str() {
            return Err(ResultError::OtherId);
        }
        let timed_out = fields
            .get(TIMED_OUT)
            .map_err(|()| ResultError::WrongType { field: TIMED_OUT, expected: "true or false" })?;
        let small = fields.raw(META).is_some_and(|text| text.len() <= MAX_META_BYTES);
        Ok(Self {
            id: id.clone(),
            exit_code: required(&fields, EXIT_CODE, "a whole number")?,
            stdout: required(&fields, STDOUT, "a string")?,
            stderr: required(&fields, STDERR, "a string")?,
            timed_out: timed_out.unwrap_or(false),
            meta: if small { fields.get(META).ok().flatten() } else { None },
        })
    }

    /// A result for a request that was not run, or not completed. `outcome` is a word for programs, `message` a
    /// sentence for people, written to standard error.
    #[must_use]
    pub fn failed(id: RequestId, outcome: &str, message: impl Into<String>) -> Self {
        Self {
            id,
            exit_code: EXECUTOR_FAILED,
            stdout: String::new(),
            stderr: message.into(),
            timed_out: false,
            meta: Some(ResultMeta { outcome: Some(outcome.to_owned()), ..ResultMeta::default() }),
        }
    }

    /// The JSON of this result, with the fields in their documented order.
    ///
    /// # Errors
    /// [`ResultError::TooLarge`]: every reader would refuse it.
    pub fn to_json(&self) -> Result<Vec<u8>, ResultError> {
        let wire = Wire {
            id: self.id.as_str(),
            exit_code: self.exit_code,
            stdout: &self.stdout,
            stderr: &self.stderr,
            timed_out: self.timed_out,
            meta: self.meta.as_ref(),
        };
        let json = serde_json::to_vec(&wire).map_err(|error| ResultError::NotJson(error.to_string()))?;
        if json.len() > MAX_RESULT_BYTES {
            let bytes = json.len() as u64;
            return Err(ResultError::TooLarge { bytes });
        }
        Ok(json)
    }

    /// Whether the command timed out, for a caller that waited for `elapsed`.
    ///
    /// Other executors may not report it when the command, and not `timeout(1)`, chose the exit code.
    #[must_use]
    pub fn timed_out_after(&self, elapsed: Duration, timeout: Duration) -> bool {
        self.timed_out || KILLED_EXIT_CODES.contains(&self.exit_code) && elapsed >= timeout
    }
}

fn required<'a, T: Deserialize<'a>>(
    fields: &Fields<'a, 6>,
    field: &'static str,
    expected: &'static str,
) -> Result<T, ResultError> {
    fields.get(field).map_err(|()| ResultError::WrongType { field, expected })?.ok_or(ResultError::Missing(field))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    id: &'a str,
    exit_code: i64,
    stdout: &'a str,
    stderr: &'a str,
    timed_out: bool,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a ResultMeta>,
}
