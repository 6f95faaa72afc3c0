//! `exec-request-{id}.json`: a request to run one command.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};
use sympozium_api::digest::{CanonicalJsonError, to_canonical_json};

use super::fields::{Fields, FieldsError};
use super::quote::shell_word;
use crate::id::{IdError, RequestId};
use crate::volume::FileKind;

/// Limit for a request file, in bytes.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Limit for `command`, an argument or a shell line, in bytes: the kernel's limit for one argument of a program
/// (`MAX_ARG_STRLEN`), without its terminating NUL.
pub const MAX_WORD_BYTES: usize = 128 * 1024 - 1;
/// Limit for the entries of `args` and of `argv`.
pub const MAX_ARGUMENTS: usize = 4096;
/// Limit for `workDir`, in bytes: the kernel's `PATH_MAX`, without its terminating NUL.
pub const MAX_WORK_DIR_BYTES: usize = 4095;
/// Limit for `_meta`, in bytes of the file.
pub const MAX_META_BYTES: usize = 16 * 1024;
/// Limit for the nesting depth of a message.
pub const MAX_DEPTH: usize = 32;
/// The timeout of a request that has none, or one below a second.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest timeout, unless the executor is configured otherwise.
pub const DEFAULT_MAX_TIMEOUT: Duration = Duration::from_secs(120);

/// A request, with every field as it was sent and within its limit.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecRequest {
    /// The id, which is also in the file's name.
    pub id: RequestId,
    /// The shell command. May be empty, if there is `argv`.
    pub command: String,
    /// Further words for `command`; see [`shell_line`](Self::shell_line).
    pub args: Vec<String>,
    /// The working directory.
    pub work_dir: Option<String>,
    /// Timeout in seconds, as sent; see [`effective_timeout`](Self::effective_timeout).
    pub timeout: Option<i64>,
    /// The pack that is addressed, as sent; see [`targets`](Self::targets).
    pub target: Option<String>,
    /// When not empty: the program and its arguments, to be run without a shell, instead of `command`.
    pub argv: Vec<String>,
    /// Standard input of the command.
    pub stdin: Option<String>,
    /// Additional data of the requester, such as the ids of a trace.
    pub meta: Option<Map<String, Value>>,
}

/// Why a request is not run. The messages name the field and the limit, because the requester reads them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The file ends before its JSON does.
    #[error("the request ends early: its JSON is not complete")]
    EndsEarly,
    /// The file is not JSON.
    #[error("the request is not JSON: {0}")]
    NotJson(String),
    /// The JSON is not an object.
    #[error("the request must be a JSON object")]
    NotAnObject,
    /// Brackets are nested too deeply.
    #[error("the request is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A known field is there more than once, and parsers would disagree about which one counts.
    #[error("the field `{0}` is there more than once")]
    Duplicate(&'static str),
    /// A required field is missing.
    #[error("the field `{0}` is missing")]
    Missing(&'static str),
    /// A field has the wrong type.
    #[error("the field `{field}` must be {expected}")]
    WrongType {
        /// The field's name.
        field: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// A field, or one entry of it, is too long.
    #[error("the field `{field}` has {bytes} bytes, and may have {limit}")]
    TooLong {
        /// The field's name.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A list has too many entries.
    #[error("the field `{field}` has more than {limit} entries")]
    TooMany {
        /// The field's name.
        field: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A NUL cannot be part of an argument or of a path.
    #[error("the field `{0}` holds a NUL character")]
    Nul(&'static str),
    /// The id in the file is malformed.
    #[error("the field `id` is not usable: {0}")]
    Id(#[from] IdError),
    /// The id in the file differs from the id in its name.
    #[error("the field `id` does not equal the id in the file's name")]
    OtherId,
    /// The file is too large.
    #[error("the request has {bytes} bytes, and may have {MAX_REQUEST_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// The entry is a link, a directory, a FIFO or the like.
    #[error("the request must be a regular file, and is {0}")]
    NotAFile(FileKind),
    /// The file has several names, so that it could be changed through another one, or belong to another program.
    #[error("the request has {links} names (hard links), and may have 1")]
    HardLinked {
        /// Number of its names.
        links: u64,
    },
    /// The file cannot be read.
    #[error("the request cannot be read: {0}")]
    Unreadable(String),
}

impl RequestError {
    /// Whether the file may just be incomplete, so that a later read may succeed.
    #[must_use]
    pub fn may_be_incomplete(&self) -> bool {
        matches!(self, Self::EndsEarly | Self::HardLinked { .. })
    }
}

impl From<FieldsError> for RequestError {
    fn from(damage: FieldsError) -> Self {
        match damage {
            FieldsError::EndsEarly => Self::EndsEarly,
            FieldsError::TooDeep => Self::TooDeep,
            FieldsError::NotJson(what) => Self::NotJson(what),
            FieldsError::NotAnObject => Self::NotAnObject,
            FieldsError::Duplicate(field) => Self::Duplicate(field),
        }
    }
}

/// A file, as far as it can be parsed: the target is known even when the rest is invalid, because an invalid request
/// for another executor is for that one to refuse.
pub(crate) struct Draft {
    /// The target, if it can be read.
    pub(crate) target: Option<String>,
    /// The request, or why it is invalid.
    pub(crate) request: Result<ExecRequest, RequestError>,
}

const ID: &str = "id";
const COMMAND: &str = "command";
const ARGS: &str = "args";
const WORK_DIR: &str = "workDir";
const TIMEOUT: &str = "timeout";
const TARGET: &str = "target";
const ARGV: &str = "argv";
const STDIN: &str = "stdin";
const META: &str = "_meta";
const NAMES: &[&str; 9] = &[ID, COMMAND, ARGS, WORK_DIR, TIMEOUT, TARGET, ARGV, STDIN, META];

impl ExecRequest {
    /// A request for a shell command, with every other field absent.
    #[must_use]
    pub fn new(id: RequestId, command: impl Into<String>) -> Self {
        Self {
            id,
            command: command.into(),
            args: Vec::new(),
            work_dir: None,
            timeout: None,
            target: None,
            argv: Vec::new(),
            stdin: None,
            meta: None,
        }
    }

    /// Parses a request. `file_id` is the id in the file's name.
    ///
    /// Unknown fields are ignored and `null` counts as absent. Memory is bounded by the size of `bytes`.
    ///
    /// # Errors
    /// The first error; no part of such a request may be run.
    pub fn parse(bytes: &[u8], file_id: &RequestId) -> Result<Self, RequestError> {
        Self::parse_draft(bytes, file_id).request
    }

    pub(crate) fn parse_draft(bytes: &[u8], file_id: &RequestId) -> Draft {
        if bytes.len() > MAX_REQUEST_BYTES {
            let bytes = bytes.len() as u64;
            return Draft { target: None, request: Err(RequestError::TooLarge { bytes }) };
        }
        match Fields::split(bytes, NAMES, MAX_DEPTH) {
            Ok(fields) => {
                let target = fields.get::<String>(TARGET).ok().flatten();
                Draft { target, request: Self::from_fields(&fields, file_id) }
            }
            Err(damage) => Draft { target: None, request: Err(damage.into()) },
        }
    }

    fn from_fields(fields: &Fields<'_, 9>, file_id: &RequestId) -> Result<Self, RequestError> {
        let id = read_text(fields, ID)?.ok_or(RequestError::Missing(ID))?;
        if id != file_id.as_str() {
            RequestId::parse(&id)?;
            return Err(RequestError::OtherId);
        }
        let argv = read_words(fields, ARGV)?;
        let command = read_argument(fields, COMMAND, MAX_WORD_BYTES)?.unwrap_or_default();
        if command.is_empty() && argv.is_empty() {
            return Err(RequestError::Missing(COMMAND));
        }
        let timeout = fields.get::<i64>(TIMEOUT).map_err(|()| RequestError::WrongType {
            field: TIMEOUT,
            expected: "a whole number of seconds, without quotes or fraction",
        })?;
        let request = Self {
            id: file_id.clone(),
            command,
            args: read_words(fields, ARGS)?,
            work_dir: read_argument(fields, WORK_DIR, MAX_WORK_DIR_BYTES)?,
            timeout,
            target: read_text(fields, TARGET)?,
            argv,
            stdin: read_text(fields, STDIN)?,
            meta: read_meta(fields)?,
        };
        let line = request.shell_line().len();
        if line > MAX_WORD_BYTES {
            return Err(RequestError::TooLong { field: ARGS, bytes: line, limit: MAX_WORD_BYTES });
        }
        Ok(request)
    }

    /// The JSON of this request, which [`parse`](Self::parse) accepts.
    ///
    /// # Errors
    /// When an executor would refuse it.
    pub fn to_json(&self) -> Result<Vec<u8>, RequestError> {
        let wire = self.to_wire(self.meta.as_ref());
        let json = serde_json::to_vec(&wire).map_err(|error| RequestError::NotJson(error.to_string()))?;
        Self::parse(&json, &self.id)?;
        Ok(json)
    }

    /// The RFC 8785 form of this request with another `_meta`: the input of a MAC.
    pub(crate) fn to_canonical_json(&self, meta: Option<&Map<String, Value>>) -> Result<Vec<u8>, CanonicalJsonError> {
        to_canonical_json(&self.to_wire(meta))
    }

    fn to_wire<'a>(&'a self, meta: Option<&'a Map<String, Value>>) -> Wire<'a> {
        Wire {
            id: self.id.as_str(),
            command: &self.command,
            args: &self.args,
            work_dir: self.work_dir.as_deref(),
            timeout: self.timeout,
            target: self.target.as_deref(),
            argv: &self.argv,
            stdin: self.stdin.as_deref(),
            meta,
        }
    }

    /// The timeout of the command: the requested one, at most `max`. Without one, or with less than a second, it is
    /// [`DEFAULT_TIMEOUT`].
    #[must_use]
    pub fn effective_timeout(&self, max: Duration) -> Duration {
        let asked = match self.timeout.map(u64::try_from) {
            Some(Ok(seconds)) if seconds >= 1 => Duration::from_secs(seconds),
            _ => DEFAULT_TIMEOUT,
        };
        asked.min(max)
    }

    /// `command`, followed by each of `args` quoted as one word.
    ///
    /// Newlines at the end of `command` would separate it from its arguments. The shell executors lose them too, when
    /// they read the field into a variable.
    #[must_use]
    pub fn shell_line(&self) -> String {
        if self.args.is_empty() {
            return self.command.clone();
        }
        let mut line = self.command.trim_end_matches('\n').to_owned();
        for word in &self.args {
            line.push(' ');
            line.push_str(&shell_word(word));
        }
        line
    }

    /// Whether an executor of `pack` may take this request. Without a target every executor may, and an executor
    /// without a pack may take any request.
    #[must_use]
    pub fn targets(&self, pack: Option<&str>) -> bool {
        targets(self.target.as_deref(), pack)
    }
}

impl Draft {
    /// Like [`ExecRequest::targets`]. A file that cannot be parsed counts as addressed to all, so that it gets an
    /// answer.
    pub(crate) fn targets(&self, pack: Option<&str>) -> bool {
        targets(self.target.as_deref(), pack)
    }
}

fn targets(target: Option<&str>, pack: Option<&str>) -> bool {
    let target = normalise(target.unwrap_or_default());
    match pack {
        Some(pack) if !pack.is_empty() => target.is_empty() || target == normalise(pack),
        _ => true,
    }
}

/// A pack's name in the form in which it is compared: the output of `tr '[:upper:]' '[:lower:]' | tr -d '[:space:]'` in
/// the C locale. Only ASCII is changed, so that no look-alike of another alphabet becomes equal.
pub(crate) fn normalise(name: &str) -> String {
    // `char::is_ascii_whitespace` excludes the vertical tab, which `[:space:]` includes.
    let is_space = |letter: &char| matches!(letter, ' ' | '\t'..='\r');
    name.chars().filter(|letter| !is_space(letter)).map(|letter| letter.to_ascii_lowercase()).collect()
}

fn read_text(fields: &Fields<'_, 9>, field: &'static str) -> Result<Option<String>, RequestError> {
    let expected = "a string";
    fields.get(field).map_err(|()| RequestError::WrongType { field, expected })
}

/// A text that becomes part of a command line or of a path.
fn read_argument(fields: &Fields<'_, 9>, field: &'static str, limit: usize) -> Result<Option<String>, RequestError> {
    let text = read_text(fields, field)?;
    if let Some(text) = &text {
        check_argument(text, field, limit)?;
    }
    Ok(text)
}

fn check_argument(text: &str, field: &'static str, limit: usize) -> Result<(), RequestError> {
    if text.len() > limit {
        return Err(RequestError::TooLong { field, bytes: text.len(), limit });
    }
    if text.contains('\0') {
        return Err(RequestError::Nul(field));
    }
    Ok(())
}

fn read_words(fields: &Fields<'_, 9>, field: &'static str) -> Result<Vec<String>, RequestError> {
    let expected = "a list of strings";
    let words: Option<Words> = fields.get(field).map_err(|()| RequestError::WrongType { field, expected })?;
    let words = words.map(|words| words.0).unwrap_or_default();
    if words.len() > MAX_ARGUMENTS {
        return Err(RequestError::TooMany { field, limit: MAX_ARGUMENTS });
    }
    for word in &words {
        check_argument(word, field, MAX_WORD_BYTES)?;
    }
    Ok(words)
}

fn read_meta(fields: &Fields<'_, 9>) -> Result<Option<Map<String, Value>>, RequestError> {
    let bytes = fields.raw(META).map_or(0, str::len);
    if bytes > MAX_META_BYTES {
        return Err(RequestError::TooLong { field: META, bytes, limit: MAX_META_BYTES });
    }
    let expected = "an object";
    fields.get(META).map_err(|()| RequestError::WrongType { field: META, expected })
}

/// A list of strings that stops growing one entry beyond [`MAX_ARGUMENTS`]: a million empty strings take 24 times the
/// memory of their JSON.
struct Words(Vec<String>);

impl<'a> Deserialize<'a> for Words {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'a> Visitor<'a> for List {
            type Value = Words;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of strings")
            }

            fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while words.len() <= MAX_ARGUMENTS {
                    match list.next_element()? {
                        Some(word) => words.push(word),
                        None => return Ok(Words(words)),
                    }
                }
                while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Words(words))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    id: &'a str,
    command: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    args: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    work_dir: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    argv: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    stdin: Option<&'a str>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a Map<String, Value>>,
}
