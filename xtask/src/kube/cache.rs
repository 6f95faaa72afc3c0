//! Keeps the cache of built parts small: what this checkout uses, and what another one used lately.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::lock;
use super::parts;
use super::paths::Root;

/// How many builds of a part are kept, the ones used last.
const KEPT: usize = 2;
/// A build that was used this lately stays in any case: another checkout may be at work with it.
const RECENT: Duration = Duration::from_secs(24 * 60 * 60);
/// Says when a build was used last, by its time of change.
const USED: &str = ".used";

/// Notes that a build is in use. A cache that cannot be written to is used all the same.
pub fn note_use(folder: &std::path::Path) {
    let _ = fs::write(folder.join(USED), "");
}

/// Removes builds of a part beyond the number that is kept.
pub fn shrink(root: &Root) -> Result<()> {
    for part in parts::ALL {
        // A build that is under way decides for itself.
        let lock_path = root.parts().join(format!("{}.lock", part.name));
        let Some(_lock) = lock::try_exclusive(&lock_path)? else {
            continue;
        };
        let mut builds = builds(root, part.name)?;
        builds.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
        for (used, folder) in builds.into_iter().skip(KEPT) {
            if used.elapsed().is_ok_and(|age| age > RECENT) {
                fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
                eprintln!("removed {}, which was not used lately", folder.display());
            }
        }
    }
    Ok(())
}

/// Removes everything that was built.
pub fn clear(root: &Root) -> Result<()> {
    for part in parts::ALL {
        for (_, folder) in builds(root, part.name)? {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
    }
    Ok(())
}

/// The builds of a part with the time of their last use.
fn builds(root: &Root, part: &str) -> Result<Vec<(SystemTime, PathBuf)>> {
    let folder = root.parts();
    let entries = fs::read_dir(&folder)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("cannot list {}", folder.display()))?;
    let mut builds = Vec::new();
    for path in entries.into_iter().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let key = name.strip_prefix(part).and_then(|rest| rest.strip_prefix('-'));
        // `agent-sandbox` is no build of a part called `agent`: a key is hexadecimal.
        let is_build = key.is_some_and(|key| key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_build && path.is_dir() {
            let used = fs::metadata(path.join(USED)).or_else(|_| fs::metadata(&path));
            let used = used.and_then(|metadata| metadata.modified());
            builds.push((used.unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    Ok(builds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_that_were_not_used_lately_are_removed_beyond_the_number_kept() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path()).unwrap();
        let day = Duration::from_secs(24 * 60 * 60);
        let build = |name: &str, days: u32| {
            let path = root.parts().join(name);
            fs::create_dir(&path).unwrap();
            note_use(&path);
            let used = fs::File::options().write(true).open(path.join(USED)).unwrap();
            used.set_modified(SystemTime::now() - day * days).unwrap();
            path
        };
        let old = build("helm-00000000000000a1", 30);
        let kept = [
            build("helm-00000000000000a2", 20),
            build("helm-00000000000000a3", 10),
            build("runc-00000000000000b1", 90),
            build("helm-notes", 90),
        ];
        shrink(&root).unwrap();
        assert!(!old.exists());
        assert!(kept.iter().all(|path| path.exists()));

        let recent = build("helm-00000000000000a4", 0);
        let also = build("helm-00000000000000a5", 0);
        build("helm-00000000000000a6", 0);
        shrink(&root).unwrap();
        assert!(recent.exists() && also.exists(), "used today");
        assert!(!kept[0].exists() && !kept[1].exists());

        clear(&root).unwrap();
        assert!(!recent.exists() && kept[3].exists());
    }
}
