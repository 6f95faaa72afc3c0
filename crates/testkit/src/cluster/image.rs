//! Images for test pods, made from static binaries without a container engine.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};

use super::lease::{Lease, xtask};

/// What comes before the names of our own images in a test cluster, and their tag: one that nobody pulls.
const OUR_PREFIX: &str = "sympozium.test/";
const OUR_TAG: &str = "test";

/// An image that can be loaded into a cluster.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    /// A shell, the usual tools, and some programs, each with its path in the image.
    Programs(Vec<(String, PathBuf)>),
    /// An image that we ship.
    Ours(String),
}

impl Image {
    /// An image with nothing but the shell and its tools. The name needs a tag other than `latest`, which a node would
    /// try to pull.
    pub fn with_shell(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            content: Content::Programs(Vec::new()),
        }
    }

    /// The image `name` as `cargo xtask images` makes it.
    pub fn of_ours(name: &str) -> Self {
        Self {
            name: format!("{OUR_PREFIX}{name}:{OUR_TAG}"),
            content: Content::Ours(name.to_owned()),
        }
    }

    /// Adds a static program as `/bin/<its file name>`; an image that we ship stays as it is.
    #[must_use]
    pub fn with_program(mut self, program: &Path) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        if let Content::Programs(programs) = &mut self.content {
            programs.push((format!("bin/{name}"), program.to_owned()));
        }
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
        let mut write = xtask()?;
        let archive = match &self.content {
            Content::Programs(programs) => {
                let archive = folder.path().join("image.tar");
                write.args(["kube", "image", &self.name, "--shell"]);
                write
                    .args(["--entrypoint", "/bin/sh", "--out"])
                    .arg(&archive);
                for (inside, file) in programs {
                    write
                        .arg("--add")
                        .arg(format!("{inside}={}", file.display()));
                }
                archive
            }
            Content::Ours(name) => {
                write.args([
                    "images", name, "--prefix", OUR_PREFIX, "--tag", OUR_TAG, "--out",
                ]);
                write.arg(folder.path());
                folder.path().join(format!("{name}.tar"))
            }
        };
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
