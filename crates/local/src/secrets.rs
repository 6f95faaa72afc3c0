//! The Secrets of this machine: `STATE/secrets/NAMESPACE/NAME.json`, readable by their owner alone.
//!
//! A file that other users can access, or that is a link, is refused: its contents may be known to others, or come from
//! them.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use sympozium_api::names::{NamespaceName, SecretName};
use sympozium_api::text::quote;
use zeroize::{Zeroize as _, Zeroizing};

use crate::state::{StateDirectory, replace_file};

/// Bytes of all keys and values of a Secret, as in Kubernetes.
pub const MAX_BYTES: usize = 1 << 20;
/// Keys of a Secret.
pub const MAX_KEYS: usize = 256;
/// Secrets of a namespace that are listed.
pub const MAX_SECRETS: usize = 10_000;
/// Bytes of a Secret's name. It is part of a file name, with a suffix while the file is written.
pub const MAX_NAME_BYTES: usize = 240;
/// Bytes of the name of a key.
const MAX_KEY_BYTES: usize = 253;
/// Bytes of a file: the data in Base64, with names and punctuation.
const MAX_FILE_BYTES: u64 = 2 << 20;
/// The version of the file format.
const FORMAT: u32 = 1;
const SUFFIX: &str = ".json";

/// The data of a Secret, by key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub BTreeMap<String, Zeroizing<Vec<u8>>>);

/// Keys only, so that values are not logged.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Secret {
    /// Checks sizes and names of keys. Errors do not contain values.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.0.len() > MAX_KEYS {
            bail!("a Secret has at most {MAX_KEYS} keys");
        }
        let bytes = self.0.iter().map(|(key, value)| key.len() + value.len());
        if bytes.sum::<usize>() > MAX_BYTES {
            bail!("a Secret has at most {MAX_BYTES} bytes");
        }
        match self.0.keys().find(|key| !is_valid_key(key)) {
            Some(key) => bail!("{} is not a valid key", quote(key)),
            None => Ok(()),
        }
    }
}

/// Whether Kubernetes permits a key of this name.
pub fn is_valid_key(key: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(is_usual) && key != "." && !key.starts_with("..")
}

/// Whether a Secret can have this name here.
pub fn is_valid_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && SecretName::from(name).check().is_ok()
}

#[derive(Debug)]
pub struct SecretStore {
    directory: PathBuf,
}

/// The file format.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecretFile {
    format: u32,
    /// Values in Base64.
    data: BTreeMap<String, String>,
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        self.data.values_mut().for_each(|it| it.zeroize());
    }
}

impl SecretStore {
    /// Opens the store of a namespace, which need not exist yet. Fails if the directory belongs to another user, is a
    /// link, or is accessible to others.
    pub fn open(state: &StateDirectory, namespace: &str) -> anyhow::Result<Self> {
        if NamespaceName::from(namespace).check().is_err() {
            let namespace = quote(namespace);
            bail!("{namespace} is not a valid name of a namespace");
        }
        let secrets = state.make_subdirectory("secrets")?;
        check_directory(&secrets)?;
        let directory = secrets.join(namespace);
        match check_directory(&directory) {
            Err(error) if is_not_found(&error) => {}
            other => other?,
        }
        Ok(Self { directory })
    }

    pub fn get(&self, name: &str) -> anyhow::Result<Option<Secret>> {
        if !is_valid_name(name) {
            return Ok(None);
        }
        let path = self.path(name);
        let Some(file) = open_private(&path)? else {
            return Ok(None);
        };
        let context = || format!("cannot read {}", path.display());
        let mut bytes = Zeroizing::new(Vec::new());
        let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
        read.with_context(context)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            bail!("{} has more than {MAX_FILE_BYTES} bytes", path.display());
        }
        // The message of a parser may contain parts of the text.
        let Ok(written) = serde_json::from_slice::<SecretFile>(&bytes) else {
            bail!("{} is not a valid file of this store", path.display());
        };
        if written.format != FORMAT {
            bail!("{} has the format of another release", path.display());
        }
        let mut secret = Secret::default();
        for (key, value) in &written.data {
            let Ok(value) = BASE64.decode(value) else {
                bail!("{} is not a valid file of this store", path.display());
            };
            secret.0.insert(key.clone(), Zeroizing::new(value));
        }
        secret.check().with_context(context)?;
        Ok(Some(secret))
    }

    /// Sets one key and keeps the others. On an error the stored Secret is unchanged.
    pub fn set(&self, name: &str, key: &str, value: Zeroizing<Vec<u8>>) -> anyhow::Result<()> {
        if !is_valid_name(name) {
            let name = quote(name);
            bail!("{name} is not a valid name of a Secret");
        }
        self.make_directory()?;
        let _lock = self.lock()?;
        let mut secret = self.get(name)?.unwrap_or_default();
        secret.0.insert(key.to_owned(), value);
        secret.check()?;
        self.write(name, &secret)
    }

    /// Removes a key, or the whole Secret; a Secret without keys is removed. Returns whether it existed.
    pub fn remove(&self, name: &str, key: Option<&str>) -> anyhow::Result<bool> {
        if !is_valid_name(name) || !self.directory.is_dir() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        if let Some(key) = key {
            let Some(mut secret) = self.get(name)? else {
                return Ok(false);
            };
            if secret.0.remove(key).is_none() {
                return Ok(false);
            }
            if !secret.0.is_empty() {
                self.write(name, &secret)?;
                return Ok(true);
            }
        }
        // Without checking it: a file that others can read should be removed all the more.
        let path = self.path(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
        }
    }

    /// Lists the names of all Secrets, sorted.
    pub fn names(&self) -> anyhow::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                let context = format!("cannot read {}", self.directory.display());
                return Err(error).context(context);
            }
        };
        let mut names = Vec::new();
        for entry in entries.take(MAX_SECRETS) {
            let entry = entry.with_context(|| format!("cannot read {}", self.directory.display()))?;
            let file = entry.file_name();
            let name = file.to_str().and_then(|it| it.strip_suffix(SUFFIX));
            names.extend(name.filter(|it| is_valid_name(it)).map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn write(&self, name: &str, secret: &Secret) -> anyhow::Result<()> {
        let data = secret.0.iter();
        let data = data.map(|(key, value)| (key.clone(), BASE64.encode(value.as_slice())));
        let written = SecretFile { format: FORMAT, data: data.collect() };
        let bytes = serde_json::to_vec(&written).context("cannot serialize the Secret as JSON")?;
        replace_file(&self.path(name), &Zeroizing::new(bytes))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}{SUFFIX}"))
    }

    fn make_directory(&self) -> anyhow::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let context = format!("cannot create {}", self.directory.display());
                return Err(error).context(context);
            }
        }
        check_directory(&self.directory)
    }

    /// Serialises writers, so that none overwrites the changes of another.
    fn lock(&self) -> anyhow::Result<File> {
        let context = || format!("cannot lock {}", self.directory.display());
        let directory = File::open(&self.directory).with_context(context)?;
        flock(&directory, FlockOperation::LockExclusive).with_context(context)?;
        Ok(directory)
    }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|it| it.kind() == io::ErrorKind::NotFound)
}

/// Checks that a directory belongs to this user alone, and is not a link.
fn check_directory(path: &Path) -> anyhow::Result<()> {
    let found = fs::symlink_metadata(path);
    let found = found.with_context(|| format!("cannot read the attributes of {}", path.display()))?;
    if !found.is_dir() {
        bail!("{} is not a directory", path.display());
    }
    check_owner(path, found.uid(), found.mode())
}

/// Opens a regular file that belongs to this user alone, if it exists. Checked after opening, so that it cannot be
/// swapped in between.
fn open_private(path: &Path) -> anyhow::Result<Option<File>> {
    // Opening a pipe would block until a writer opens it.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::LOOP) => {
            bail!("{} is a symbolic link", path.display())
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    check_file(path, &file)?;
    let links = file.metadata().map(|it| it.nlink());
    if links.with_context(|| format!("cannot read the attributes of {}", path.display()))? != 1 {
        bail!("{} has more than one hard link", path.display());
    }
    Ok(Some(file))
}

/// Checks that an open file is regular, belongs to this user, and is not accessible to others.
pub fn check_file(path: &Path, file: &File) -> anyhow::Result<()> {
    let found = file.metadata();
    let found = found.with_context(|| format!("cannot read the attributes of {}", path.display()))?;
    if !found.is_file() {
        bail!("{} is not a regular file", path.display());
    }
    check_owner(path, found.uid(), found.mode())
}

fn check_owner(path: &Path, owner: u32, mode: u32) -> anyhow::Result<()> {
    if owner != rustix::process::geteuid().as_raw() {
        bail!("{} belongs to another user", path.display());
    }
    match mode & 0o077 {
        0 => Ok(()),
        _ => bail!("{} is accessible to other users (mode {:03o})", path.display(), mode & 0o777),
    }
}
