//! The tokens that authenticate callers: each token is a separate caller.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

const MAX_TOKENS: usize = 64;
const MAX_TOKEN_BYTES: usize = 512;
/// Includes comments.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Shorter tokens can be guessed, and cause a warning.
const SHORT_TOKEN_BYTES: usize = 16;
/// How long a token that was removed from the file may stay valid. An added one is valid at once.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Two requests with the same token are from the same caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    digest: [u8; 32],
    /// The token's position in the configuration, for logs.
    pub index: u32,
}

impl Caller {
    /// Every client, where no token is configured.
    pub const UNAUTHENTICATED: Self = Self { digest: [0; 32], index: 0 };

    /// Identifies the caller without revealing the token.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// Without the digest, which could be used to verify guesses.
impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Caller({})", self.index)
    }
}

#[derive(Debug)]
pub struct Tokens {
    /// Valid for the life of the process.
    from_variable: Vec<[u8; 32]>,
    file: Option<PathBuf>,
    valid: RwLock<Vec<[u8; 32]>>,
    file_state: Mutex<FileState>,
}

#[derive(Debug, Default)]
struct FileState {
    version_read: Option<FileVersion>,
    checked_at: Option<Instant>,
}

/// Device, inode, size and change time: they differ for another file, and for the same one written again.
type FileVersion = (u64, u64, u64, i64, i64);

impl Tokens {
    /// From the values of the two variables. Blank values count as absent.
    ///
    /// # Errors
    /// When a token is invalid, or the file cannot be read or contains none. Without both variables there is no error.
    pub fn load(token: Option<&str>, file: Option<&Path>) -> anyhow::Result<Self> {
        let mut from_variable = Vec::new();
        if let Some(token) = token.map(str::trim).filter(|token| !token.is_empty()) {
            from_variable.push(digest_of(token).context("the token in SKILL_TOKEN")?);
        }
        let file = file.filter(|file| !file.as_os_str().is_empty());
        let tokens = Self {
            from_variable,
            file: file.map(Path::to_owned),
            valid: RwLock::default(),
            file_state: Mutex::default(),
        };
        tokens.reload()?;
        Ok(tokens)
    }

    pub fn count(&self) -> usize {
        self.valid.read().len()
    }

    /// Reads the file again. On an error, the previous tokens stay valid.
    ///
    /// # Errors
    /// When the file cannot be read, or its content is invalid.
    pub fn reload(&self) -> anyhow::Result<()> {
        let mut valid = self.from_variable.clone();
        if let Some(path) = &self.file {
            let version = file_version(path);
            // Before reading, so that an invalid version is not read again for every request either.
            self.file_state.lock().version_read = version;
            let digests = read(path).and_then(|text| parse(&text));
            let digests = digests.with_context(|| format!("the token file {}", path.display()))?;
            for digest in digests {
                if !valid.contains(&digest) {
                    valid.push(digest);
                }
            }
        }
        *self.valid.write() = valid;
        Ok(())
    }

    /// In time that depends on the number of tokens, and not on their values.
    pub fn authenticate(&self, token: &[u8]) -> Option<Caller> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(token).into();
        // A token that was removed from the file must become invalid.
        self.reload_if_changed(RELOAD_INTERVAL);
        self.find(&digest).or_else(|| {
            // An added token was in the file before a caller could send it.
            self.reload_if_changed(Duration::ZERO);
            self.find(&digest)
        })
    }

    fn find(&self, digest: &[u8; 32]) -> Option<Caller> {
        let valid = self.valid.read();
        let mut found = u32::MAX;
        for (index, known) in (0u32..).zip(valid.iter()) {
            found.conditional_assign(&index, known.ct_eq(digest));
        }
        (found != u32::MAX).then_some(Caller { digest: *digest, index: found })
    }

    /// Does nothing if the file was checked within the last `interval`.
    fn reload_if_changed(&self, interval: Duration) {
        let Some(path) = &self.file else { return };
        let mut state = self.file_state.lock();
        if state.checked_at.is_some_and(|checked_at| checked_at.elapsed() < interval) {
            return;
        }
        state.checked_at = Some(Instant::now());
        let known = state.version_read;
        drop(state);
        if file_version(path) == known {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!(count = self.count(), "token file reloaded"),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "the token file has changed and cannot be used; the previous tokens stay valid"
            ),
        }
    }
}

fn file_version(path: &Path) -> Option<FileVersion> {
    let data = std::fs::metadata(path).ok()?;
    Some((
        data.dev(),
        data.ino(),
        data.size(),
        // Not the modification time, which the writer can set.
        data.ctime(),
        data.ctime_nsec(),
    ))
}

fn read(path: &Path) -> anyhow::Result<String> {
    // Does not wait for the writer of a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    ensure!(file.metadata()?.is_file(), "it is not a regular file");
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MAX_FILE_BYTES, "it has more than {MAX_FILE_BYTES} bytes");
    Ok(text)
}

/// One token per line; blank lines and those that start with `#` are ignored.
fn parse(text: &str) -> anyhow::Result<Vec<[u8; 32]>> {
    let mut digests = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        ensure!(digests.len() < MAX_TOKENS, "it has more than {MAX_TOKENS} tokens");
        digests.push(digest_of(line).with_context(|| format!("line {number}"))?);
    }
    if digests.is_empty() {
        bail!("it has no token");
    }
    Ok(digests)
}

/// The error does not contain the token.
fn digest_of(token: &str) -> anyhow::Result<[u8; 32]> {
    ensure!(token.len() <= MAX_TOKEN_BYTES, "it has more than {MAX_TOKEN_BYTES} bytes");
    ensure!(
        token.bytes().all(|byte| byte.is_ascii_graphic()),
        "it contains a character other than visible ASCII, which no header can carry"
    );
    if token.len() < SHORT_TOKEN_BYTES {
        tracing::warn!("a token has fewer than {SHORT_TOKEN_BYTES} characters and may be guessed");
    }
    Ok(Sha256::digest(token).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        std::fs::write(&path, text).unwrap();
        (directory, path)
    }

    #[test]
    fn every_line_and_the_variable_is_a_caller() {
        let (_directory, path) = in_file("# agents\nfirst-of-the-file\n\n  second  \r\nfirst-of-the-file\n");
        let tokens = Tokens::load(Some(" of-variable\n"), Some(&path)).unwrap();
        let index = |token: &str| tokens.authenticate(token.as_bytes()).map(|caller| caller.index);
        assert_eq!(index("of-variable"), Some(0));
        assert_eq!(index("first-of-the-file"), Some(1));
        assert_eq!(index("second"), Some(2));
        for wrong in ["", "# agents", "secon", "second ", "Second", "of-variable\n"] {
            assert_eq!(index(wrong), None, "{wrong:?}");
        }
        assert_eq!(tokens.count(), 3);
    }

    #[test]
    fn invalid_tokens_are_errors_that_do_not_repeat_them() {
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
        for (text, reason) in [
            ("", "it has no token"),
            ("# nothing\n", "it has no token"),
            ("good\nsec ret", "line 2: it contains a character other than visible ASCII, which no header can carry"),
            (&long, "line 1: it has more than 512 bytes"),
            (&"t\n".repeat(MAX_TOKENS + 1), "it has more than 64 tokens"),
            (&"#\n".repeat(40_000), "it has more than 65536 bytes"),
        ] {
            let (_directory, path) = in_file(text);
            let error = Tokens::load(None, Some(&path)).unwrap_err();
            let expected = format!("the token file {}: {reason}", path.display());
            assert_eq!(format!("{error:#}"), expected);
        }
        let error = Tokens::load(Some("sec ret"), None).unwrap_err();
        assert!(!format!("{error:#}").contains("sec ret"));
        assert!(Tokens::load(None, Some(Path::new("/dev/null"))).is_err());
    }

    #[test]
    fn an_unknown_token_reloads_the_file_and_an_invalid_file_changes_nothing() {
        let (_directory, path) = in_file("old-token-of-caller");
        let tokens = Tokens::load(None, Some(&path)).unwrap();
        std::fs::write(&path, "new-token-of-the-caller").unwrap();
        assert!(tokens.authenticate(b"new-token-of-the-caller").is_some());
        assert!(tokens.authenticate(b"old-token-of-caller").is_none());
        std::fs::write(&path, "").unwrap();
        tokens.reload().unwrap_err();
        assert!(tokens.authenticate(b"new-token-of-the-caller").is_some());
    }

    #[test]
    fn blank_variables_count_as_absent() {
        let tokens = Tokens::load(Some(" "), Some(Path::new(""))).unwrap();
        assert_eq!(tokens.count(), 0);
        assert!(tokens.authenticate(b"").is_none());
    }
}
