//! Gets a cluster from `cargo xtask kube` and keeps it as long as this process lives.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;

use super::Tier;
use crate::static_build::{self, workspace_root};

/// Names the built xtask, to save asking cargo for it.
pub const XTASK_VARIABLE: &str = "SYMPOZIUM_XTASK";

/// Names the test run, in letters and digits: its clusters are its own.
pub const RUN_VARIABLE: &str = "SYMPOZIUM_TEST_RUN";

/// What `cargo xtask kube` exits with when the machine lacks something.
const EXIT_UNSUPPORTED: i32 = 77;
/// How its message says what.
const LACKS: &str = "this machine lacks ";
/// A cluster may end between our finding it and our taking its lease; then the next one is ours.
const ATTEMPTS: usize = 5;
/// The cluster looks at its lease for a moment, ten times a second; the lock is busy for that long.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of ours, held.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub name: String,
    pub kubeconfig: PathBuf,
    pub audit_log: PathBuf,
    pub host_address: Ipv4Addr,
    /// Where the cluster's API server and name server answer.
    pub address: Ipv4Addr,
    programs: Vec<PathBuf>,
    lease: PathBuf,
    /// The shared lock, for the life of this process.
    #[serde(skip)]
    lock: Option<File>,
}

impl Lease {
    /// A program that was built with the cluster.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        self.programs.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }
}

/// Starts or finds the cluster of this test run for a tier, or the one with a label of its own. The inner error is what the machine lacks.
pub fn take(tier: Tier, label: Option<&str>) -> Result<Result<Lease, String>> {
    for _ in 0..ATTEMPTS {
        let mut command = xtask()?;
        command.args(["kube", "lease", "--tier", tier.name(), "--name", &cluster_name(tier, label)]);
        let output = command.stdin(Stdio::null()).output().context("starting cargo xtask kube")?;
        let messages = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(EXIT_UNSUPPORTED) {
            let missing = messages.lines().find_map(|line| Some(line.split_once(LACKS)?.1));
            return Ok(Err(missing.unwrap_or("something a test cluster needs").to_owned()));
        }
        if !output.status.success() {
            bail!("cargo xtask kube lease: {}\n{messages}", output.status);
        }
        let mut lease: Lease = serde_json::from_slice(&output.stdout).context("reading the record of the cluster")?;
        if let Some(lock) = hold(&lease) {
            lease.lock = Some(lock);
            return Ok(Ok(lease));
        }
    }
    bail!("the test cluster for {} ended {ATTEMPTS} times before it could be used", tier.name())
}

/// `None` when the cluster is about to end.
fn hold(lease: &Lease) -> Option<File> {
    let file = File::open(&lease.lease).ok()?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    while flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // The lock counts only when the cluster has not been removed in the meantime.
    fs::exists(&lease.kubeconfig).unwrap_or(false).then_some(file)
}

/// One cluster per run and tier. A run without a name is known by its checkout, so that runs close to each other share.
fn cluster_name(tier: Tier, label: Option<&str>) -> String {
    let run = std::env::var(RUN_VARIABLE).unwrap_or_else(|_| {
        let mut hasher = DefaultHasher::new();
        workspace_root().hash(&mut hasher);
        format!("{:08x}", hasher.finish() >> 32)
    });
    let short = match tier {
        Tier::ControlPlane => "control",
        Tier::Node => "node",
        Tier::Gvisor => "gvisor",
        Tier::AgentSandbox => "sandbox",
    };
    match label {
        Some(label) => format!("test-{run}-{label}-{short}"),
        None => format!("test-{run}-{short}"),
    }
}

/// The project's tooling itself, not by way of cargo: a test that kills it must hit it.
///
/// # Errors
///
/// When it cannot be built.
pub fn xtask() -> Result<Command> {
    if let Some(given) = std::env::var_os(XTASK_VARIABLE) {
        return Ok(crate::command(given));
    }
    static_build::program("xtask").map(crate::command)
}
