//! The program: sockets, signals, and plans and keys from files.

mod canary;
mod listen;
mod refused_connections;

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use clap::Parser as _;
use sympozium_api::installation::GATEWAY;
use sympozium_ipc::credential::{Claims, Credential, KeyRing};
use sympozium_program::files::{FileState, POLL_INTERVAL, read_secret};
use sympozium_program::listen::bind;
use sympozium_program::probes::{ProbeHandler, serve_probes};
use sympozium_program::tls_reload::ReloadingTls;
use sympozium_program::{Failure, HangupSignal, ShutdownSignals, run_multi_threaded, start_logging};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::arguments::{Arguments, Command, ForwardArguments, RunSource, ServeArguments, SignArguments};
use crate::cluster::{self, Cluster};
use crate::egress::Gateway;
use crate::forward::Forwarder;
use crate::metrics::{CurrentCounts, Metrics};
use crate::network::Network;
use crate::plans::load_directory;
use crate::resolve::Resolver;
use crate::run_api::RunApi;
use crate::run_api::local::{NoApprover, NoScheduler, RecordStore};

/// How long tunnels and requests may continue after the signal to terminate.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long to wait for the rest after everything was cut.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Concurrent connections of probes.
const MAX_PROBE_CONNECTIONS: usize = 64;

/// The whole program.
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve(arguments) => run(&arguments),
        Command::Sign(arguments) => sign(&arguments),
        Command::Forward(arguments) => forward(&arguments),
    };
    outcome.map_or_else(|failure: Failure| failure.print(), |()| ExitCode::SUCCESS)
}

fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    start_logging(&arguments.log);
    // One crypto provider, installed before TLS is used. A second call has no effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    run_multi_threaded(SHUTDOWN_TIMEOUT, serve(arguments))
}

async fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    let source = arguments.source();
    let source = source.map_err(|unclear| Failure::new(unclear, unclear.hint))?;
    let settings = arguments.settings();
    listen::raise_file_limit(settings.connections)?;
    let keys = read_keys(&arguments.key_file)?;
    let resolver = Resolver::new(&arguments.dns, arguments.cluster_domain.as_deref());
    let resolver = resolver.map_err(|error| Failure::new(error, "name one with --dns"))?;
    let gateway = Gateway::new(keys, settings, Network::new(resolver));
    let metrics = Metrics::new();
    tokio::spawn(Arc::clone(&metrics).count_events(Arc::clone(gateway.events())));
    let cluster = match source {
        RunSource::Plans(directory) => {
            serve_directory(&gateway, directory, arguments.records.as_deref())?;
            None
        }
        RunSource::Kubernetes => Some(serve_cluster(&gateway, arguments, &metrics).await?),
    };
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => Some(ReloadingTls::load(certificate, key, gateway.alpn_protocols())?),
        _ => None,
    };
    // Before the gateway listens, so that no signal is missed.
    let (mut signals, hangup) = (ShutdownSignals::listen()?, HangupSignal::listen()?);
    let (close, closing) = watch::channel(false);
    // Each connection holds a sender; when the last one is dropped, the receiver resolves.
    let (open, mut all_closed) = mpsc::channel::<()>(1);

    let serving = listen::ClientListener {
        gateway: Arc::clone(&gateway),
        metrics: Arc::clone(&metrics),
        tls: tls.as_ref().map(ReloadingTls::subscribe),
        plain_proxy: arguments.plain_proxy,
        open,
    };
    let address = serving.listen(&arguments.listen, closing.clone()).await?;
    if let Some(port) = arguments.canary {
        canary::serve_canary(address, port, until_closing(&closing)).await?;
    }
    if let Some(probe_listen) = arguments.probe_listen {
        let probed = Arc::new(ProbeState { gateway: Arc::clone(&gateway), metrics, cluster, closing: closing.clone() });
        serve_probes(bind(probe_listen).await?, MAX_PROBE_CONNECTIONS, until_closing(&closing), probed)?;
    }

    let reload = Reloader { gateway: Arc::clone(&gateway), arguments, source, tls };
    tokio::select! {
        _ = signals.recv() => {}
        never = reload.run(hangup) => match never {},
    }
    tracing::info!("ending: no new connections are taken");
    close.send_replace(true);
    if tokio::time::timeout(SHUTDOWN_GRACE, all_closed.recv()).await.is_err() {
        tracing::warn!(clients = gateway.client_count(), "what is still open is cut");
        gateway.shut_down();
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all_closed.recv()).await;
    }
    Ok(())
}

fn serve_directory(gateway: &Gateway<Network>, plans: &Path, records: Option<&Path>) -> Result<(), Failure> {
    reload_plans(gateway, plans)
        .map_err(|error| Failure::new(error, "--plans is a directory with a file UID.json for each run"))?;
    records.map_or(Ok(()), |directory| serve_run_api(gateway, directory))
}

async fn serve_cluster(
    gateway: &Gateway<Network>,
    arguments: &ServeArguments,
    metrics: &Arc<Metrics>,
) -> Result<Cluster, Failure> {
    let client = cluster::connect(arguments.kubeconfig.as_deref()).await;
    let client = client.map_err(|error| {
        Failure::new(
            error.context("there is no way to the cluster"),
            "in a pod its service account is used; elsewhere name a file with --kubeconfig",
        )
    })?;
    let cluster = Cluster::serve(gateway, client, metrics).map_err(anyhow::Error::from)?;
    tracing::info!(
        account = format!("{}:{GATEWAY}", arguments.system_namespace),
        "the runs of a cluster are served; its service account needs the rights of the manifests"
    );
    Ok(cluster)
}

/// Serves the run API without a cluster: files for reports, and no approver.
fn serve_run_api(gateway: &Gateway<Network>, directory: &Path) -> Result<(), Failure> {
    let reporter = RecordStore::open(directory).map_err(|error| {
        Failure::new(
            anyhow::Error::new(error).context("the records cannot be opened"),
            "--records is a directory that this user may write",
        )
    })?;
    let api = RunApi {
        authenticator: gateway.credentials(),
        question_handler: NoApprover,
        report_store: reporter,
        scheduler: NoScheduler,
    };
    gateway.serve_run_api(api).map_err(anyhow::Error::from)?;
    tracing::info!(records = %directory.display(), "the run API is served");
    Ok(())
}

/// Reads the plans and logs the result.
fn reload_plans(gateway: &Gateway<Network>, directory: &Path) -> anyhow::Result<()> {
    let loaded = load_directory(gateway.plans(), directory)?;
    for (path, error) in &loaded.invalid {
        tracing::warn!(path = %path.display(), error = format!("{error:#}"), "a plan cannot be used");
    }
    for run in &loaded.ended {
        tracing::info!(run, "a run is over: its plan is gone");
    }
    tracing::info!(active = loaded.active, "the plans were read");
    Ok(())
}

fn read_keys(path: &Path) -> anyhow::Result<KeyRing> {
    let text = read_secret(path)?;
    KeyRing::parse(&text).with_context(|| format!("the keys in {}", path.display()))
}

/// Ready when the gateway closes.
fn until_closing(closing: &watch::Receiver<bool>) -> impl Future<Output = ()> + Send + use<> {
    let mut closing = closing.clone();
    async move {
        // An error means that the gateway is gone.
        let _ = closing.wait_for(|closing| *closing).await;
    }
}

/// Reloads files while the gateway serves. A file that is not valid leaves the previous one in use.
struct Reloader<'a> {
    gateway: Arc<Gateway<Network>>,
    arguments: &'a ServeArguments,
    source: RunSource<'a>,
    tls: Option<ReloadingTls>,
}

impl Reloader<'_> {
    /// Reloads files on SIGHUP; in a cluster also when they change.
    async fn run(&self, mut hangup: HangupSignal) -> Infallible {
        let mut state = self.file_state();
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = hangup.recv() => {
                    state = self.file_state();
                    self.reload_all();
                }
                _ = poll.tick(), if self.source == RunSource::Kubernetes => {
                    let now = self.file_state();
                    if now != state {
                        state = now;
                        self.reload_all();
                        tracing::info!("files were changed, and read again");
                    }
                }
            }
        }
    }

    fn file_state(&self) -> FileState {
        let files = [&self.arguments.tls_cert, &self.arguments.tls_key];
        let files = files.into_iter().flatten().chain([&self.arguments.key_file]);
        FileState::current(files.into_iter().map(AsRef::as_ref))
    }

    fn reload_all(&self) {
        match read_keys(&self.arguments.key_file) {
            Ok(keys) => self.gateway.set_keys(keys),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the keys cannot be used; those before stay in use")
            }
        }
        if let Some(tls) = &self.tls {
            tls.reload();
        }
        if let RunSource::Plans(directory) = self.source
            && let Err(error) = reload_plans(&self.gateway, directory)
        {
            tracing::warn!(error = format!("{error:#}"), "the plans cannot be read; those before stay in use");
        }
    }
}

/// The state that probes report.
struct ProbeState {
    gateway: Arc<Gateway<Network>>,
    metrics: Arc<Metrics>,
    cluster: Option<Cluster>,
    closing: watch::Receiver<bool>,
}

impl ProbeHandler for ProbeState {
    fn check_ready(&self) -> Result<&'static str, &'static str> {
        if *self.closing.borrow() {
            return Err("it is ending");
        }
        let ready = self.cluster.as_ref().is_none_or(Cluster::is_ready);
        ready.then_some("ok").ok_or("the runs of the cluster were not listed yet")
    }

    fn metrics(&self) -> String {
        let admission = self.gateway.limiter();
        self.metrics.to_text(CurrentCounts {
            connections: admission.open(),
            unauthenticated: admission.unauthenticated(),
            runs: self.gateway.plans().active_uids().len(),
        })
    }
}

fn sign(arguments: &SignArguments) -> Result<(), Failure> {
    let keys = read_keys(&arguments.key_file)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.context("the clock stands before 1970")?.as_secs();
    let claims =
        Claims { run: arguments.run.clone(), name: arguments.name.clone(), expires: now + arguments.expires_in };
    let credential = keys.sign(&claims).map_err(anyhow::Error::from)?;
    let url = credential.proxy_url(&arguments.gateway);
    let written = writeln!(io::stdout().lock(), "{}", *url);
    written.context("the address cannot be written")?;
    Ok(())
}

fn forward(arguments: &ForwardArguments) -> Result<(), Failure> {
    start_logging(&arguments.log);
    let text = read_secret(&arguments.credential_file)?;
    let (user, password) = text
        .trim()
        .split_once(':')
        .ok_or_else(|| anyhow!("there is no credential in {}", arguments.credential_file.display()))?;
    let credential = Credential { user: user.to_owned(), password: password.to_owned().into() };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime cannot be started")?;
    runtime.block_on(async {
        let gateway = arguments.gateway.clone();
        let forwarder = Forwarder::bind(&arguments.forwards, gateway, &credential).await;
        let forwarder = forwarder.map_err(|error| {
            Failure::new(
                anyhow::Error::new(error).context("cannot listen on loopback"),
                "is a port in use? is the loopback interface up?",
            )
        })?;
        let mut signals = ShutdownSignals::listen()?;
        tracing::info!(ports = ?forwarder.ports().unwrap_or_default(), "forwarding");
        tokio::select! {
            () = forwarder.run() => {}
            _ = signals.recv() => {}
        }
        Ok(())
    })
}
