//! Directories that hold what is made from code, and nothing else.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result};

use crate::output::line;
use crate::process::workspace_root;

/// A directory that holds what is generated, and nothing else.
pub struct Generated {
    /// Relative to the root.
    pub directory: &'static str,
    /// What writes it, for people who have to.
    pub command: &'static str,
    /// Name and text of each file.
    pub files: Vec<(String, String)>,
}

impl Generated {
    /// Writes the files, and removes others.
    pub fn write(&self) -> Result<()> {
        let directory = self.directory;
        let path = workspace_root().join(directory);
        fs::create_dir_all(&path).with_context(|| format!("creating {directory}"))?;
        for (name, text) in &self.files {
            fs::write(path.join(name), text).with_context(|| format!("writing {directory}/{name}"))?;
            line(&format!("wrote {directory}/{name}"));
        }
        for name in self.leftovers()? {
            fs::remove_file(path.join(&name)).with_context(|| format!("removing {directory}/{name}"))?;
            line(&format!("removed {directory}/{name}"));
        }
        Ok(())
    }

    /// What is not as it would be written.
    pub fn problems(&self) -> Result<Vec<String>> {
        let Self { directory, command, .. } = self;
        let mut problems = Vec::new();
        for name in self.leftovers()? {
            problems.push(format!("{directory}/{name} is made from nothing; run `cargo xtask {command}`"));
        }
        for (name, text) in &self.files {
            let path = workspace_root().join(directory).join(name);
            if fs::read_to_string(path).ok().as_ref() != Some(text) {
                problems.push(format!("{directory}/{name} is not what the code says; run `cargo xtask {command}`"));
            }
        }
        Ok(problems)
    }

    /// Files there that are none of ours.
    fn leftovers(&self) -> Result<BTreeSet<String>> {
        let directory = self.directory;
        let entries = match fs::read_dir(workspace_root().join(directory)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(BTreeSet::new());
            }
            Err(error) => return Err(error).with_context(|| format!("listing {directory}")),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            names.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        for (name, _) in &self.files {
            names.remove(name);
        }
        Ok(names)
    }
}
