//! A real Kubernetes for tests, shared by the tests of one run.
//!
//! ```no_run
//! use sympozium_testkit::cluster::{Cluster, Security, Tier};
//!
//! # fn main() -> anyhow::Result<()> {
//! // `None`: this machine cannot run it, and the skip is recorded.
//! let Some(cluster) = Cluster::shared(Tier::ControlPlane)? else { return Ok(()) };
//! let namespace = cluster.namespace("example", Security::Restricted)?;
//! namespace.kubectl().run(&["get", "serviceaccounts"])?;
//! # Ok(())
//! # }
//! ```
//!
//! The first test of a run that asks for a tier starts a cluster of it (`cargo xtask kube lease`); the others, in this
//! process or another, find that one. Everybody holds a shared lock on its lease, which the kernel drops with the
//! process; a cluster whose lease is free for a while ends by itself. So nothing has to be cleaned up, and a killed
//! test run leaves nothing.
//!
//! With `SYMPOZIUM_TEST_KUBECONFIG` set, the cluster it names is used instead; tests that need the node's internals
//! (image import, audit log) are then skipped and counted.

#[cfg(feature = "kube")]
pub mod api;
mod audit;
#[cfg(feature = "kube")]
pub mod controller;
#[cfg(feature = "kube")]
mod direct;
mod exclusivity;
pub mod faults;
mod image;
mod installation;
mod kubectl;
mod lease;
mod namespace;
#[cfg(feature = "kube")]
pub mod played;
mod public_name;
pub mod runs;
#[cfg(feature = "kube")]
pub mod samples;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;

use self::kubectl::Route;

pub use audit::{AuditLog, Call, Mark};
pub use exclusivity::Exclusivity;
pub use image::Image;
pub use installation::{DEPLOYMENTS, Installation, SYSTEM_NAMESPACE};
pub use kubectl::{Kubectl, Printed};
pub use lease::xtask;
pub use namespace::{Namespace, Security};
pub use public_name::PublicName;

/// Names a kubeconfig: use that cluster instead of one of our own.
pub const KUBECONFIG_VARIABLE: &str = "SYMPOZIUM_TEST_KUBECONFIG";
/// Names the tier that one cluster is started with for every test that it covers, instead of one cluster per tier.
pub const TIER_VARIABLE: &str = "SYMPOZIUM_TEST_TIER";

/// How much of Kubernetes a test needs. Ask for the least: it is there sooner, and on more machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// API server, etcd, controller manager. No pod ever runs.
    ControlPlane,
    /// Also a node: pods run, Services work, NetworkPolicies are enforced.
    Node,
    /// Also gVisor, as RuntimeClass `gvisor`.
    Gvisor,
    /// Also the agent-sandbox controller and its kinds.
    AgentSandbox,
}

impl Tier {
    /// The name of the tier for `cargo xtask kube`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Node => "node",
            Self::Gvisor => "node+gvisor",
            Self::AgentSandbox => "node+gvisor+agent-sandbox",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::ControlPlane, Self::Node, Self::Gvisor, Self::AgentSandbox].into_iter().find(|tier| tier.name() == name)
    }
}

/// A cluster that is ready.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    own: Option<lease::Lease>,
}

impl Cluster {
    /// The cluster that the tests of this run share for `tier`, or `None` and a recorded skip when there can be none.
    ///
    /// # Errors
    ///
    /// When there should be one and is not: a failed build or start, or no Go toolchain.
    pub fn shared(tier: Tier) -> Result<Option<&'static Self>> {
        Self::cached(tier, None, || Self::find(tier))
    }

    /// A control plane that only the callers with this label share, with our kinds in it: a controller works on a whole
    /// cluster, and acts on the objects of every other test there. On a given cluster, that one. `None` and a recorded skip
    /// when there can be none.
    ///
    /// # Errors
    ///
    /// As [`Cluster::shared`], and when the API server refuses our kinds.
    pub fn with_kinds(label: &'static str) -> Result<Option<&'static Self>> {
        let tier = Tier::ControlPlane;
        Self::cached(tier, Some(label), || {
            let found = match std::env::var_os(KUBECONFIG_VARIABLE) {
                Some(kubeconfig) => Self::existing(PathBuf::from(kubeconfig), tier)?,
                None => match lease::take(tier, Some(label))? {
                    Ok(lease) => Ok(Self::leased(lease)?),
                    Err(missing) => Err(missing),
                },
            };
            if let Ok(cluster) = &found {
                cluster.kubectl().install_kinds()?;
            }
            Ok(found)
        })
    }

    /// The cluster of this process for a tier and a label.
    fn cached(
        tier: Tier,
        label: Option<&'static str>,
        find: impl FnOnce() -> Result<Result<Self, String>>,
    ) -> Result<Option<&'static Self>> {
        type Key = (Tier, Option<&'static str>);
        type Found = Mutex<Option<Result<&'static Cluster, String>>>;
        static CLUSTERS: LazyLock<Mutex<HashMap<Key, Arc<Found>>>> = LazyLock::new(Mutex::default);
        let found = Arc::clone(CLUSTERS.lock().entry((tier, label)).or_default());
        // Held during the start: the other tests of this process wait for it instead of starting their own.
        let mut found = found.lock();
        let found = match &*found {
            Some(found) => found,
            // A process has as many clusters as there are tiers and labels, for as long as it lives.
            None => found.insert(find()?.map(|cluster| &*Box::leak(Box::new(cluster)))),
        };
        match found {
            Ok(cluster) => Ok(Some(*cluster)),
            Err(missing) => {
                crate::skips::record(missing);
                Ok(None)
            }
        }
    }

    /// A cluster that only the callers with this label share, for tests that must be alone: whatever watches a whole
    /// cluster disturbs others there. `None` and a recorded skip when there can be none, and on a given cluster.
    ///
    /// # Errors
    ///
    /// As [`Cluster::shared`].
    pub fn apart(tier: Tier, label: &str) -> Result<Option<Self>> {
        if std::env::var_os(KUBECONFIG_VARIABLE).is_some() {
            crate::skips::record("no cluster apart when one is given");
            return Ok(None);
        }
        match lease::take(tier, Some(label))? {
            Ok(lease) => Self::leased(lease).map(Some),
            Err(missing) => {
                crate::skips::record(&missing);
                Ok(None)
            }
        }
    }

    /// The inner error is what this machine, or the cluster we were told to use, lacks.
    fn find(tier: Tier) -> Result<Result<Self, String>> {
        if let Some(kubeconfig) = std::env::var_os(KUBECONFIG_VARIABLE) {
            return Self::existing(PathBuf::from(kubeconfig), tier);
        }
        let preferred = std::env::var(TIER_VARIABLE).ok().and_then(|name| Tier::from_name(&name));
        if let Some(preferred) = preferred.filter(|preferred| *preferred > tier)
            && let Ok(lease) = lease::take(preferred, None)?
        {
            return Self::leased(lease).map(Ok);
        }
        match lease::take(tier, None)? {
            Ok(lease) => Self::leased(lease).map(Ok),
            Err(missing) => Ok(Err(missing)),
        }
    }

    fn leased(lease: lease::Lease) -> Result<Self> {
        let kubectl = lease.program("kubectl").context("the test cluster comes without kubectl")?;
        Ok(Self { kubeconfig: lease.kubeconfig.clone(), kubectl, own: Some(lease) })
    }

    fn existing(kubeconfig: PathBuf, tier: Tier) -> Result<Result<Self, String>> {
        let cluster = Self { kubeconfig, kubectl: PathBuf::from("kubectl"), own: None };
        let kubectl = cluster.kubectl();
        kubectl
            .run(&["version"])
            .with_context(|| format!("{KUBECONFIG_VARIABLE} names a cluster that does not answer"))?;
        let needs: &[(&str, &str)] = match tier {
            Tier::ControlPlane => &[],
            Tier::Node => &[("nodes", "node")],
            Tier::Gvisor => &[("runtimeclass/gvisor", "RuntimeClass gvisor")],
            Tier::AgentSandbox => &[("crd/sandboxclaims.extensions.agents.x-k8s.io", "agent-sandbox")],
        };
        for (object, name) in needs {
            let there = kubectl.attempt(&["get", object, "-o", "name"])?;
            if !there.success || there.stdout.trim().is_empty() {
                return Ok(Err(format!("the given cluster has no {name}")));
            }
        }
        Ok(Ok(cluster))
    }

    /// Whether it was started for these tests, and ends with them.
    pub fn is_ours(&self) -> bool {
        self.own.is_some()
    }

    /// For clients other than `kubectl`.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The cluster's administrator, in no namespace of its own.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubectl, &self.kubeconfig, Route::Direct)
    }

    /// A namespace for one test, removed when it is dropped. `label` is for people who look at the cluster.
    ///
    /// # Errors
    ///
    /// When the API server refuses it, or its service account does not come.
    pub fn namespace(&self, label: &str, security: Security) -> Result<Namespace> {
        Namespace::open(self, label, security)
    }

    /// Who called what since the cluster was started; `None` and a recorded skip on a cluster that is not ours.
    pub fn audit(&self) -> Option<AuditLog> {
        self.internals("audit log").map(|lease| AuditLog::new(lease.audit_log.clone(), self.kubectl()))
    }

    /// The address at which the cluster's API server and pods reach a server of the test; `None` and a recorded skip
    /// on a cluster that is not ours.
    pub fn host_address(&self) -> Option<Ipv4Addr> {
        self.internals("way from the cluster to the test").map(|lease| lease.host_address)
    }

    /// Has the cluster's name server answer `name`, one of the public network such as `api.openai.com`, with a public address of
    /// this cluster's own, for as long as the guard is held. The address answers once
    /// [`Namespace::lead`] leads it to a server. `None` and a recorded skip on a cluster that is not ours.
    ///
    /// Safe for tests that run side by side: a name belongs to one test at a time, in all processes, and this waits for it. To
    /// avoid deadlocks, take a name after every other guard that tests wait for.
    ///
    /// # Errors
    ///
    /// When the name server does not answer with it in time.
    pub fn public_name(&self, name: &str) -> Result<Option<PublicName>> {
        self.internals("name server of our own").map(|lease| PublicName::take(lease, name)).transpose()
    }

    /// Loads an image into the node; `false` and a recorded skip on a cluster that is not ours. Images that this
    /// process loaded before are not loaded again.
    ///
    /// # Errors
    ///
    /// When it cannot be built or imported.
    pub fn import(&self, image: &Image) -> Result<bool> {
        match self.internals("import of images") {
            Some(lease) => image.import(lease).map(|()| true),
            None => Ok(false),
        }
    }

    /// The folder of the node's `/var/lib` on this machine, where volumes of pods are; `None` and a recorded skip on a cluster
    /// that is not ours.
    pub fn node_folder(&self) -> Option<PathBuf> {
        let lease = self.internals("folder of the node")?;
        let state = lease.kubeconfig.ancestors().nth(2)?;
        Some(state.join("var/lib"))
    }

    /// Runs a command as root of the node, with the cluster's programs (`ctr`) on its path; `None` and a recorded skip on a
    /// cluster that is not ours.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn on_node(&self, arguments: &[&str]) -> Result<Option<Printed>> {
        let Some(lease) = self.internals("way into the node") else {
            return Ok(None);
        };
        let mut command = xtask()?;
        command.args(["kube", "exec", "--name", &lease.name, "--"]).args(arguments);
        let output = command.output().context("starting cargo xtask kube")?;
        Ok(Some(Printed {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }))
    }

    fn internals(&self, what: &str) -> Option<&lease::Lease> {
        if self.own.is_none() {
            crate::skips::record(&format!("no {what} on the given cluster"));
        }
        self.own.as_ref()
    }
}

/// Bounds of the pause between two questions of [`eventually`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Asks until there is an answer, for at most `patience`.
///
/// # Errors
///
/// When there is none by then; the message has `what` and the last failure.
pub fn eventually<T>(what: &str, patience: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        let asked = Instant::now();
        let last = ask();
        if let Ok(Some(answer)) = last {
            return Ok(answer);
        }
        // A question is mostly a process, and several tests ask at once: what they wait for needs the processors more.
        let pause = (asked.elapsed() * 3).clamp(MIN_PAUSE, MAX_PAUSE);
        if Instant::now() > deadline {
            let detail = last.err().map(|error| format!(": {error:#}")).unwrap_or_default();
            bail!("waited {} s for {what}{detail}", patience.as_secs());
        }
        std::thread::sleep(pause);
    }
}
