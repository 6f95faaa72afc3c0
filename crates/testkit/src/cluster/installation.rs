//! Sympozium itself in a cluster: images, definitions, manifests, as `docs/install.md` says it.
//!
//! ```no_run
//! use std::time::Duration;
//! use sympozium_testkit::cluster::{Cluster, Installation, Tier};
//!
//! # fn main() -> anyhow::Result<()> {
//! let Some(cluster) = Cluster::shared(Tier::Node)? else { return Ok(()) };
//! // `None`: the cluster is not ours to install into, and the skip is recorded.
//! let Some(installation) = Installation::shared(cluster)? else { return Ok(()) };
//! let namespace = installation.namespace("example")?;
//! # let (agent, run) = (serde_json::json!({}), serde_json::json!({}));
//! let run = installation.run_to_end(&namespace, &[agent, run], Duration::from_secs(120))?;
//! assert_eq!(run["status"]["phase"], "Succeeded");
//! # Ok(())
//! # }
//! ```
//!
//! A cluster has one installation, which all test processes of a run share: the first one installs under a lock, the
//! others find that it has. What is installed is named by a hash of everything that goes into it, so that one that is older
//! than its source is brought up to date and never used.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Read as _;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use super::image::{OUR_TAG, written_images};
use super::kubectl::DEFINITIONS;
use super::runs::is_over;
use super::{Cluster, Image, Kubectl, Namespace, Security, eventually};
use crate::static_build::{self, target_directory, workspace_root};

/// Where everything of it is.
pub const SYSTEM_NAMESPACE: &str = "sympozium-system";
/// The images of an installation: two that serve, and three that runs are made of.
pub const IMAGES: [&str; 5] =
    ["sympozium-controller", "sympozium-gateway", "agent-runner", "ipc-bridge", "skill-sidecar"];

/// Images of built-in packs. Packs name them as they are in this cluster; [`Installation::import`] brings those that a test
/// needs.
const OF_PACKS: [&str; 3] = ["skill-k8s-ops", "skill-sre-observability", "skill-incident-response"];
/// What names our images in manifests.
const REGISTRY: &str = "ghcr.io/sympozium-ai/sympozium/";
/// What is applied after the kinds.
const MANIFESTS: &[&str] = &["config/install", "config/skillpacks"];
const FLOOR: &str = "config/policies/floor.yaml";
/// How the controller is told to wait for less than it usually does. It counts from the creation of a run, which it may
/// see late on a busy machine, and what the run names later still.
const SHORT_PATIENCE: &str = "--patience=60";
/// Says what is installed, for the next process.
const MARKER: &str = "sympozium-test-installation";
/// The programs that have to serve.
pub const DEPLOYMENTS: [&str; 2] = ["sympozium-controller", "sympozium-gateway"];
/// How long all of it may take to serve, on a busy machine. A pod that waits for a Secret is looked at again after two
/// minutes at most.
const PATIENCE: Duration = Duration::from_secs(300);
/// Lines of a log that are shown.
const LOG_LINES: &str = "--tail=200";

/// Sympozium, installed and serving.
#[derive(Debug)]
pub struct Installation<'c> {
    cluster: &'c Cluster,
    /// The tag of its images.
    tag: String,
}

/// How manifests differ from what is shipped, besides the names of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settings {
    /// Not at all.
    Shipped,
    /// A run that names what is not there is denied while its test still waits.
    ShortPatience,
}

impl Installation<'static> {
    /// The installation of a cluster, made if it is not there; `None` and a recorded skip on a cluster that is not ours.
    ///
    /// # Errors
    ///
    /// When something cannot be built, is refused, or does not serve in time; the message has the programs' logs.
    pub fn shared(cluster: &'static Cluster) -> Result<Option<&'static Self>> {
        static KNOWN: LazyLock<Mutex<HashMap<String, &'static Installation<'static>>>> = LazyLock::new(Mutex::default);
        let Some(lease) = cluster.internals("installation of our own") else {
            return Ok(None);
        };
        // Held meanwhile: the other tests of this process wait.
        let mut known = KNOWN.lock();
        if let Some(installation) = known.get(&lease.name) {
            return Ok(Some(installation));
        }
        let sources = Sources::read()?;
        let installation = Self { cluster, tag: sources.tag.clone() };
        {
            let _lock = lock(&lease.name)?;
            if installation.installed()?.as_deref() != Some(&sources.key) {
                installation.install(&sources, Settings::ShortPatience)?;
            }
        }
        let installation = &*Box::leak(Box::new(installation));
        known.insert(lease.name.clone(), installation);
        Ok(Some(installation))
    }
}

impl<'c> Installation<'c> {
    /// An installation of `config/install` as it is shipped, the names of images apart, in a cluster that has none: one that the
    /// test has for itself. Every Deployment is ready when this returns. `None` and a recorded skip on a cluster that is not ours.
    ///
    /// # Errors
    ///
    /// As [`Installation::shared`].
    pub fn shipped(cluster: &'c Cluster) -> Result<Option<Self>> {
        if cluster.internals("installation of our own").is_none() {
            return Ok(None);
        }
        let sources = Sources::read()?;
        let installation = Self { cluster, tag: sources.tag.clone() };
        installation.install(&sources, Settings::Shipped)?;
        Ok(Some(installation))
    }

    /// The cluster that it is in.
    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }

    /// The cluster's administrator, in the system namespace.
    pub fn system(&self) -> Kubectl {
        self.cluster.kubectl().in_namespace(SYSTEM_NAMESPACE)
    }

    /// An image of ours, as pods of this cluster name it.
    pub fn image(&self, name: &str) -> String {
        Image::of_ours_tagged(name, &self.tag).name().to_owned()
    }

    /// Loads another image of ours, such as `skill-k8s-ops`, and gives its name.
    ///
    /// # Errors
    ///
    /// When it cannot be built or imported.
    pub fn import(&self, name: &str) -> Result<String> {
        let image = Image::of_ours_tagged(name, &self.tag);
        self.cluster.import(&image)?;
        Ok(image.name().to_owned())
    }

    /// A namespace for runs, as strict as namespaces get.
    ///
    /// # Errors
    ///
    /// When the API server refuses it.
    pub fn namespace(&self, label: &str) -> Result<Namespace> {
        self.cluster.namespace(label, Security::Restricted)
    }

    /// Creates `manifests` in the namespace, one of which is an AgentRun, and waits until that is over and nothing of it is
    /// left: `Revoked` is true, or it was never given anything. Gives it as it is then.
    ///
    /// # Errors
    ///
    /// When something is refused, or the run is not over in time; the message has its status, the namespace's pods and
    /// events, and the programs' logs.
    pub fn run_to_end(&self, namespace: &Namespace, manifests: &[Value], patience: Duration) -> Result<Value> {
        let run = manifests.iter().find(|it| it["kind"] == "AgentRun");
        let name = run.and_then(|it| it["metadata"]["name"].as_str());
        let name = name.context("no AgentRun with a name among the manifests")?;
        for manifest in manifests {
            namespace.create(manifest)?;
        }
        self.wait_for_end(namespace, name, patience)
    }

    /// As [`Installation::run_to_end`], of a run that is there.
    ///
    /// # Errors
    ///
    /// As [`Installation::run_to_end`].
    pub fn wait_for_end(&self, namespace: &Namespace, name: &str, patience: Duration) -> Result<Value> {
        let outcome = eventually(&format!("run {name} to be over"), patience, || {
            let run = namespace.kubectl().json(&["get", "agentrun", name])?;
            Ok(is_over(&run).then_some(run))
        });
        outcome.or_else(|error| bail!("{error:#}\n{}", self.evidence(namespace, name)))
    }

    /// What the programs said last, for failures.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in DEPLOYMENTS {
            let selector = format!("app.kubernetes.io/name={name}");
            let arguments = ["logs", "--selector", &selector, "--prefix", LOG_LINES, "--ignore-errors"];
            text.push_str(&printed(&self.system(), &arguments));
        }
        text
    }

    fn evidence(&self, namespace: &Namespace, run: &str) -> String {
        let mut text = String::new();
        for arguments in [
            &["get", "agentrun", run, "-o", "yaml"][..],
            &["get", "jobs,pods", "-o", "wide"],
            &["get", "events", "--sort-by=.lastTimestamp"],
        ] {
            text.push_str(&printed(namespace.kubectl(), arguments));
        }
        text + &self.logs()
    }

    /// What the marker says.
    fn installed(&self) -> Result<Option<String>> {
        let found =
            self.system().attempt(&["get", "configmap", MARKER, "--ignore-not-found", "-o", "jsonpath={.data.key}"])?;
        Ok((found.success && !found.stdout.is_empty()).then_some(found.stdout))
    }

    fn install(&self, sources: &Sources, settings: Settings) -> Result<()> {
        for name in IMAGES {
            self.import(name)?;
        }
        self.cluster.kubectl().install_kinds()?;
        for (file, text) in &sources.manifests {
            let folder = tempfile::tempdir().context("making a folder for manifests")?;
            let path = folder.path().join("manifest.yaml");
            fs::write(&path, self.for_this_cluster(text, settings)).context("writing a manifest")?;
            let path = path.to_string_lossy();
            let arguments = ["apply", "--server-side", "--force-conflicts", "-f", &path];
            // Packs name no namespace; what is installed names its own.
            let kubectl = if text.contains("kind: SkillPack") { self.system() } else { self.cluster.kubectl() };
            kubectl.run(&arguments).with_context(|| file.clone())?;
        }
        for name in DEPLOYMENTS {
            self.wait_until_ready(name)?;
        }
        let marker = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": MARKER }, "data": { "key": sources.key },
        });
        self.system().apply(&marker).context("marking what is installed")
    }

    /// Waits until a Deployment is as its manifest says, and serves.
    ///
    /// # Errors
    ///
    /// When it does not in time; the message has its pods and what they said.
    pub fn wait_until_ready(&self, name: &str) -> Result<()> {
        let outcome = eventually(&format!("{name} to serve"), PATIENCE, || {
            let object = self.system().json(&["get", "deployment", name])?;
            let count = |field: &str| object["status"][field].as_u64().unwrap_or_default();
            let wanted = object["spec"]["replicas"].as_u64().unwrap_or_default();
            let current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            let all = ["replicas", "updatedReplicas", "readyReplicas"];
            Ok((current && all.iter().all(|field| count(field) == wanted)).then_some(()))
        });
        outcome.or_else(|error| {
            let pods = printed(&self.system(), &["describe", "pods"]);
            let tail: Vec<_> = pods.lines().rev().take(60).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            bail!("{error:#}\n{}\n{}", tail.join("\n"), self.logs())
        })
    }

    /// A manifest as this cluster needs it: with its images in the place of those that we publish.
    fn for_this_cluster(&self, text: &str, settings: Settings) -> String {
        let mut text = text.to_owned();
        for name in IMAGES.into_iter().chain(OF_PACKS) {
            let published = format!("{REGISTRY}{name}:{}", env!("CARGO_PKG_VERSION"));
            text = text.replace(&published, &self.image(name));
        }
        match settings {
            Settings::Shipped => text,
            Settings::ShortPatience => {
                text.replace("- --agent-image=", &format!("- {SHORT_PATIENCE}\n        - --agent-image="))
            }
        }
    }
}

/// What a call printed, with its name, for people.
fn printed(kubectl: &Kubectl, arguments: &[&str]) -> String {
    let text = match kubectl.attempt(arguments) {
        Ok(printed) => format!("{}{}", printed.stdout, printed.stderr),
        Err(error) => format!("{error:#}"),
    };
    format!("--- kubectl {}\n{text}\n", arguments.join(" "))
}

/// One process installs at a time; the kernel drops the lock with its holder.
fn lock(cluster: &str) -> Result<File> {
    let folder = target_directory().join("static");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(format!("install-{cluster}.lock"));
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// Everything that goes into an installation.
struct Sources {
    /// The tag of images: a hash of the programs in them, unless they were written before.
    tag: String,
    /// Files and their texts, in the order in which they are applied.
    manifests: Vec<(String, String)>,
    /// A hash of all of it.
    key: String,
}

impl Sources {
    fn read() -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        for (_, program) in static_build::PROGRAMS {
            let path = static_build::program(program)?;
            let mut content = Vec::new();
            File::open(&path)
                .and_then(|mut file| file.read_to_end(&mut content))
                .with_context(|| format!("reading {}", path.display()))?;
            hasher.write(&content);
        }
        let programs = format!("t{:016x}", hasher.finish());
        let mut manifests = Vec::new();
        for directory in MANIFESTS {
            manifests.extend(texts(&workspace_root().join(directory))?);
        }
        let floor = workspace_root().join(FLOOR);
        let text = fs::read_to_string(&floor).with_context(|| format!("reading {FLOOR}"))?;
        manifests.push((FLOOR.to_owned(), text));
        for (_, text) in texts(&workspace_root().join(DEFINITIONS))?.iter().chain(&manifests) {
            hasher.write(text.as_bytes());
        }
        let key = format!("{programs}-{:016x}", hasher.finish());
        let tag = match written_images() {
            Some(_) => OUR_TAG.to_owned(),
            None => programs,
        };
        Ok(Self { tag, manifests, key })
    }
}

/// The manifests of a directory with their paths, in the order of names.
fn texts(directory: &Path) -> Result<Vec<(String, String)>> {
    let entries = fs::read_dir(directory)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("listing {}", directory.display()))?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            Ok((path.display().to_string(), text))
        })
        .collect()
}
