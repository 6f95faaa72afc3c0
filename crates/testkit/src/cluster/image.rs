//! Images for test pods, made from static binaries without a container engine.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;

use super::lease::{Lease, xtask};
use crate::static_build;

/// What comes before the names of our own images in a test cluster, and their tag: one that is never pulled.
const OUR_PREFIX: &str = "sympozium.test/";
pub(super) const OUR_TAG: &str = "test";
/// Names the directory with the archives of our images, made of the programs that are tested: `cargo xtask test` writes them
/// before any test runs.
const IMAGES_DIRECTORY: &str = "SYMPOZIUM_IMAGES";

/// The directory with the archives of our images, where they were written before.
pub(super) fn written_images() -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os(IMAGES_DIRECTORY)?);
    directory.is_dir().then_some(directory)
}

/// An image that can be loaded into a cluster.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    /// A shell, the usual tools, and some programs, each with its path in the image; and what is started.
    Programs(Vec<(String, PathBuf)>, Vec<String>),
    /// These files, each with its path in the image, and what is started.
    Files(Vec<(String, PathBuf)>, Vec<String>),
    /// An image that we ship, with its tag.
    Ours { name: String, tag: String },
}

impl Image {
    /// An image with nothing but the shell and its tools. The name needs a tag other than `latest`, which a node would
    /// try to pull.
    pub fn with_shell(name: &str) -> Self {
        Self { name: name.to_owned(), content: Content::Programs(Vec::new(), vec!["/bin/sh".to_owned()]) }
    }

    /// An image with nothing in it but what is added, that starts this. Everything is on the path in `/bin`.
    pub fn of_files(name: &str, entrypoint: &[&str]) -> Self {
        let entrypoint = entrypoint.iter().map(|word| (*word).to_owned());
        Self { name: name.to_owned(), content: Content::Files(Vec::new(), entrypoint.collect()) }
    }

    /// Adds a file; an image that we ship stays as it is.
    #[must_use]
    pub fn with_file(mut self, inside: &str, file: &Path) -> Self {
        if let Content::Programs(files, _) | Content::Files(files, _) = &mut self.content {
            files.push((inside.to_owned(), file.to_owned()));
        }
        self
    }

    /// The image `name` as `cargo xtask images` makes it, with programs that were built for tests.
    pub fn of_ours(name: &str) -> Self {
        Self::of_ours_tagged(name, OUR_TAG)
    }

    /// As [`Image::of_ours`], with a tag of its own.
    pub fn of_ours_tagged(name: &str, tag: &str) -> Self {
        Self {
            name: format!("{OUR_PREFIX}{name}:{tag}"),
            content: Content::Ours { name: name.to_owned(), tag: tag.to_owned() },
        }
    }

    /// Adds a static program as `/bin/<its file name>`; an image that we ship stays as it is.
    #[must_use]
    pub fn with_program(mut self, program: &Path) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        if let Content::Programs(programs, _) = &mut self.content {
            programs.push((format!("bin/{name}"), program.to_owned()));
        }
        self
    }

    /// Has it start this, and not the shell; an image that we ship stays as it is.
    #[must_use]
    pub fn starting(mut self, words: &[&str]) -> Self {
        if let Content::Programs(_, entrypoint) | Content::Files(_, entrypoint) = &mut self.content {
            *entrypoint = words.iter().map(|word| (*word).to_owned()).collect();
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
        let mut loaded = LOADED.lock();
        let key = (lease.name.clone(), self.name.clone());
        if loaded.contains(&key) {
            return Ok(());
        }
        let folder = tempfile::tempdir().context("creating a folder for the image")?;
        let archive = match (&self.content, written_images()) {
            (Content::Ours { name, tag }, Some(directory)) if tag == OUR_TAG => directory.join(format!("{name}.tar")),
            _ => self.write(folder.path())?,
        };
        let mut import = xtask()?;
        import.args(["kube", "import", "--name", &lease.name]).arg(&archive);
        self.perform(import)?;
        loaded.insert(key);
        Ok(())
    }

    /// Writes the archive into a folder, and gives its path.
    fn write(&self, folder: &Path) -> Result<PathBuf> {
        let mut write = xtask()?;
        let archive = match &self.content {
            Content::Programs(files, entrypoint) | Content::Files(files, entrypoint) => {
                let archive = folder.join("image.tar");
                write.args(["kube", "image", &self.name, "--out"]).arg(&archive);
                if matches!(self.content, Content::Programs(..)) {
                    write.arg("--shell");
                }
                for word in entrypoint {
                    write.arg(format!("--entrypoint={word}"));
                }
                for (inside, file) in files {
                    write.arg("--add").arg(format!("{inside}={}", file.display()));
                }
                archive
            }
            Content::Ours { name, tag } => {
                write.args(["images", name, "--prefix", OUR_PREFIX, "--tag", tag, "--out"]);
                write.arg(folder);
                for (_, program) in static_build::PROGRAMS {
                    let file = static_build::program(program)?;
                    write.arg("--binary").arg(format!("{program}={}", file.display()));
                }
                folder.join(format!("{name}.tar"))
            }
        };
        self.perform(write)?;
        Ok(archive)
    }

    fn perform(&self, mut step: Command) -> Result<()> {
        let output = step.output().context("starting cargo xtask")?;
        if !output.status.success() {
            bail!("image {}: {}", self.name, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}
