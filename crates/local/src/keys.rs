//! Finds the model key: in a flag, a Secret or the environment. Only the bridge is given it.

mod command;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::OFlags;
use sympozium_api::run_plan::ModelKey;
use zeroize::Zeroizing;

use crate::secrets::{Secret, check_file};
use sympozium_runs::HintedError;

/// Bytes of a key, whatever its source.
pub const MAX_KEY_BYTES: usize = 16 << 10;
/// The suffix of a variable that names a file with the key.
const FILE_SUFFIX: &str = "_FILE";

/// The name of the bridge's variable, and its value.
pub type Key = (String, Zeroizing<String>);

/// Looks up variables of an environment.
pub type EnvLookup<'e> = dyn Fn(&str) -> Option<OsString> + 'e;

/// Where keys are looked for, in this order.
pub struct KeySources<'s> {
    /// `--key-file`
    pub file: Option<&'s Path>,
    /// `--key-command`
    pub command: Option<&'s str>,
    /// Looks up a Secret of the run's namespace.
    pub secret: &'s dyn Fn(&str) -> anyhow::Result<Option<Secret>>,
    /// The user's environment; `None` if its keys must not be sent to the model's address. A variable was set for the
    /// provider, not for any address that a manifest names.
    pub environment: Option<&'s EnvLookup<'s>>,
}

/// Finds the key, if the plan has a variable for one. If there is none, the hint lists every way to provide it.
pub fn find_key(keys: &[ModelKey], sources: &KeySources<'_>) -> Result<Option<Key>, HintedError> {
    let Some(first) = keys.first() else {
        return Ok(None);
    };
    let of_first = |key| Some((first.variable.as_str().to_owned(), key));
    if let Some(path) = sources.file {
        let key = from_file(path)
            .map_err(|error| HintedError::new(error, "--key-file needs a file of your own with mode 600"))?;
        return Ok(of_first(key));
    }
    if let Some(command) = sources.command {
        let key = command::run(command)
            .map_err(|error| HintedError::new(error, "try the command in a shell: it must print only the key"))?;
        return Ok(of_first(key));
    }
    for key in keys {
        if let Some(found) = from_secret(key, sources)? {
            return Ok(Some(found));
        }
    }
    for key in keys {
        if let Some(found) = from_environment(key.variable.as_str(), sources)? {
            return Ok(Some(found));
        }
    }
    Err(missing_key(first, sources.environment.is_some()))
}

/// Whether the environment has a key in this variable, or in the file that its `_FILE` variant names.
pub fn is_in_environment(variable: &str, environment: &EnvLookup<'_>) -> bool {
    let is_set = |name: &str| environment(name).is_some_and(|it| !it.is_empty());
    is_set(variable) || is_set(&format!("{variable}{FILE_SUFFIX}"))
}

fn from_secret(key: &ModelKey, sources: &KeySources<'_>) -> Result<Option<Key>, HintedError> {
    let (name, variable) = (key.secret.as_str(), key.variable.as_str());
    let hint = || format!("set the key again: sympozium secret set {name} {variable}");
    let failure = |error: anyhow::Error| HintedError::new(error, hint());
    let Some(secret) = (sources.secret)(name).map_err(failure)? else {
        return Ok(None);
    };
    let Some(value) = secret.0.get(variable) else {
        return Ok(None);
    };
    let read = parse_key(value).with_context(|| format!("key {variable} of Secret {name}"));
    Ok(Some((variable.to_owned(), read.map_err(failure)?)))
}

fn from_environment(variable: &str, sources: &KeySources<'_>) -> Result<Option<Key>, HintedError> {
    use std::os::unix::ffi::OsStringExt as _;
    let Some(environment) = sources.environment else {
        return Ok(None);
    };
    let set = |name: &str| environment(name).filter(|it| !it.is_empty());
    if let Some(value) = set(variable) {
        let value = Zeroizing::new(value.into_vec());
        let read = parse_key(&value).with_context(|| format!("the variable {variable}"));
        let key = read.map_err(|error| HintedError::new(error, "set the variable to the key only"))?;
        return Ok(Some((variable.to_owned(), key)));
    }
    let of_file = format!("{variable}{FILE_SUFFIX}");
    let Some(path) = set(&of_file) else {
        return Ok(None);
    };
    let read = from_file(&PathBuf::from(path)).with_context(|| format!("the variable {of_file}"));
    let hint = "the variable must name a file of your own with mode 600";
    let key = read.map_err(|error| HintedError::new(error, hint))?;
    Ok(Some((variable.to_owned(), key)))
}

fn missing_key(key: &ModelKey, uses_environment: bool) -> HintedError {
    let ModelKey { variable, secret } = key;
    let mut hint =
        format!("set one with `sympozium secret set {secret} {variable}`, --key-file FILE, --key-command COMMAND");
    hint.push_str(&match uses_environment {
        true => format!(", {variable} or {variable}{FILE_SUFFIX} in the environment"),
        false => format!(
            "; {variable} of the environment is only used for the provider's own address: --key-command 'printenv {variable}' gives it to this one"
        ),
    });
    HintedError::new(anyhow!("there is no key for the model's provider"), hint)
}

/// Reads a key from a file that only its owner can read.
fn from_file(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let context = || format!("cannot read {}", path.display());
    // Opening a pipe would block until a writer opens it.
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = opened.with_context(context)?;
    check_file(path, &file)?;
    let mut bytes = Zeroizing::new(Vec::new());
    let read = file.take(MAX_KEY_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.with_context(context)?;
    parse_key(&bytes).with_context(|| format!("the file {}", path.display()))
}

/// Parses a key, without the line break after it. It becomes the value of a header: anything else in it is a mistake.
fn parse_key(bytes: &[u8]) -> anyhow::Result<Zeroizing<String>> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() {
        bail!("it contains no key");
    }
    if bytes.len() > MAX_KEY_BYTES {
        bail!("it has more than {MAX_KEY_BYTES} bytes, which is too long for a key");
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if text.bytes().all(|it| it.is_ascii_graphic()) => Ok(Zeroizing::new(text.to_owned())),
        _ => bail!("it has more than one word, or characters that are invalid in a key"),
    }
}
