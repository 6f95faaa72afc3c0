//! `skill-sidecar serve`: skills on request, over HTTP.
//!
//! One thread does all that is HTTP; each skill that runs has a thread of its own that waits for it. Start reading at
//! [`routes`] for what can be asked for. On the way there a connection passes [`connections`] (how many there may
//! be), [`strict_io`] and [`strict_head`](sympozium_ipc::strict_head) (what is a request at all) and [`requests`] (ids, log, errors).
//!
//! Whatever callers send is bounded in bytes, count and time, by a constant that says so next to what it bounds.

pub mod answer;
pub mod body;
pub mod calls;
pub mod connections;
mod descriptors;
mod health;
pub mod idempotency;
pub mod metrics;
mod reaper;
pub mod requests;
pub mod routes;
pub mod site;
pub mod strict_io;
pub mod tasks;
pub mod tokens;

pub use health::healthcheck;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use sympozium_exec::{Config, Executor};
use sympozium_program::listen::bind;
use sympozium_program::{Failure, HangupSignal, ShutdownSignals, start_logging};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::arguments::{ServeArguments, TOKEN, TOKEN_FILE};
use crate::isolation::Isolation;
use crate::runtime;
use crate::sandbox::{self, VolumesFrom};
use calls::Calls;
use connections::Connections;
use metrics::Metrics;
use requests::{Requests, Side};
use site::Site;
use tokens::Tokens;

/// How long calls may go on once the server was asked to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long to wait for the rest once everything was told to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
/// Connections of probes at once.
const MAX_PROBE_CONNECTIONS: usize = 32;
/// Threads besides one for each skill that runs: for listing skills.
const FURTHER_THREADS: usize = 2;

/// Serves until it is asked to end.
///
/// # Errors
/// When it cannot start, or when the sandbox is gone and nothing can be executed any more.
pub fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    run_with(arguments, |config| config)
}

/// As [`run`], with a change to the executor: measurements leave layers out.
#[doc(hidden)]
pub fn run_with(arguments: &ServeArguments, change: impl FnOnce(Config) -> Config) -> Result<(), Failure> {
    start_logging(&arguments.log);
    let token_file = std::env::var_os(TOKEN_FILE).map(PathBuf::from);
    let token_file = token_file.filter(|path| !path.as_os_str().is_empty());
    let tokens = tokens(arguments, token_file.as_deref())?;
    let max_concurrent = usize::from(arguments.max_concurrent);
    let max_connections = descriptors::make_room(usize::from(arguments.max_connections), max_concurrent)?;

    let private = token_file.as_deref().map_or_else(Vec::new, secret_paths);
    let mut config = sandbox::config(&arguments.sandbox, VolumesFrom::Mounts, private)?;
    config.skills.clone_from(&arguments.skills_dir);
    config.max_concurrent = max_concurrent;
    let executor = sandbox::executor(change(config))?;

    let runtime = runtime(max_concurrent + FURTHER_THREADS).context("the runtime cannot be started")?;
    let served = runtime.block_on(serve(arguments, tokens, executor, max_connections));
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    served
}

/// The tokens that are asked for; none when that is what was asked for, and nobody else can connect.
fn tokens(arguments: &ServeArguments, token_file: Option<&Path>) -> Result<Option<Tokens>, Failure> {
    let token = match std::env::var(TOKEN) {
        Ok(token) => Some(token),
        Err(std::env::VarError::NotPresent) => None,
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(anyhow!("the token in {TOKEN} is not text").into());
        }
    };
    let tokens = Tokens::load(token.as_deref(), token_file)?;
    let is_local = arguments.listen.ip().is_loopback();
    match (tokens.count(), arguments.insecure) {
        (0, false) => Err(Failure::new(
            anyhow!("no token is configured"),
            format!("set {TOKEN} or {TOKEN_FILE}; or pass --insecure to serve every program on this machine"),
        )),
        (0, true) if !is_local => Err(Failure::new(
            anyhow!("--insecure would let everybody who reaches {} execute skills", arguments.listen),
            format!("listen on 127.0.0.1, or set {TOKEN}"),
        )),
        (0, true) => {
            tracing::warn!("every program on this machine can execute skills: --insecure");
            Ok(None)
        }
        (_, true) => Err(Failure::new(
            anyhow!("a token is configured, and --insecure says not to ask for one"),
            format!("leave out --insecure, or unset {TOKEN} and {TOKEN_FILE}"),
        )),
        (count, false) => {
            if !is_local {
                tracing::warn!(
                    listen = %arguments.listen,
                    "tokens and output travel in clear text beyond this machine"
                );
            }
            tracing::info!(count, "callers must have one of the tokens");
            Ok(Some(tokens))
        }
    }
}

/// What commands must not see of the token file: itself, and the whole of a Kubernetes volume that it is in, where
/// each version of it lies in a directory of its own.
fn secret_paths(file: &Path) -> Vec<PathBuf> {
    let mut paths = vec![file.to_owned()];
    paths.extend(file.canonicalize());
    let volume = file.parent().filter(|volume| volume.join("..data").exists());
    paths.extend(volume.map(Path::to_owned));
    paths.dedup();
    paths
}

async fn serve(
    arguments: &ServeArguments,
    tokens: Option<Tokens>,
    executor: Executor,
    max_connections: usize,
) -> Result<(), Failure> {
    let (close, closing) = watch::channel(false);
    let (cancel, cancelling) = watch::channel(false);
    let metrics = Arc::new(Metrics::default());
    let isolation = Isolation::of(executor.report());
    let max_concurrent = usize::from(arguments.max_concurrent);
    let site = Arc::new(Site {
        calls: Calls::new(executor, max_concurrent, Arc::clone(&metrics)),
        tokens,
        tasks: tasks::Tasks::default(),
        keys: idempotency::Keys::default(),
        bodies: site::bodies(),
        metrics: Arc::clone(&metrics),
        isolation,
        closing: closing.clone(),
        cancelling,
    });
    // Before anybody is told that we are there.
    let mut signals = Signals::new()?;
    log_skills(&site).await;

    let listener = listen(arguments.listen, Side::Callers).await?;
    let callers = Requests::new(routes::callers(Arc::clone(&site)), Arc::clone(&metrics), Side::Callers);
    let limit = Arc::new(Connections::new(max_connections));
    let mut servers = tokio::task::JoinSet::new();
    servers.spawn(connections::serve(listener, limit, callers, closing.clone()));
    if let Some(address) = arguments.probe_listen {
        let listener = listen(address, Side::Probes).await?;
        let probes = Requests::new(routes::probes(Arc::clone(&site)), Arc::clone(&metrics), Side::Probes);
        let limit = Arc::new(Connections::new(MAX_PROBE_CONNECTIONS));
        servers.spawn(connections::serve(listener, limit, probes, closing));
    }
    let reaper = tokio::spawn({
        let site = Arc::clone(&site);
        async move { reaper::run(&site.tasks, &site.keys).await }
    });

    let ended = tokio::select! {
        () = signals.end(&site) => Ok(()),
        () = site.calls.gone() => Err(Failure::from(anyhow!(
            "the sandbox of the skills is gone; nothing can be executed any more"
        ))),
    };
    reaper.abort();
    tracing::info!("ending: no new requests are taken");
    close.send_replace(true);
    let all_closed = async { while servers.join_next().await.is_some() {} };
    tokio::pin!(all_closed);
    let grace = if ended.is_ok() { SHUTDOWN_GRACE } else { Duration::ZERO };
    if tokio::time::timeout(grace, &mut all_closed).await.is_err() {
        tracing::warn!("calls that still run are ended");
        cancel.send_replace(true);
        let _ = tokio::time::timeout(SHUTDOWN_LIMIT, all_closed).await;
    }
    ended
}

/// Says which files of the skills directory are not offered, and why: once, at the start.
async fn log_skills(site: &Site) {
    match site.calls.skills().await {
        Err(error) => tracing::error!(cause = error.cause, "the skills cannot be listed"),
        Ok(skills) => {
            let mut count = 0;
            for (name, found) in skills {
                match found {
                    Ok(()) => count += 1,
                    Err(error) => {
                        tracing::warn!(skill = name.as_str(), %error, "a skill is not offered");
                    }
                }
            }
            tracing::info!(count, "skills are offered");
        }
    }
}

async fn listen(address: SocketAddr, side: Side) -> Result<TcpListener, Failure> {
    let listener = bind(address).await?;
    let address = listener.local_addr().context("the socket has no address")?;
    match side {
        Side::Callers => tracing::info!(%address, "listening for callers"),
        Side::Probes => tracing::info!(%address, "listening for probes"),
    }
    Ok(listener)
}

/// What people and kubelets send.
struct Signals {
    shutdown: ShutdownSignals,
    hangup: HangupSignal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { shutdown: ShutdownSignals::listen()?, hangup: HangupSignal::listen()? })
    }

    /// Until it shall end. SIGHUP reads the token file again.
    async fn end(&mut self, site: &Site) {
        loop {
            tokio::select! {
                _ = self.shutdown.recv() => return,
                () = self.hangup.recv() => match site.tokens.as_ref().map(Tokens::reload) {
                    Some(Err(error)) => tracing::warn!(
                        error = format!("{error:#}"),
                        "the token file cannot be used; the tokens before it stay valid"
                    ),
                    _ => tracing::info!("the tokens were read again"),
                },
            }
        }
    }
}
