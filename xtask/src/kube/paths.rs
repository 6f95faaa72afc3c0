//! Where things are: the pins in the tree, everything else in one folder outside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Overrides the folder outside the tree.
pub const ROOT_VARIABLE: &str = "SYMPOZIUM_KUBE_ROOT";

/// The folder outside the tree: `parts/` holds built binaries, `clusters/` the state of clusters.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// `$SYMPOZIUM_KUBE_ROOT`, else `sympozium/kube` below the user's cache folder.
    pub fn find() -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set(ROOT_VARIABLE)
            .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("sympozium/kube")))
            .or_else(|| set("HOME").map(|home| home.join(".cache/sympozium/kube")))
            .with_context(|| format!("no cache folder is known\nhint: set HOME or {ROOT_VARIABLE}"))?;
        Self::at(&folder)
    }

    /// The given folder, created where it is missing.
    pub fn at(folder: &Path) -> Result<Self> {
        for sub in ["parts", "clusters"] {
            let path = folder.join(sub);
            fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        let folder = fs::canonicalize(folder).with_context(|| format!("cannot resolve {}", folder.display()))?;
        Ok(Self(folder))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn parts(&self) -> PathBuf {
        self.0.join("parts")
    }

    pub fn clusters(&self) -> PathBuf {
        self.0.join("clusters")
    }
}

/// The folder with the pins: `hack/kube` of the checkout that this program was built from.
pub fn pins() -> PathBuf {
    workspace().join("hack/kube")
}

/// The checkout that this program was built from.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// The folder, below the one outside the tree, with the logs of the cluster that failed last.
pub const LAST_FAILURE: &str = "last-failure";
