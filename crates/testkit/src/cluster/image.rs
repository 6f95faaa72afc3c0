//! Images for test pods, made from static binaries without a container engine.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};

use super::lease::{Lease, xtask};

/// An image with a shell, the usual tools, and some programs.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    programs: Vec<(String, PathBuf)>,
}

impl Image {
    /// An image with nothing but the shell and its tools. The name needs a tag other than `latest`, which a node would
    /// try to pull.
    pub fn with_shell(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            programs: Vec::new(),
        }
    }

    /// Adds a static program as `/bin/<its file name>`.
    #[must_use]
    pub fn with_program(mut self, program: &Path) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        self.programs
            .push((format!("bin/{name}"), program.to_owned()));
        self
    }

    /// What a pod names.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn import(&self, lease: &Lease) -> Result<()> {
        static LOADED: LazyLock<Mutex<HashSet<(String, String)>>> = LazyLock::new(Mutex::default);
        // Held during the import: the second test waits for the first's.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (lease.name.clone(), self.name.clone());
        if loaded.contains(&key) {
            return Ok(());
        }
        let folder = tempfile::tempdir().context("creating a folder for the image")?;
        let archive = folder.path().join("image.tar");
        let mut write = xtask()?;
        write
            .args([
                "kube",
                "image",
                &self.name,
                "--shell",
                "--entrypoint",
                "/bin/sh",
                "--out",
            ])
            .arg(&archive);
        for (inside, file) in &self.programs {
            write
                .arg("--add")
                .arg(format!("{inside}={}", file.display()));
        }
        let mut import = xtask()?;
        import
            .args(["kube", "import", "--name", &lease.name])
            .arg(&archive);
        for mut step in [write, import] {
            let output = step.output().context("starting cargo xtask kube")?;
            if !output.status.success() {
                bail!(
                    "image {}: {}",
                    self.name,
                    String::from_utf8_lossy(&output.stderr).trim()
                );
            }
        }
        loaded.insert(key);
        Ok(())
    }
}
