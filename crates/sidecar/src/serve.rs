//! `skill-sidecar serve`: the front end over HTTP.
//!
//! One thread handles HTTP; each running skill has a thread that waits for it. Start reading at `routes.rs`. Before it, a
//! connection passes `connections.rs` (limits), `strict_io.rs` and [`strict_head`](sympozium_ipc::strict_head) (what is a
//! valid request) and `handler.rs` (ids, access log, errors).
//!
//! Everything that callers send is bounded in bytes, count and time, by constants next to the code that enforces them.

pub(crate) mod body;
mod calls;
pub(crate) mod connections;
mod descriptors;
mod handler;
mod health;
mod idempotency;
mod metrics;
mod reaper;
mod response;
mod routes;
mod state;
pub(crate) mod strict_io;
mod tasks;
mod tokens;

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

use crate::arguments::{ServeArguments, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE};
use crate::build_runtime;
use crate::isolation::IsolationSummary;
use crate::sandbox::{self, WritableVolumes};
use calls::Calls;
use connections::Connections;
use handler::{Endpoint, RequestHandler};
use metrics::Metrics;
use state::ServerState;
use tokens::Tokens;

/// How long running calls may continue after shutdown has begun.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long to wait for connections and threads after every call was cancelled.
const CANCELLATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent connections of probes.
const MAX_PROBE_CONNECTIONS: usize = 32;
/// Threads for listing skills, besides one for each running skill.
const EXTRA_THREADS: usize = 2;

/// Serves until a signal arrives.
///
/// # Errors
/// When it cannot start, or when the sandbox is gone and nothing can be executed any more.
pub fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    run_with(arguments, |config| config)
}

/// As [`run`], with a changed executor: benchmarks leave layers out.
#[doc(hidden)]
pub fn run_with(arguments: &ServeArguments, change: impl FnOnce(Config) -> Config) -> Result<(), Failure> {
    start_logging(&arguments.log);
    let token_file = std::env::var_os(TOKEN_FILE_VARIABLE).map(PathBuf::from);
    let token_file = token_file.filter(|path| !path.as_os_str().is_empty());
    let tokens = load_tokens(arguments, token_file.as_deref())?;
    let max_concurrent = usize::from(arguments.max_concurrent);
    let max_connections = descriptors::raise_limit(usize::from(arguments.max_connections), max_concurrent)?;

    let private = token_file.as_deref().map_or_else(Vec::new, find_secret_paths);
    let mut config = sandbox::build_config(&arguments.sandbox, WritableVolumes::MountedByDefault, private)?;
    config.skills.clone_from(&arguments.skills_dir);
    config.max_concurrent = max_concurrent;
    let executor = sandbox::build_executor(change(config))?;

    let runtime = build_runtime(max_concurrent + EXTRA_THREADS).context("the runtime cannot be started")?;
    let result = runtime.block_on(serve(arguments, tokens, executor, max_connections));
    runtime.shutdown_timeout(CANCELLATION_TIMEOUT);
    result
}

/// `None` with `--insecure`, which is accepted only where no other machine can connect.
fn load_tokens(arguments: &ServeArguments, token_file: Option<&Path>) -> Result<Option<Tokens>, Failure> {
    let token = match std::env::var(TOKEN_VARIABLE) {
        Ok(token) => Some(token),
        Err(std::env::VarError::NotPresent) => None,
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(anyhow!("the token in {TOKEN_VARIABLE} is not UTF-8").into());
        }
    };
    let tokens = Tokens::load(token.as_deref(), token_file)?;
    let is_local = arguments.listen.ip().is_loopback();
    match (tokens.count(), arguments.insecure) {
        (0, false) => Err(Failure::new(
            anyhow!("no token is configured"),
            format!(
                "set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}; or pass --insecure to serve every program on this machine"
            ),
        )),
        (0, true) if !is_local => Err(Failure::new(
            anyhow!("--insecure would let every client that reaches {} execute skills", arguments.listen),
            format!("listen on 127.0.0.1, or set {TOKEN_VARIABLE}"),
        )),
        (0, true) => {
            tracing::warn!("every program on this machine can execute skills: --insecure");
            Ok(None)
        }
        (_, true) => Err(Failure::new(
            anyhow!("a token is configured, and --insecure disables tokens"),
            format!("leave out --insecure, or unset {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE}"),
        )),
        (count, false) => {
            if !is_local {
                tracing::warn!(
                    listen = %arguments.listen,
                    "tokens and output are sent in clear text beyond this machine"
                );
            }
            tracing::info!(count, "callers need one of the configured tokens");
            Ok(Some(tokens))
        }
    }
}

/// The paths that hide the token file from commands: the file, and the Kubernetes volume around it, where each version of
/// the file has its own directory.
fn find_secret_paths(file: &Path) -> Vec<PathBuf> {
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
    let isolation = IsolationSummary::from_report(executor.report());
    let max_concurrent = usize::from(arguments.max_concurrent);
    let state = Arc::new(ServerState {
        calls: Calls::new(executor, max_concurrent, Arc::clone(&metrics)),
        tokens,
        tasks: tasks::Tasks::default(),
        keys: idempotency::IdempotencyKeys::default(),
        body_memory: state::new_body_memory(),
        metrics: Arc::clone(&metrics),
        isolation,
        closing: closing.clone(),
        cancelling,
    });
    // Before the first connection can be accepted.
    let mut signals = Signals::new()?;
    log_skills(&state).await;

    let listener = listen(arguments.listen, Endpoint::Callers).await?;
    let callers =
        RequestHandler::new(routes::caller_router(Arc::clone(&state)), Arc::clone(&metrics), Endpoint::Callers);
    let limit = Arc::new(Connections::new(max_connections));
    let mut servers = tokio::task::JoinSet::new();
    servers.spawn(connections::serve(listener, limit, callers, closing.clone()));
    if let Some(address) = arguments.probe_listen {
        let listener = listen(address, Endpoint::Probes).await?;
        let probes =
            RequestHandler::new(routes::probe_router(Arc::clone(&state)), Arc::clone(&metrics), Endpoint::Probes);
        let limit = Arc::new(Connections::new(MAX_PROBE_CONNECTIONS));
        servers.spawn(connections::serve(listener, limit, probes, closing));
    }
    let reaper = tokio::spawn({
        let state = Arc::clone(&state);
        async move { reaper::run(&state.tasks, &state.keys).await }
    });

    let result = tokio::select! {
        () = signals.wait_for_shutdown(&state) => Ok(()),
        () = state.calls.wait_for_sandbox_loss() => Err(Failure::from(anyhow!(
            "the sandbox of the skills is gone; nothing can be executed any more"
        ))),
    };
    reaper.abort();
    tracing::info!("shutting down: no new requests are accepted");
    close.send_replace(true);
    let all_closed = async { while servers.join_next().await.is_some() {} };
    tokio::pin!(all_closed);
    let grace = if result.is_ok() { SHUTDOWN_GRACE } else { Duration::ZERO };
    if tokio::time::timeout(grace, &mut all_closed).await.is_err() {
        tracing::warn!("running calls are cancelled");
        cancel.send_replace(true);
        let _ = tokio::time::timeout(CANCELLATION_TIMEOUT, all_closed).await;
    }
    result
}

/// Logs which files of the skills directory are not offered, and why: once, at the start.
async fn log_skills(state: &ServerState) {
    match state.calls.skills().await {
        Err(error) => tracing::error!(cause = error.cause, "the skills cannot be listed"),
        Ok(skills) => {
            let mut count = 0;
            for (name, found) in skills {
                match found {
                    Ok(()) => count += 1,
                    Err(error) => {
                        tracing::warn!(skill = name.as_str(), %error, "skill not offered");
                    }
                }
            }
            tracing::info!(count, "skills offered");
        }
    }
}

async fn listen(address: SocketAddr, side: Endpoint) -> Result<TcpListener, Failure> {
    let listener = bind(address).await?;
    let address = listener.local_addr().context("the socket has no address")?;
    match side {
        Endpoint::Callers => tracing::info!(%address, "listening for callers"),
        Endpoint::Probes => tracing::info!(%address, "listening for probes"),
    }
    Ok(listener)
}

struct Signals {
    shutdown: ShutdownSignals,
    hangup: HangupSignal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { shutdown: ShutdownSignals::listen()?, hangup: HangupSignal::listen()? })
    }

    /// Returns at SIGTERM or SIGINT. SIGHUP reloads the token file.
    async fn wait_for_shutdown(&mut self, state: &ServerState) {
        loop {
            tokio::select! {
                _ = self.shutdown.recv() => return,
                () = self.hangup.recv() => match state.tokens.as_ref().map(Tokens::reload) {
                    Some(Err(error)) => tracing::warn!(
                        error = format!("{error:#}"),
                        "the token file cannot be used; the previous tokens stay valid"
                    ),
                    _ => tracing::info!("tokens reloaded"),
                },
            }
        }
    }
}
