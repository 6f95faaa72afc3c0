//! The program as it ships, started as it is in a pod: static, without root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::LazyLock;

use sympozium_testkit::{as_user, processes, static_build};
use tempfile::TempDir;

/// The static binary.
pub static BINARY: LazyLock<PathBuf> =
    LazyLock::new(|| static_build::shipped("skill-sidecar").expect("the sidecar can be built"));

/// A sidecar that runs, in a directory of its own. Dropped, it ends.
pub struct Sidecar {
    child: Child,
    pub directory: TempDir,
}

impl Sidecar {
    /// Starts the program as it ships, with arguments that may contain paths in its directory.
    pub fn start(arguments: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self::start_program(&BINARY, arguments)
    }

    /// Starts `program` in the same way.
    pub fn start_program(program: &Path, arguments: impl FnOnce(&Path) -> Vec<String>) -> Self {
        // Not below /tmp, which commands may write to.
        let base = if as_user::is_root() { "/run" } else { env!("CARGO_TARGET_TMPDIR") };
        let directory = tempfile::tempdir_in(base).expect("a directory");
        for name in ["", "ipc", "ipc/tools", "workspace"] {
            let path = directory.path().join(name);
            fs::create_dir_all(&path).expect("a directory");
            if as_user::is_root() {
                let owner = Some(as_user::ORDINARY);
                chown(&path, owner, owner).expect("a directory of the sidecar's");
                // As a pod's fsGroup does: what we write there belongs to the sidecar's group.
                fs::set_permissions(&path, PermissionsExt::from_mode(0o2770)).expect("a mode");
            }
        }
        let copy = as_user::readable_copy(program, directory.path()).expect("a copy of the binary");
        let child = as_user::command(as_user::ORDINARY, copy)
            .args(arguments(directory.path()))
            .args(["--log-level", "error"])
            .env("SKILL_TOKEN", super::TOKEN)
            .stdin(Stdio::null())
            .spawn()
            .expect("the sidecar starts");
        Self { child, directory }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().expect("a pid")
    }

    /// Memory of the sidecar and its helpers, in MiB.
    pub fn resident_of_all(&self) -> f64 {
        let all = processes::tree_of(self.pid());
        mebibytes(all.into_iter().filter_map(processes::resident_bytes).sum())
    }

    /// Memory of the sidecar alone, in MiB.
    pub fn resident(&self) -> f64 {
        mebibytes(processes::resident_bytes(self.pid()).expect("it lives"))
    }

    /// How often any thread of the sidecar or its helpers has gone to sleep so far.
    pub fn sleeps(&self) -> u64 {
        processes::tree_of(self.pid()).into_iter().map(processes::sleeps).sum()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
