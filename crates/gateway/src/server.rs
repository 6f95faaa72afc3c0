//! The program: sockets, signals, and plans and keys from files.

mod files;
mod listen;
mod peers;
mod probes;
mod turned_away;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use clap::Parser as _;
use sympozium_api::installation::GATEWAY;
use sympozium_ipc::credential::{Claims, Credential};
use sympozium_program::{Failure, start_logging};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;

use crate::arguments::{Arguments, Command, ForwardArguments, ServeArguments, SignArguments, Source};
use crate::cluster::{self, Cluster};
use crate::egress::Gateway;
use crate::forward::Forwarder;
use crate::metrics::{Metrics, Now};
use crate::outside::Network;
use crate::plans::load_directory;
use crate::resolve::Resolver;
use crate::run_api::RunApi;
use crate::run_api::local::{NoScheduler, NobodyToAsk, Records};

/// How long tunnels and requests may continue after the signal to terminate.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long to wait for the rest after everything was cut.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// The whole program.
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve(arguments) => run(&arguments),
        Command::Sign(arguments) => sign(&arguments),
        Command::Forward(arguments) => forward(&arguments),
    };
    outcome.map_or_else(|failure: Failure| failure.report(), |()| ExitCode::SUCCESS)
}

fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    start_logging(&arguments.log);
    // One crypto provider, installed before TLS is used. A second call has no effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")?;
    let served = runtime.block_on(serve(arguments));
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    served
}

async fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    let source = arguments.source();
    let source = source.map_err(|unclear| Failure::new(unclear, unclear.hint))?;
    let settings = arguments.settings();
    listen::make_room(settings.connections)?;
    let keys = files::keys(&arguments.key_file)?;
    let resolver = Resolver::new(&arguments.dns, arguments.cluster_domain.as_deref());
    let resolver = resolver.map_err(|error| Failure::new(error, "name one with --dns"))?;
    let gateway = Gateway::new(keys, settings, Network::new(resolver));
    let metrics = Metrics::new();
    tokio::spawn(Arc::clone(&metrics).count(Arc::clone(gateway.events())));
    let cluster = match source {
        Source::Plans(directory) => {
            serve_directory(&gateway, directory, arguments.records.as_deref())?;
            None
        }
        Source::Kubernetes => Some(serve_cluster(&gateway, arguments, &metrics).await?),
    };
    let tls = files::tls(arguments, gateway.protocols())?.map(watch::Sender::new);
    // Before the gateway listens, so that no signal is missed.
    let mut signals = Signals::new()?;
    let (close, closing) = watch::channel(false);
    // Each connection holds a sender; when the last one is dropped, the receiver resolves.
    let (open, mut all_closed) = mpsc::channel::<()>(1);

    let served = tls.as_ref().map(watch::Sender::subscribe);
    let serving = listen::Serving {
        gateway: Arc::clone(&gateway),
        metrics: Arc::clone(&metrics),
        tls: served,
        plain_proxy: arguments.plain_proxy,
        open,
    };
    let address = serving.listen(&arguments.listen, closing.clone()).await?;
    if let Some(port) = arguments.canary {
        probes::canary(address, port, closing.clone()).await?;
    }
    if let Some(probe_listen) = arguments.probe_listen {
        let probed = Arc::new(Probes { gateway: Arc::clone(&gateway), metrics, cluster, closing: closing.clone() });
        probes::probes(probe_listen, closing, probed).await?;
    }

    let reload = Reload { gateway: Arc::clone(&gateway), arguments, source, tls };
    signals.end(&reload).await;
    tracing::info!("ending: no new connections are taken");
    close.send_replace(true);
    if tokio::time::timeout(SHUTDOWN_GRACE, all_closed.recv()).await.is_err() {
        tracing::warn!(clients = gateway.clients(), "what is still open is cut");
        gateway.end();
        let _ = tokio::time::timeout(SHUTDOWN_LIMIT, all_closed.recv()).await;
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
    let reporter = Records::open(directory).map_err(|error| {
        Failure::new(
            anyhow::Error::new(error).context("the records cannot be opened"),
            "--records is a directory that this user may write",
        )
    })?;
    let api = RunApi { identify: gateway.credentials(), decider: NobodyToAsk, reporter, scheduler: NoScheduler };
    gateway.serve_run_api(api).map_err(anyhow::Error::from)?;
    tracing::info!(records = %directory.display(), "the run API is served");
    Ok(())
}

/// Reads the plans and logs the result.
fn reload_plans(gateway: &Gateway<Network>, directory: &Path) -> anyhow::Result<()> {
    let loaded = load_directory(gateway.plans(), directory)?;
    for (path, error) in &loaded.unusable {
        tracing::warn!(path = %path.display(), error = format!("{error:#}"), "a plan cannot be used");
    }
    for run in &loaded.ended {
        tracing::info!(run, "a run is over: its plan is gone");
    }
    tracing::info!(active = loaded.active, "the plans were read");
    Ok(())
}

/// SIGTERM, SIGINT and SIGHUP.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot wait for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the signal to terminate. Reloads files on SIGHUP; in a cluster also when they change.
    async fn end(&mut self, reload: &Reload<'_>) {
        let mut state = reload.state();
        let mut look = tokio::time::interval(files::LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    state = reload.state();
                    reload.everything();
                }
                _ = look.tick(), if reload.source == Source::Kubernetes => {
                    let now = reload.state();
                    if now != state {
                        state = now;
                        reload.everything();
                        tracing::info!("files were changed, and read again");
                    }
                }
            }
        }
    }
}

/// Reloads files while the gateway serves. A file that is not valid leaves the previous one in use.
struct Reload<'a> {
    gateway: Arc<Gateway<Network>>,
    arguments: &'a ServeArguments,
    source: Source<'a>,
    tls: Option<watch::Sender<TlsAcceptor>>,
}

impl Reload<'_> {
    fn state(&self) -> files::State {
        let files = [&self.arguments.tls_cert, &self.arguments.tls_key];
        let files = files.into_iter().flatten().chain([&self.arguments.key_file]);
        files::State::of(files.into_iter().map(AsRef::as_ref))
    }

    fn everything(&self) {
        match files::keys(&self.arguments.key_file) {
            Ok(keys) => self.gateway.set_keys(keys),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the keys cannot be used; those before stay in use")
            }
        }
        if let Some(tls) = &self.tls {
            match files::tls(self.arguments, self.gateway.protocols()) {
                Ok(Some(acceptor)) => drop(tls.send_replace(acceptor)),
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "the certificate cannot be used; the one before stays in use"
                ),
            }
        }
        if let Source::Plans(directory) = self.source
            && let Err(error) = reload_plans(&self.gateway, directory)
        {
            tracing::warn!(error = format!("{error:#}"), "the plans cannot be read; those before stay in use");
        }
    }
}

/// The state that probes report.
struct Probes {
    gateway: Arc<Gateway<Network>>,
    metrics: Arc<Metrics>,
    cluster: Option<Cluster>,
    closing: watch::Receiver<bool>,
}

impl probes::Probed for Probes {
    fn ready(&self) -> Result<(), &'static str> {
        if *self.closing.borrow() {
            return Err("it is ending");
        }
        let ready = self.cluster.as_ref().is_none_or(Cluster::is_ready);
        ready.then_some(()).ok_or("the runs of the cluster were not listed yet")
    }

    fn metrics(&self) -> String {
        let admission = self.gateway.admission();
        self.metrics.text(Now {
            connections: admission.open(),
            unauthenticated: admission.unauthenticated(),
            runs: self.gateway.plans().active().len(),
        })
    }
}

fn sign(arguments: &SignArguments) -> Result<(), Failure> {
    let keys = files::keys(&arguments.key_file)?;
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
    let text = files::secret(&arguments.credential_file)?;
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
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        tracing::info!(ports = ?forwarder.ports().unwrap_or_default(), "forwarding");
        tokio::select! {
            () = forwarder.run() => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}
