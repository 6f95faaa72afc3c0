//! Runs in a cluster: the same commands as for runs on this machine, with the API server behind them.
//!
//! Nothing here decides about a run, and nothing has a display format of its own. Objects are converted into the types
//! of `sympozium_runs`, which local runs have too; [`Cluster`] is a [`RunStore`](sympozium_runs::RunStore). Every read is
//! bounded in count, bytes and time, and no text from the cluster is printed without escaping.

mod approvals;
mod arguments;
mod audit;
mod call_error;
mod connection;
pub mod explain;
#[cfg(test)]
mod fake_api_server;
mod follow;
mod logs;
mod objects;
mod plan;
mod platform;
mod question;
mod records;
mod remove;
pub mod run;
mod show;
mod store;
#[cfg(test)]
mod tests;
pub mod view;

pub use arguments::ClusterArguments;
pub use call_error::Role;
pub use connection::Connection;

use std::future::Future;

use anyhow::{Context as _, anyhow};
use kube::ResourceExt as _;
use kube::api::ListParams;
use sympozium_api::AgentRun;
use tokio::runtime::Runtime;

use crate::output::print_stderr;
use arguments::NamespaceFlag;
use sympozium_api::text::quote;
use sympozium_runs::HintedError;

/// Objects per list page. A run's status may hold an answer and log tails, and only one page is in memory at a time.
pub const PAGE_SIZE: u32 = 50;
/// The maximum number of runs that are listed, in no particular order: the API server does not sort.
pub const MAX_RUNS: usize = 20_000;
/// The minimum length of a UID prefix that names a run.
const MIN_UID_PREFIX: usize = 4;

/// A connection to a cluster with a runtime, for synchronous commands.
#[derive(Debug)]
pub struct Cluster {
    runtime: Runtime,
    pub connection: Connection,
}

/// An AgentRun with the identity that every stored object has.
#[derive(Debug, Clone)]
pub struct FoundRun {
    pub name: String,
    pub uid: String,
    pub run: AgentRun,
}

impl Cluster {
    /// The cluster that any of the flags selects; `None` when the command works on this machine.
    ///
    /// # Errors
    ///
    /// When it is not clear how to reach the cluster.
    pub fn select(arguments: &ClusterArguments) -> Result<Option<Self>, HintedError> {
        Self::open(arguments, NamespaceFlag::SelectsCluster)
    }

    /// The same for commands whose `--namespace` also applies to files.
    ///
    /// # Errors
    ///
    /// When it is not clear how to reach the cluster.
    pub fn select_with_files(arguments: &ClusterArguments) -> Result<Option<Self>, HintedError> {
        Self::open(arguments, NamespaceFlag::AppliesToFiles)
    }

    fn open(arguments: &ClusterArguments, namespace: NamespaceFlag) -> Result<Option<Self>, HintedError> {
        let Some(choice) = arguments.choice(namespace) else {
            return Ok(None);
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")
            .map_err(|error| {
                HintedError::new(error, "raise the limit of open files (`ulimit -n`), or report this as a bug")
            })?;
        let connection = runtime.block_on(Connection::open(&choice))?;
        Ok(Some(Self { runtime, connection }))
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The run with this name, this UID, or a UID with this prefix.
    ///
    /// # Errors
    ///
    /// When there is none, or more than one.
    pub fn find(&self, wanted: &str) -> Result<FoundRun, HintedError> {
        self.block_on(find(&self.connection, wanted))
    }
}

/// The same as [`Cluster::find`], for async callers.
///
/// # Errors
///
/// When there is none, or more than one.
pub async fn find(connection: &Connection, wanted: &str) -> Result<FoundRun, HintedError> {
    // Do not send what is not a valid name: it would become part of the request's path.
    let is_name = sympozium_api::names::RunName::from(wanted).check().is_ok();
    if is_name {
        let doing = format!("read AgentRun {}", quote(wanted));
        let runs = connection.runs();
        let run = connection.call(&doing, Role::Viewer, runs.get_opt(wanted));
        if let Some(run) = run.await? {
            return identify_run(run);
        }
    }
    let mut matching = Vec::new();
    if wanted.len() >= MIN_UID_PREFIX {
        let mut count = 0;
        let is_wanted = |run: AgentRun| {
            let uid = run.metadata.uid.as_deref();
            let is_match = uid.is_some_and(|it| it.starts_with(wanted));
            count += usize::from(is_match);
            // Two matches are enough to know that the prefix is ambiguous.
            (is_match && count <= 2).then_some(run)
        };
        let (runs, has_more) = list_runs(connection, is_wanted).await?;
        if has_more {
            warn_truncated();
        }
        matching.extend(runs);
    } else {
        // Fail if AgentRuns cannot be listed, for example because the CRD is not installed.
        let runs = connection.runs();
        let one = ListParams::default().limit(1);
        connection.call("list AgentRuns", Role::Viewer, runs.list(&one)).await?;
    }
    let target = connection.target.as_str();
    match (matching.pop(), matching.is_empty()) {
        (Some(only), true) => identify_run(only),
        (Some(_), false) => Err(HintedError::new(
            anyhow!("several runs have a UID that begins with {}", quote(wanted)),
            format!("use a longer prefix; `sympozium runs{target}` lists the runs"),
        )),
        (None, _) => Err(HintedError::new(
            anyhow!("there is no run {} in namespace {}", quote(wanted), quote(&connection.namespace)),
            format!("`sympozium runs{target}` lists the runs; -n selects another namespace"),
        )),
    }
}

fn identify_run(run: AgentRun) -> Result<FoundRun, HintedError> {
    let (Some(name), Some(uid)) = (run.metadata.name.clone(), run.uid()) else {
        return Err(HintedError::new(
            anyhow!("the API server returned an AgentRun without a name or a UID"),
            "check that the address in the kubeconfig is that of a Kubernetes API server",
        ));
    };
    Ok(FoundRun { name, uid, run })
}

/// Lists all runs of the namespace page by page and collects what `select` returns; nothing else stays in memory. The
/// flag says whether there are more than [`MAX_RUNS`].
///
/// # Errors
///
/// When they cannot be listed.
pub async fn list_runs<T>(
    connection: &Connection,
    mut select: impl FnMut(AgentRun) -> Option<T>,
) -> Result<(Vec<T>, bool), HintedError> {
    let runs = connection.runs();
    let (mut selected, mut count) = (Vec::new(), 0);
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    loop {
        let page = connection.call("list AgentRuns", Role::Viewer, runs.list(&parameters));
        let page = page.await?;
        count += page.items.len();
        selected.extend(page.items.into_iter().filter_map(&mut select));
        let next = page.metadata.continue_.filter(|it| !it.is_empty());
        match next {
            Some(next) if count < MAX_RUNS => {
                parameters = parameters.continue_token(&next);
            }
            next => return Ok((selected, next.is_some())),
        }
    }
}

pub fn truncation_warning() -> String {
    format!("warning: there are more than {MAX_RUNS} runs; the others were not read")
}

pub fn warn_truncated() {
    print_stderr(&truncation_warning());
}
