//! Writes container images without a container engine: one layer of static binaries in a docker-archive.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use tar::{Builder, EntryType};

use super::config::PAUSE_IMAGE;
use crate::images::busybox;
use crate::images::tree::{append_file, digest, header};

/// What an image is made of.
#[derive(Debug, Default)]
pub struct Image {
    /// Name and tag.
    pub name: String,
    /// Path in the image, and the file on the machine that it is a copy of.
    pub files: Vec<(String, PathBuf)>,
    /// Path in the image, and what it points to.
    pub links: Vec<(String, String)>,
    /// Folders that must be there, writable by every user.
    pub folders: Vec<String>,
    pub entrypoint: Vec<String>,
}

impl Image {
    /// The image that keeps a pod's namespaces: it needs to do nothing, for long.
    pub fn pause() -> Result<Self> {
        Ok(Self {
            name: PAUSE_IMAGE.to_owned(),
            files: vec![("busybox".to_owned(), busybox()?)],
            entrypoint: ["/busybox", "sleep", "2147483647"].map(str::to_owned).to_vec(),
            ..Self::default()
        })
    }

    /// Adds a shell and the usual tools.
    pub fn add_shell(&mut self) -> Result<()> {
        self.files.push(("bin/busybox".to_owned(), busybox()?));
        let tools = ["sh", "cat", "chmod", "cp", "date", "echo", "env", "grep", "head", "hostname", "id", "kill", "ls"];
        let more =
            ["mkdir", "mv", "nc", "ps", "rm", "sed", "sleep", "sort", "stat", "tail", "test", "touch", "true", "wc"];
        let rest = [
            "awk", "basename", "cut", "dd", "dirname", "find", "ln", "mkfifo", "mktemp", "od", "printf", "pwd",
            "rmdir", "seq", "setsid", "sync", "timeout", "tr", "uname", "xargs", "yes",
        ];
        for tool in tools.iter().chain(&more).chain(&rest) {
            self.links.push((format!("bin/{tool}"), "busybox".to_owned()));
        }
        self.folders.push("tmp".to_owned());
        Ok(())
    }

    /// Writes the archive. The same content gives the same bytes: no times, no order by chance.
    pub fn write(&self, path: &Path) -> Result<()> {
        let layer = self.layer().with_context(|| format!("cannot pack {}", self.name))?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
        })
        .to_string();
        let config_name = format!("{}.json", digest(config.as_bytes()));
        let manifest = json!([{"Config": config_name, "RepoTags": [self.name], "Layers": ["layer.tar"]}]).to_string();

        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut archive = Builder::new(file);
        for (name, content) in [
            ("layer.tar", layer.as_slice()),
            (config_name.as_str(), config.as_bytes()),
            ("manifest.json", manifest.as_bytes()),
        ] {
            append_file(&mut archive, name, 0o644, content)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        archive.finish().with_context(|| format!("cannot write {}", path.display()))
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Builder::new(Vec::new());
        for folder in &self.folders {
            let mut header = header(EntryType::Directory, 0, 0o1777);
            layer.append_data(&mut header, format!("{folder}/"), std::io::empty())?;
        }
        for (name, source) in &self.files {
            let content = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
            append_file(&mut layer, name, 0o755, &content)?;
        }
        for (name, target) in &self.links {
            layer.append_link(&mut header(EntryType::Symlink, 0, 0o777), name, target)?;
        }
        Ok(layer.into_inner()?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_archive_names_its_config_and_layer_by_digest_and_is_reproducible() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "content").unwrap();
        let image = Image {
            name: "example.test/a:1".to_owned(),
            files: vec![("bin/program".to_owned(), program)],
            links: vec![("bin/alias".to_owned(), "program".to_owned())],
            folders: vec!["tmp".to_owned()],
            entrypoint: vec!["/bin/program".to_owned()],
        };
        let (first, second) = (folder.path().join("1.tar"), folder.path().join("2.tar"));
        image.write(&first).unwrap();
        image.write(&second).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());

        let mut entries = std::collections::HashMap::new();
        for entry in tar::Archive::new(File::open(&first).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            entries.insert(entry.path().unwrap().display().to_string(), content);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&entries["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "example.test/a:1");
        let config_name = manifest[0]["Config"].as_str().unwrap();
        assert_eq!(config_name, format!("{}.json", digest(&entries[config_name])));
        let config: serde_json::Value = serde_json::from_slice(&entries[config_name]).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", digest(&entries["layer.tar"])));
    }
}
