//! Image archives, written without a container engine.
//!
//! One tar archive is two formats at once: an OCI image layout (`oci-layout`, `index.json`, `blobs/`), which `ctr`, `skopeo`
//! and `podman` read, and Docker's own (`manifest.json`), which names the same blobs and which `docker load` reads.
//!
//! Layers are not compressed. A compressor's output changes with its version, and the digest of an image with it; a
//! registry's client compresses on the way anyhow.

use anyhow::Result;
use serde_json::{Value, json};
use tar::Builder;

use super::tree::{Tree, append_file, digest};

/// Nothing here was made at any time.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// What an image is, besides its files.
#[derive(Debug, Clone)]
pub struct Image {
    /// Registry, name and tag, as people write it.
    pub reference: String,
    pub architecture: &'static str,
    /// `uid:gid`
    pub user: String,
    pub working_directory: String,
    pub entrypoint: Vec<String>,
    /// `NAME=value`
    pub environment: Vec<String>,
    /// On the manifest as annotations, and on the configuration as labels, because different tools show different ones.
    pub annotations: Vec<(String, String)>,
    /// From the bottom to the top.
    pub layers: Vec<Tree>,
}

/// An image as one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Of the manifest: what a registry calls the image's digest.
    pub digest: String,
    pub bytes: Vec<u8>,
}

impl Image {
    /// Writes the archive. The same image gives the same bytes.
    pub fn to_archive(&self) -> Result<Archive> {
        let layers = self.layers.iter().map(Tree::to_tar).collect::<Result<Vec<_>>>()?;
        let config = text(&self.config(&layers));
        let manifest = text(&self.manifest(&config, &layers));
        let index = text(&self.index(&manifest));
        let docker_manifest = text(&json!([{
            "Config": blob_path(&config),
            "Layers": layers.iter().map(|layer| blob_path(layer)).collect::<Vec<_>>(),
            "RepoTags": [self.reference],
        }]));

        let mut blobs: Vec<(String, &[u8])> =
            [&config, &manifest].into_iter().chain(&layers).map(|blob| (blob_path(blob), blob.as_slice())).collect();
        blobs.sort();
        // Two equal layers are one blob.
        blobs.dedup();
        let mut archive = Builder::new(Vec::new());
        let layout = text(&json!({"imageLayoutVersion": "1.0.0"}));
        append_file(&mut archive, "oci-layout", 0o644, &layout)?;
        append_file(&mut archive, "index.json", 0o644, &index)?;
        append_file(&mut archive, "manifest.json", 0o644, &docker_manifest)?;
        for (path, content) in blobs {
            append_file(&mut archive, &path, 0o644, content)?;
        }
        Ok(Archive { digest: format!("sha256:{}", digest(&manifest)), bytes: archive.into_inner()? })
    }

    // The names in every object stand in alphabetical order: whether serde_json keeps the order or sorts depends on what
    // else is built with it, and the digest must not.

    fn config(&self, layers: &[Vec<u8>]) -> Value {
        let diff_ids: Vec<_> = layers.iter().map(|layer| name(layer)).collect();
        json!({
            "architecture": self.architecture,
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": self.environment,
                "Labels": self.annotations(),
                "User": self.user,
                "WorkingDir": self.working_directory,
            },
            "created": CREATED,
            "history": vec![json!({"created": CREATED, "created_by": "cargo xtask images"}); layers.len()],
            "os": "linux",
            "rootfs": {"diff_ids": diff_ids, "type": "layers"},
        })
    }

    fn manifest(&self, config: &[u8], layers: &[Vec<u8>]) -> Value {
        let layer = |layer: &Vec<u8>| descriptor("application/vnd.oci.image.layer.v1.tar", layer);
        json!({
            "annotations": self.annotations(),
            "config": descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": layers.iter().map(layer).collect::<Vec<_>>(),
            "mediaType": MANIFEST,
            "schemaVersion": 2,
        })
    }

    fn index(&self, manifest: &[u8]) -> Value {
        let tag = self.reference.rsplit_once(':').map_or("", |(_, tag)| tag);
        json!({
            "manifests": [{
                "annotations": {
                    // containerd takes this for the image's name as it stands.
                    "io.containerd.image.name": full_reference(&self.reference),
                    "org.opencontainers.image.ref.name": tag,
                },
                "digest": name(manifest),
                "mediaType": MANIFEST,
                "platform": {"architecture": self.architecture, "os": "linux"},
                "size": manifest.len(),
            }],
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "schemaVersion": 2,
        })
    }

    fn annotations(&self) -> Value {
        let sorted: std::collections::BTreeMap<_, _> =
            self.annotations.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        json!(sorted)
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({"digest": name(content), "mediaType": media_type, "size": content.len()})
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn name(content: &[u8]) -> String {
    format!("sha256:{}", digest(content))
}

fn blob_path(content: &[u8]) -> String {
    format!("blobs/sha256/{}", digest(content))
}

/// A reference with the registry that is meant when it names none: a kubelet asks for images by this.
fn full_reference(reference: &str) -> String {
    match reference.split_once('/') {
        None => format!("docker.io/library/{reference}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => reference.to_owned(),
        Some(_) => format!("docker.io/{reference}"),
    }
}

#[cfg(test)]
mod tests;
