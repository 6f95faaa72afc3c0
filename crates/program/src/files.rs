//! Files that a program reads at its start and again when they change: keys, certificates, credentials.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

/// Polling interval for changed files. The kubelet takes up to a minute to update them.
pub const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of bytes of a file with a secret.
const MAX_BYTES: u64 = 64 * 1024;

/// Identifies a version of files: where each path leads, and when that was written. The kubelet swaps the link that all
/// of them lead through.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileState(Vec<Option<(PathBuf, SystemTime, u64)>>);

impl FileState {
    pub fn current<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let state = |path: &Path| {
            let target = fs::canonicalize(path).ok()?;
            let metadata = fs::metadata(&target).ok()?;
            Some((target, metadata.modified().ok()?, metadata.len()))
        };
        Self(paths.into_iter().map(state).collect())
    }
}

/// Reads a small file with a secret.
///
/// # Errors
///
/// When it cannot be read, is not a regular file, has more than 64 KiB, or is not UTF-8.
pub fn read_secret(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    read_bounded(path).with_context(|| format!("reading {}", path.display()))
}

fn read_bounded(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    // Does not block on a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    ensure!(file.metadata()?.is_file(), "it is not a regular file");
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MAX_BYTES, "it has more than {MAX_BYTES} bytes");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// As the kubelet does it: a directory for each version, a link to it that is renamed, and links through that one.
    #[test]
    fn files_that_the_kubelet_swaps_are_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for version in ["..1", "..2"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("keys"), "same").unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/keys", at("keys")).unwrap();
        let keys = at("keys");
        let state = || FileState::current([keys.as_path()]);
        let first = state();
        assert_eq!(first, state());
        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        let second = state();
        assert_ne!(first, second);
        fs::remove_file(at("..2/keys")).unwrap();
        assert_ne!(second, state());
    }
}
