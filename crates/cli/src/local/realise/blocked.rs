//! What becomes of a run where user namespaces are blocked: said, with the remedy; then it is held by what is left, or refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use sympozium_api::run_plan::Part;
use sympozium_exec::features::{Features, hint};
use sympozium_exec::{Guarantee, Layer, StartError};
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::Run;
use crate::local::bare;
use crate::local::event::Event;
use crate::local::leftovers;
use crate::local::prepared::Prepared;
use crate::local::record::Outcome;
use crate::local::volumes::Volumes;
use crate::local::worlds::{Ground, Sandbox};

/// How long what a killed sandbox left may take to end.
const ORPHANS_END: Duration = Duration::from_secs(5);
/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// What sandboxes are made from, kept until the first of them are there.
pub struct Means {
    pub prepared: Prepared,
    pub volumes: Volumes,
    pub live: PathBuf,
    pub gateway: PathBuf,
    pub program: PathBuf,
    pub proxies: BTreeMap<String, Zeroizing<String>>,
    pub workspace: Option<PathBuf>,
}

impl Means {
    pub fn ground(&self) -> Ground<'_> {
        Ground {
            prepared: &self.prepared,
            volumes: &self.volumes,
            live: &self.live,
            gateway: &self.gateway,
            program: &self.program,
            proxies: &self.proxies,
        }
    }

    fn bare(&self) -> anyhow::Result<Vec<(Part, Sandbox)>> {
        let mut sandboxes = Vec::new();
        for part in &self.prepared.plan.parts {
            let sandbox = self.ground().bare(part);
            let sandbox = sandbox.with_context(|| format!("part {} cannot be made", part.name))?;
            sandboxes.push((part.clone(), sandbox));
        }
        Ok(sandboxes)
    }
}

impl Run {
    /// The run without namespaces, where it asks for nothing that takes them. Nothing of it has started yet.
    pub(super) async fn without_namespaces(&mut self, means: &Means, error: StartError) -> Outcome {
        // Looking takes a few children and their ends.
        let remedy = tokio::task::spawn_blocking(remedy).await;
        let remedy = remedy.unwrap_or_default();
        let refused = |why: &str| Outcome::Refused {
            why: format!(
                "user namespaces are blocked on this machine ({error}), and the run cannot do without them: {why}\nhint: {remedy}"
            ),
        };
        if rustix::process::geteuid().is_root() {
            // Nothing but files would stand between a command and the machine.
            return refused("it is started as root");
        }
        let workspace = means.workspace.as_deref();
        let obstacles = bare::obstacles(&means.prepared, &means.live, workspace);
        if !obstacles.is_empty() {
            return refused(&obstacles.join("; "));
        }
        let sandboxes = match means.bare() {
            Ok(sandboxes) => sandboxes,
            Err(error) => return refused(&format!("{error:#}")),
        };
        // Where a sandbox has no init of its own, what is left of one that was killed comes to us, and not to the machine's.
        if let Err(error) = rustix::process::set_child_subreaper(Some(Pid::INIT)) {
            return refused(&error.to_string());
        }
        self.adopts = true;
        self.events.tell(Event::Warning { text: warning(&error, workspace, &remedy) });
        for (part, _) in &sandboxes {
            // Made for the first attempt; nobody has written to it.
            let log = self.directory.logs().join(format!("{}.log", part.name));
            let _ = std::fs::remove_file(log);
        }
        match self.attempt(sandboxes).await {
            Ok(outcome) => outcome,
            // Nothing in these sandboxes is a namespace.
            Err(error) => refused(&error.to_string()),
        }
    }
}

/// Ends what came to us when its sandbox was killed. What cannot be ended is told of as left over.
pub async fn end_orphans() {
    let until = Instant::now() + ORPHANS_END;
    loop {
        let orphans = leftovers::children();
        if orphans.is_empty() || Instant::now() >= until {
            return;
        }
        for pid in orphans {
            // Ours, and unreaped: the number means nobody else.
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        sleep(PAUSE).await;
    }
}

/// What is missing, what that means, and what to do.
fn warning(error: &StartError, workspace: Option<&Path>, remedy: &str) -> String {
    let missing = Guarantee::ALL.into_iter().filter(|it| !bare::holds(*it));
    let missing: Vec<&str> = missing.map(Guarantee::as_str).collect();
    let workspace = match workspace {
        Some(workspace) => format!(", and the workspace is at {}, not at /workspace", workspace.display()),
        None => String::new(),
    };
    format!(
        "user namespaces are blocked on this machine ({error}): the run is held by Landlock and seccomp alone, and not held are \
         {}; commands get no sockets at all{workspace}. To have all of it: {remedy}",
        missing.join(", ")
    )
}

/// What `sympozium doctor` says about it.
fn remedy() -> String {
    hint(Features::get(), Layer::UserNamespace)
        .unwrap_or_else(|| "`sympozium doctor` says what is in the way".to_owned())
}
