//! The environment of a command: what its container declares, without our own variables, plus what the request adds.
//!
//! Values never appear in an error: they may be secrets.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Limit for the variables of one request.
pub const MAX_REQUEST_VARIABLES: usize = 256;
/// Limit for the name of a request's variable, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Limit for one `NAME=VALUE`, in bytes: the kernel's `MAX_ARG_STRLEN` without the NUL (execve(2)).
pub const MAX_ENTRY_BYTES: usize = 128 * 1024 - 1;
/// Limit for all entries together, in bytes with their NULs. The kernel's limit for arguments and environment is a
/// quarter of the stack limit, 2 MiB by default; half of that is left to the arguments.
pub const MAX_TOTAL_BYTES: usize = 1024 * 1024;

/// The search path if the container declares none.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The only directory that a command may always write.
pub const DEFAULT_SCRATCH: &str = "/tmp";
/// The home directory of commands, created by the executor.
pub const HOME: &str = "/tmp/home";

/// Variables that tell programs where to put their own files, and their values: a declared value stays if it is below
/// [`DEFAULT_SCRATCH`] already, because any other place is read-only or shared.
pub const SCRATCH_VARIABLES: [(&str, &str); 4] = [
    ("HOME", HOME),
    ("TMPDIR", "/tmp"),
    ("XDG_CACHE_HOME", "/tmp/home/.cache"),
    ("XDG_CONFIG_HOME", "/tmp/home/.config"),
];

/// Prefixes of our own variables, in any case, which are never passed to a command.
const RESERVED_PREFIXES: [&[u8]; 2] = [b"SYMPOZIUM_", b"SKILL_TOKEN"];
/// The exact prefix of names in a request.
const REQUEST_PREFIX: &str = "SKILL_";

/// The environment that all commands of an executor share.
#[derive(Clone, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    /// Replaces [`DEFAULT_SCRATCH`].
    scratch: PathBuf,
}

/// Why the variables of a request are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// There are too many.
    #[error("{count} environment variables requested, at most {MAX_REQUEST_VARIABLES} are allowed")]
    Count {
        /// Their number.
        count: usize,
    },
    /// A name is longer than [`MAX_NAME_BYTES`], too long to repeat it.
    #[error("environment variable name has {length} bytes, at most {MAX_NAME_BYTES} are allowed")]
    NameLength {
        /// Its length.
        length: usize,
    },
    /// A name is not `SKILL_` with at least one letter, digit or underscore.
    #[error("environment variable {name:?} is not allowed: names must match SKILL_[A-Za-z0-9_]+")]
    Name {
        /// The variable's name.
        name: String,
    },
    /// A name with a reserved prefix.
    #[error("environment variable {name:?} is reserved")]
    Reserved {
        /// The variable's name.
        name: String,
    },
    /// A name is there twice.
    #[error("environment variable {name:?} is given twice")]
    Duplicate {
        /// The variable's name.
        name: String,
    },
    /// A value contains a NUL.
    #[error("the value of environment variable {name:?} contains a nul byte")]
    Nul {
        /// The variable's name.
        name: String,
    },
    /// Name and value are longer than [`MAX_ENTRY_BYTES`].
    #[error("environment variable {name:?} has {length} bytes with its name, at most {MAX_ENTRY_BYTES} are allowed")]
    EntryLength {
        /// The variable's name.
        name: String,
        /// Length of `NAME=VALUE`.
        length: usize,
    },
    /// All entries together are longer than [`MAX_TOTAL_BYTES`].
    #[error("the environment has {length} bytes, at most {MAX_TOTAL_BYTES} are allowed")]
    TotalLength {
        /// The total length.
        length: usize,
    },
}

impl Environment {
    /// Takes over what the container declares (the executor's own environment, as it was started).
    ///
    /// Left out: `SYMPOZIUM_*` and `SKILL_TOKEN*` in any case, and invalid entries (no name, `=` in the name, a NUL
    /// anywhere). [`SCRATCH_VARIABLES`] point below [`DEFAULT_SCRATCH`]; an absent or empty `PATH` becomes
    /// [`DEFAULT_PATH`], because an empty one means the working directory. Of a name that is declared twice the first
    /// value counts, as for `getenv(3)`.
    pub fn from_declared(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut kept = BTreeMap::new();
        for (name, value) in variables {
            if is_variable(&name, &value) && !is_reserved(name.as_bytes()) {
                kept.entry(name).or_insert(value);
            }
        }
        Self::with_variables(kept)
    }

    /// Exactly these variables, reserved ones included: for one of our own parts, never for commands.
    #[must_use]
    pub fn for_part(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut kept = BTreeMap::new();
        for (name, value) in variables {
            if is_variable(&name, &value) {
                kept.entry(name).or_insert(value);
            }
        }
        Self::with_variables(kept)
    }

    fn with_variables(variables: BTreeMap<OsString, OsString>) -> Self {
        let scratch = PathBuf::from(DEFAULT_SCRATCH);
        Self { variables, scratch }.with_scratch_variables()
    }

    /// For commands whose scratch directory is not [`DEFAULT_SCRATCH`], because that is the host's: all
    /// [`SCRATCH_VARIABLES`] point there instead.
    #[must_use]
    pub fn with_scratch(mut self, scratch: &Path) -> Self {
        self.scratch = scratch.to_owned();
        self.with_scratch_variables()
    }

    /// The home directory of commands.
    pub(crate) fn home(&self) -> &Path {
        self.get("HOME").map_or(Path::new(HOME), Path::new)
    }

    /// Removes further variables by their exact names: credentials of the executor under other names.
    #[must_use]
    pub fn without<'a>(mut self, names: impl IntoIterator<Item = &'a OsStr>) -> Self {
        for name in names {
            self.variables.remove(name);
        }
        self.with_scratch_variables()
    }

    /// A variable's value, such as the `PATH` in which commands are searched.
    #[must_use]
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.variables.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// The environment of one command, as `NAME=VALUE` in the order of the names' bytes.
    ///
    /// A request's variable replaces a declared one of that name.
    ///
    /// # Errors
    /// The first rule that is violated. Nothing is dropped or truncated to make it fit.
    pub fn for_request(&self, requested: &[(String, String)]) -> Result<Vec<CString>, EnvironmentError> {
        if requested.len() > MAX_REQUEST_VARIABLES {
            return Err(EnvironmentError::Count { count: requested.len() });
        }
        let mut added = BTreeMap::new();
        for (name, value) in requested {
            check_name(name)?;
            if added.insert(OsStr::new(name), OsStr::new(value)).is_some() {
                return Err(EnvironmentError::Duplicate { name: name.clone() });
            }
        }
        let declared = self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
        let all: BTreeMap<&OsStr, &OsStr> = declared.chain(added).collect();
        let length = all.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        if length > MAX_TOTAL_BYTES {
            return Err(EnvironmentError::TotalLength { length });
        }
        all.into_iter().map(|(name, value)| to_entry(name, value)).collect()
    }

    fn with_scratch_variables(mut self) -> Self {
        for (name, place) in SCRATCH_VARIABLES {
            let is_there = |value: &OsStr| is_below_scratch(value, &self.scratch);
            if !self.get(name).is_some_and(is_there) {
                let below = Path::new(place).strip_prefix(DEFAULT_SCRATCH).unwrap_or(Path::new(""));
                // Joining an empty path would add a slash.
                let place: PathBuf = self.scratch.join(below).components().collect();
                self.variables.insert(name.into(), place.into());
            }
        }
        if self.get("PATH").is_none_or(OsStr::is_empty) {
            self.variables.insert("PATH".into(), DEFAULT_PATH.into());
        }
        self
    }
}

/// Prints names only: values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

fn is_variable(name: &OsStr, value: &OsStr) -> bool {
    let has = |text: &OsStr, byte| text.as_bytes().contains(&byte);
    !name.is_empty() && !has(name, b'=') && !has(name, 0) && !has(value, 0)
}

fn is_reserved(name: &[u8]) -> bool {
    RESERVED_PREFIXES.iter().any(|ours| name.get(..ours.len()).is_some_and(|start| start.eq_ignore_ascii_case(ours)))
}

/// By its text alone: the directory need not exist yet, and in the command's view it may be another.
fn is_below_scratch(value: &OsStr, scratch: &Path) -> bool {
    let path = Path::new(value);
    path.starts_with(scratch) && !path.components().any(|part| part == Component::ParentDir)
}

fn check_name(name: &str) -> Result<(), EnvironmentError> {
    let named = || name.to_owned();
    if name.len() > MAX_NAME_BYTES {
        return Err(EnvironmentError::NameLength { length: name.len() });
    }
    if is_reserved(name.as_bytes()) {
        return Err(EnvironmentError::Reserved { name: named() });
    }
    let rest = name.strip_prefix(REQUEST_PREFIX).unwrap_or_default();
    if rest.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err(EnvironmentError::Name { name: named() });
    }
    Ok(())
}

/// The limit applies to declared variables too: one that is too long would make `execve` fail for all commands.
fn to_entry(name: &OsStr, value: &OsStr) -> Result<CString, EnvironmentError> {
    let named = || name.to_string_lossy().into_owned();
    let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
    if text.len() > MAX_ENTRY_BYTES {
        return Err(EnvironmentError::EntryLength { name: named(), length: text.len() });
    }
    CString::new(text).map_err(|_| EnvironmentError::Nul { name: named() })
}

#[cfg(test)]
mod tests;
