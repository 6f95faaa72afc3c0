//! The fallback on machines that block user namespaces: the run continues in weaker sandboxes with a warning, or is
//! refused. Either way the user gets the hint of `sympozium doctor`.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use sympozium_api::Guarantee;
use sympozium_exec::features::{Features, hint};
use sympozium_exec::{Layer, StartError};
use tokio::time::{Instant, sleep};

use super::ActiveRun;
use super::assets::RunAssets;
use crate::leftovers;
use crate::unprivileged;
use sympozium_runs::Event;
use sympozium_runs::RunEnd;

/// Time for the orphans of killed sandboxes to exit.
const ORPHANS_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl ActiveRun {
    /// Runs without namespaces, if the run requires nothing that needs them. No part has started yet.
    pub(super) async fn run_without_namespaces(&mut self, assets: &RunAssets, error: StartError) -> RunEnd {
        // Probing starts child processes and waits for them.
        let remedy = tokio::task::spawn_blocking(namespaces_hint).await;
        let remedy = remedy.unwrap_or_default();
        let refused = |why: &str| RunEnd::Refused {
            why: format!(
                "user namespaces are blocked on this machine ({error}), and the run needs them: {why}\nhint: {remedy}"
            ),
        };
        if rustix::process::geteuid().is_root() {
            // Root would have only file permissions between its commands and the machine.
            return refused("without them, a run must not be started as root");
        }
        let workspace = assets.workspace.as_deref();
        let obstacles = unprivileged::find_obstacles(&assets.prepared, &assets.live, workspace);
        if !obstacles.is_empty() {
            return refused(&obstacles.join("; "));
        }
        let sandboxes = match assets.unprivileged_specs() {
            Ok(sandboxes) => sandboxes,
            Err(error) => return refused(&format!("{error:#}")),
        };
        // These sandboxes have no init of their own: orphans of a killed one must come to this process, not to the
        // machine's init.
        if let Err(error) = rustix::process::set_child_subreaper(Some(Pid::INIT)) {
            return refused(&error.to_string());
        }
        self.is_subreaper = true;
        self.events.emit(Event::Warning { text: fallback_warning(&error, workspace, &remedy) });
        for (part, _) in &sandboxes {
            // Created by the first attempt, and empty.
            let log = self.directory.logs_directory().join(format!("{}.log", part.name));
            let _ = std::fs::remove_file(log);
        }
        match self.run_in_sandboxes(sandboxes).await {
            Ok(outcome) => outcome,
            // None of these sandboxes uses a namespace.
            Err(error) => refused(&error.to_string()),
        }
    }
}

/// Kills and reaps the orphans of killed sandboxes. What cannot be killed is reported as left over.
pub async fn kill_orphans() {
    let deadline = Instant::now() + ORPHANS_TIMEOUT;
    loop {
        let orphans = leftovers::list_children();
        if orphans.is_empty() || Instant::now() >= deadline {
            return;
        }
        for pid in orphans {
            // An unreaped child: the PID cannot have been reused.
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// What is missing, what that assets, and what to do.
fn fallback_warning(error: &StartError, workspace: Option<&Path>, remedy: &str) -> String {
    let missing = Guarantee::ALL.into_iter().filter(|it| !unprivileged::holds(*it));
    let missing: Vec<&str> = missing.map(Guarantee::as_str).collect();
    let workspace = match workspace {
        Some(workspace) => format!(", and the workspace is at {}, not at /workspace", workspace.display()),
        None => String::new(),
    };
    format!(
        "user namespaces are blocked on this machine ({error}): only Landlock and seccomp isolate the run, and these guarantees do not \
         hold: {}; commands cannot use sockets{workspace}. For full isolation: {remedy}",
        missing.join(", ")
    )
}

/// The hint of `sympozium doctor`.
fn namespaces_hint() -> String {
    hint(Features::get(), Layer::UserNamespace).unwrap_or_else(|| "`sympozium doctor` prints the cause".to_owned())
}
