//! Who may call: the tokens, each a caller of its own.

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

/// Callers of one server.
pub const MAX_TOKENS: usize = 64;
/// Bytes of a token.
pub const MAX_TOKEN_BYTES: usize = 512;
/// Bytes of the file of tokens, comments included.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Tokens shorter than this can be guessed; that is said at the start.
pub const SHORT_TOKEN_BYTES: usize = 16;
/// How long a token that was taken out of the file may still be good. One that was put in is good at once.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// Who calls. Two requests come from one caller when they carry one token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    digest: [u8; 32],
    /// The place of the token in the order of configuration, for logs.
    pub index: u32,
}

impl Caller {
    /// Everybody, where no token is asked for.
    pub const ANYBODY: Self = Self { digest: [0; 32], index: 0 };

    /// What tells callers apart. A token cannot be found from it.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// The digest could be used to test guesses.
impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Caller({})", self.index)
    }
}

/// The tokens that are valid now.
#[derive(Debug)]
pub struct Tokens {
    /// From the variable; it stays for the life of the process.
    given: Vec<[u8; 32]>,
    file: Option<PathBuf>,
    valid: RwLock<Vec<[u8; 32]>>,
    seen: Mutex<Seen>,
}

/// Which version of the file was read, and when it was last looked at.
#[derive(Debug, Default)]
struct Seen {
    version: Option<Version>,
    looked: Option<Instant>,
}

/// Device, inode, size, time of change: another file, or the same one written again.
type Version = (u64, u64, u64, i64, i64);

impl Tokens {
    /// From the values of the two variables. Blank ones count as absent.
    ///
    /// # Errors
    /// When a token cannot be used, or the file cannot be read or holds none. No token at all is no error.
    pub fn load(token: Option<&str>, file: Option<&Path>) -> anyhow::Result<Self> {
        let mut given = Vec::new();
        if let Some(token) = token.map(str::trim).filter(|token| !token.is_empty()) {
            given.push(digest_of(token).context("the token in SKILL_TOKEN")?);
        }
        let file = file.filter(|file| !file.as_os_str().is_empty());
        let tokens = Self { given, file: file.map(Path::to_owned), valid: RwLock::default(), seen: Mutex::default() };
        tokens.reload()?;
        Ok(tokens)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.valid.read().len()
    }

    /// Reads the file again. When that fails, what was valid stays valid.
    ///
    /// # Errors
    /// When the file cannot be read, or what it holds cannot be used.
    pub fn reload(&self) -> anyhow::Result<()> {
        let mut valid = self.given.clone();
        if let Some(path) = &self.file {
            let version = version(path);
            // A version that is no good need not be read again and again either.
            self.seen.lock().version = version;
            let read = read(path).and_then(|text| parse(&text));
            let read = read.with_context(|| format!("the token file {}", path.display()))?;
            for digest in read {
                if !valid.contains(&digest) {
                    valid.push(digest);
                }
            }
        }
        *self.valid.write() = valid;
        Ok(())
    }

    /// Whose token this is. How long it takes depends on how many tokens there are, and on nothing else of them.
    pub fn caller(&self, token: &[u8]) -> Option<Caller> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(token).into();
        // A token that was taken out of the file must not be good any longer.
        self.reload_if_changed(RELOAD_PAUSE);
        self.find(&digest).or_else(|| {
            // One that was put in has been written to the file before anybody could send it.
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

    /// Looks at the file, unless it was looked at within the last `pause`.
    fn reload_if_changed(&self, pause: Duration) {
        let Some(path) = &self.file else { return };
        let mut seen = self.seen.lock();
        if (seen.looked).is_some_and(|looked| looked.elapsed() < pause) {
            return;
        }
        seen.looked = Some(Instant::now());
        let known = seen.version;
        drop(seen);
        if version(path) == known {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!(count = self.count(), "the token file was read again"),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "the token file has changed, and what it holds is not used"
            ),
        }
    }
}

fn version(path: &Path) -> Option<Version> {
    let data = std::fs::metadata(path).ok()?;
    Some((
        data.dev(),
        data.ino(),
        data.size(),
        // Not the time of modification, which whoever writes can set.
        data.ctime(),
        data.ctime_nsec(),
    ))
}

fn read(path: &Path) -> anyhow::Result<String> {
    // Without waiting for whoever would write into a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    ensure!(file.metadata()?.is_file(), "it is not a regular file");
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MAX_FILE_BYTES, "it has more than {MAX_FILE_BYTES} bytes");
    Ok(text)
}

/// One token a line; blank lines and those that start with `#` are left out.
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

/// The token itself is not kept, and not in the error either.
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
    fn every_line_is_a_caller_and_so_is_the_variable() {
        let (_directory, path) = in_file("# agents\nfirst-of-the-file\n\n  second  \r\nfirst-of-the-file\n");
        let tokens = Tokens::load(Some(" given\n"), Some(&path)).unwrap();
        let index = |token: &str| tokens.caller(token.as_bytes()).map(|caller| caller.index);
        assert_eq!(index("given"), Some(0));
        assert_eq!(index("first-of-the-file"), Some(1));
        assert_eq!(index("second"), Some(2));
        for wrong in ["", "# agents", "secon", "second ", "Second", "given\n"] {
            assert_eq!(index(wrong), None, "{wrong:?}");
        }
        assert_eq!(tokens.count(), 3);
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_repeating_it() {
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
        for (text, why) in [
            ("", "it has no token"),
            ("# nothing\n", "it has no token"),
            ("good\nsec ret", "line 2: it contains a character other than visible ASCII, which no header can carry"),
            (&long, "line 1: it has more than 512 bytes"),
            (&"t\n".repeat(MAX_TOKENS + 1), "it has more than 64 tokens"),
            (&"#\n".repeat(40_000), "it has more than 65536 bytes"),
        ] {
            let (_directory, path) = in_file(text);
            let error = Tokens::load(None, Some(&path)).unwrap_err();
            let expected = format!("the token file {}: {why}", path.display());
            assert_eq!(format!("{error:#}"), expected);
        }
        let error = Tokens::load(Some("sec ret"), None).unwrap_err();
        assert!(!format!("{error:#}").contains("sec ret"));
        assert!(Tokens::load(None, Some(Path::new("/dev/null"))).is_err());
    }

    #[test]
    fn a_rotated_file_is_noticed_by_a_wrong_token_and_a_broken_one_changes_nothing() {
        let (_directory, path) = in_file("old-token-of-caller");
        let tokens = Tokens::load(None, Some(&path)).unwrap();
        std::fs::write(&path, "new-token-of-the-caller").unwrap();
        assert!(tokens.caller(b"new-token-of-the-caller").is_some());
        assert!(tokens.caller(b"old-token-of-caller").is_none());
        std::fs::write(&path, "").unwrap();
        tokens.reload().unwrap_err();
        assert!(tokens.caller(b"new-token-of-the-caller").is_some());
    }

    #[test]
    fn blank_variables_are_absent_ones() {
        let tokens = Tokens::load(Some(" "), Some(Path::new(""))).unwrap();
        assert_eq!(tokens.count(), 0);
        assert!(tokens.caller(b"").is_none());
    }
}
