//! The files of a layer, and the tar archive that they make: the same files give the same bytes.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Result, ensure};
use sha2::{Digest as _, Sha256};
use sympozium_api::hex;
use tar::{Builder, EntryType, Header};

/// What is at a path. Everything belongs to root but what says otherwise, so that a command, which is not root, can
/// change no program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A directory that belongs to this user and the group of the same number.
    Directory {
        mode: u32,
        owner: u64,
    },
    File {
        mode: u32,
        content: Vec<u8>,
    },
    Link {
        target: String,
    },
}

/// Paths in an image, without the leading slash, and what is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Adds an entry, and the directories above it that are not there.
    pub fn add(&mut self, path: &str, entry: Entry) -> Result<()> {
        let is_plain = path.split('/').all(|step| !step.is_empty() && step != "." && step != "..");
        ensure!(is_plain, "`{path}` is no path in an image: it must be relative and have no empty, `.` or `..` step");
        for (slash, _) in path.match_indices('/') {
            let above = &path[..slash];
            let above = self.entries.entry(above.to_owned()).or_insert(Entry::Directory { mode: 0o755, owner: 0 });
            ensure!(
                matches!(above, Entry::Directory { .. }),
                "`{path}` would lie below something that is no directory"
            );
        }
        let is_new = self.entries.insert(path.to_owned(), entry).is_none();
        ensure!(is_new, "`{path}` is there twice");
        Ok(())
    }

    pub fn add_directory(&mut self, path: &str, mode: u32, owner: u64) -> Result<()> {
        self.add(path, Entry::Directory { mode, owner })
    }

    pub fn add_file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Result<()> {
        let content = content.into();
        self.add(path, Entry::File { mode, content })
    }

    pub fn add_link(&mut self, path: &str, target: &str) -> Result<()> {
        let target = target.to_owned();
        self.add(path, Entry::Link { target })
    }

    /// The archive: sorted by path, so that a directory comes before what is in it, and without times and names of users.
    pub fn to_tar(&self) -> Result<Vec<u8>> {
        let mut archive = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            match entry {
                Entry::Directory { mode, owner } => {
                    let mut header = header(EntryType::Directory, 0, *mode);
                    header.set_uid(*owner);
                    header.set_gid(*owner);
                    archive.append_data(&mut header, format!("{path}/"), std::io::empty())?;
                }
                Entry::File { mode, content } => append_file(&mut archive, path, *mode, content)?,
                Entry::Link { target } => {
                    archive.append_link(&mut header(EntryType::Symlink, 0, 0o777), path, target)?;
                }
            }
        }
        Ok(archive.into_inner()?)
    }
}

/// Adds a file of root's to an archive.
pub fn append_file<W: Write>(archive: &mut Builder<W>, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    let mut header = header(EntryType::Regular, content.len() as u64, mode);
    Ok(archive.append_data(&mut header, path, content)?)
}

/// A header with nothing in it that depends on when and by whom it is written.
pub fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    // Left alone, these fields are empty, which not every reader takes for a number.
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// The SHA-256 of some bytes in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_or_collide_are_refused() {
        let mut tree = Tree::default();
        for path in ["", "/bin", "bin/", "a//b", "a/../b", "./a", ".."] {
            assert!(tree.add_file(path, 0o644, "x").is_err(), "{path}");
        }
        tree.add_file("bin/a", 0o755, "x").unwrap();
        assert!(tree.add_file("bin/a", 0o755, "y").is_err());
        assert!(tree.add_file("bin/a/b", 0o755, "y").is_err());
    }

    #[test]
    fn the_order_of_adding_does_not_matter() {
        let mut one = Tree::default();
        one.add_file("b/c", 0o644, "x").unwrap();
        one.add_link("a", "b/c").unwrap();
        let mut other = Tree::default();
        other.add_link("a", "b/c").unwrap();
        other.add_file("b/c", 0o644, "x").unwrap();
        assert_eq!(one.to_tar().unwrap(), other.to_tar().unwrap());
    }
}
