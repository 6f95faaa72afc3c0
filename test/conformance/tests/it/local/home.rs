//! The directories of one case.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use sympozium_conformance::Case;
use sympozium_testkit::{as_user, static_build};
use tempfile::TempDir;

use crate::pages;

/// A directory of a case: everything of it is below, so whatever names it belongs to the case.
pub struct Home {
    directory: TempDir,
}

impl Home {
    pub fn new(user: Option<u32>) -> anyhow::Result<Self> {
        let directory = directory()?;
        let home = Self { directory };
        let all = ["", "home", "tmp", "state", "config", "data"];
        for name in all {
            let path = home.at(name);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            if let Some(uid) = user {
                chown(&path, Some(uid), Some(uid))?;
            }
        }
        Ok(home)
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The objects of the case: the floor where this machine has it, everything else in one file.
    pub fn write_manifests(&self, case: &Case, user: Option<u32>) -> anyhow::Result<PathBuf> {
        let text = case.text(pages::at(Ipv4Addr::LOCALHOST)?)?;
        let (floor, objects): (Vec<&str>, Vec<&str>) =
            text.split("\n---\n").partition(|object| object.contains("namespace: sympozium-system"));
        let manifests = self.at("manifests.yaml");
        let mut written = vec![(manifests.clone(), objects.join("\n---\n"))];
        if !floor.is_empty() {
            written.push((self.at("config/floor.yaml"), floor.join("\n---\n")));
        }
        for (path, text) in written {
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            if let Some(uid) = user {
                chown(&path, Some(uid), Some(uid))?;
            }
        }
        Ok(manifests)
    }
}

/// A new directory that is not below `/tmp`, where parts of a run have something of their own.
pub fn directory() -> anyhow::Result<TempDir> {
    let base = if as_user::is_root() { PathBuf::from("/run") } else { static_build::target_directory() };
    Ok(tempfile::Builder::new().prefix("conform-").tempdir_in(base)?)
}
