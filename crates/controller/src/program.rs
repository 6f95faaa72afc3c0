//! The process: start order and shutdown.
//!
//! Probes start first, so that the kubelet sees a live process; then the Lease is acquired; then watches and
//! reconcilers start. On SIGTERM or SIGINT the process accepts no more work, finishes the reconciles in progress,
//! releases the Lease and exits with 0. Without the Lease it exits at once with 1: another process may be the leader.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Parser as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use sympozium_api::installation::CONTROLLER;
use sympozium_api::{AgentRun, hex};
use sympozium_plan::prices::Prices;
use sympozium_program::leader::{HeldLease, LeaderElector, LeaseLost};
use sympozium_program::listen::bind;
use sympozium_program::probes::serve_probes;
use sympozium_program::{Failure, ShutdownSignals, run_multi_threaded, start_logging};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::agents::{self, RunCounts};
use crate::arguments::Arguments;
use crate::caches::Caches;
use crate::certificates::CertificateManager;
use crate::cluster_info::{ClusterInfoWatcher, Overrides};
use crate::context::Context;
use crate::dispatch::Dispatch;
use crate::lease_store::ApiLeaseStore;
use crate::metrics::Metrics;
use crate::policies::{self, PolicyRefs};
use crate::process_state::ProcessState;
use crate::reconcile_loop::{Queue, queue, run_loop};
use crate::settings::Settings;
use crate::sweep::Sweeper;
use crate::{admission_status, packs, random, run};

/// How long reconciles in progress may take on shutdown. The kubelet gives 30 s.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);
/// How long remaining tasks may take after that.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Read timeout of connections to the API server. Longer than a watch lasts (kube asks for 290 s).
const READ_TIMEOUT: Duration = Duration::from_secs(295);
/// Concurrent connections of probes.
const MAX_PROBE_CONNECTIONS: usize = 32;
/// Wait before the API server is contacted again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the first request to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging(&arguments.log);
    // Fails only if the same provider was installed earlier in this process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run_multi_threaded(RUNTIME_SHUTDOWN_TIMEOUT, serve(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(),
    }
}

async fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let mut signals = ShutdownSignals::listen()?;
    let overrides = arguments.load_overrides()?;
    let prices = arguments.load_prices()?;
    let metrics = Arc::new(Metrics::new());
    let state = ProcessState::new(Arc::clone(&metrics));
    let listener = bind(arguments.probe_listen).await?;
    serve_probes(listener, MAX_PROBE_CONNECTIONS, std::future::pending(), Arc::new(state.clone()))?;
    let client = connect(arguments).await?;
    let identity = identity(arguments)?;
    let held = tokio::select! {
        _ = signals.recv() => return Ok(()),
        held = stand_by(&client, arguments, &identity, &state) => held,
    };
    tracing::info!(identity, "the Lease is ours: this process works");
    state.set_watching();
    metrics.set_leader(true);
    let process = LeaderProcess { client, metrics, state, overrides, prices };
    process.lead(arguments, held, &mut signals).await
}

async fn stand_by(
    client: &Client,
    arguments: &Arguments,
    identity: &str,
    state: &ProcessState,
) -> HeldLease<ApiLeaseStore> {
    // A process that cannot reach the API server is not ready to take over.
    loop {
        match timeout(CONNECT_TIMEOUT, client.apiserver_version()).await {
            Ok(Ok(_)) => break,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the API server does not answer; trying again")
            }
            Err(_late) => tracing::warn!("the API server does not answer; trying again"),
        }
        sleep(RETRY_INTERVAL).await;
    }
    state.set_standby();
    let namespace = &arguments.system_namespace;
    let store = ApiLeaseStore::new(client.clone(), namespace);
    LeaderElector::new(store, CONTROLLER, identity.to_owned()).acquire().await
}

async fn connect(arguments: &Arguments) -> Result<Client, Failure> {
    let config = if arguments.kubeconfig.is_some() || arguments.context.is_some() {
        let options = KubeConfigOptions { context: arguments.context.clone(), ..KubeConfigOptions::default() };
        let config = match &arguments.kubeconfig {
            Some(path) => match Kubeconfig::read_from(path) {
                Ok(file) => Config::from_custom_kubeconfig(file, &options).await,
                Err(error) => Err(error),
            },
            None => Config::from_kubeconfig(&options).await,
        };
        config.map_err(|error| {
            let error = anyhow::Error::new(error).context("the kubeconfig cannot be used");
            Failure::new(error, "`kubectl config get-contexts` shows what is in it")
        })?
    } else {
        Config::incluster().map_err(|error| {
            let error = anyhow::Error::new(error).context("this process is in no pod with a ServiceAccount");
            Failure::new(error, "name a kubeconfig with --kubeconfig")
        })?
    };
    let mut config = config;
    // The API server ends each watch before that. A connection without data for longer is dead.
    config.read_timeout = Some(READ_TIMEOUT);
    let client = Client::try_from(config).context("the client cannot be made")?;
    Ok(client)
}

/// Unique for each process, also on one machine.
fn identity(arguments: &Arguments) -> Result<String, Failure> {
    let name = arguments.identity.clone().unwrap_or_else(|| {
        let names = rustix::system::uname();
        names.nodename().to_string_lossy().into_owned()
    });
    let bytes = random::random_bytes::<4>().map_err(anyhow::Error::from)?;
    Ok(format!("{name}_{}", hex::encode(&*bytes)))
}

/// A process that holds the Lease.
struct LeaderProcess {
    client: Client,
    metrics: Arc<Metrics>,
    state: ProcessState,
    overrides: Overrides,
    prices: Option<Arc<Prices>>,
}

impl LeaderProcess {
    async fn lead(
        self,
        arguments: &Arguments,
        mut held: HeldLease<ApiLeaseStore>,
        signals: &mut ShutdownSignals,
    ) -> Result<(), Failure> {
        let (stop, stopping) = watch::channel(false);
        let StartedTasks { mut loops, mut tasks, caches } = self.start(arguments, &stopping);
        let ready = async {
            if caches.wait_until_ready().await {
                tracing::info!("every kind is watched");
                self.state.set_leading(caches.clone());
            }
            std::future::pending::<()>().await;
        };
        let renewed = |metrics: &Metrics, at: jiff::Timestamp| {
            metrics.set_lease_renewed(at.as_duration().as_secs_f64());
        };
        tokio::select! {
            lost = held.renew_until_lost(|at| renewed(&self.metrics, at)) => return Err(lease_lost(lost)),
            () = ready => {}
            _ = signals.recv() => {}
            // They end only after the stop signal.
            _ = loops.join_next() => return Err(task_ended()),
            _ = tasks.join_next() => return Err(task_ended()),
        }
        tracing::info!("ending: what is under way is finished");
        self.state.set_ending();
        stop.send_replace(true);
        let finish = async { while loops.join_next().await.is_some() {} };
        tokio::select! {
            // Reconciles continue only while this process holds the Lease.
            lost = held.renew_until_lost(|at| renewed(&self.metrics, at)) => return Err(lease_lost(lost)),
            finished = timeout(SHUTDOWN_GRACE, finish) => {
                if finished.is_err() {
                    tracing::warn!("what is still under way is left to the next process");
                }
            }
        }
        // Nothing may be written once another process can hold the Lease.
        loops.shutdown().await;
        tasks.shutdown().await;
        held.release().await;
        Ok(())
    }

    /// Starts watches, reconcilers and the tasks that serve them.
    fn start(&self, arguments: &Arguments, stopping: &watch::Receiver<bool>) -> StartedTasks {
        let client = &self.client;
        let settings = Arc::new(Settings { prices: self.prices.clone(), ..arguments.settings() });
        let (caches, watch_events, watching) = Caches::watch(client);
        let (cluster_info_sender, cluster_info) = watch::channel(None);
        let (material_sender, material) = watch::channel(None);
        let (gone_sender, gone) = mpsc::unbounded_channel();
        let nodes = Arc::new(Notify::new());
        let counted = Arc::new(RunCounts::default());
        let context = Arc::new(Context::new(
            client.clone(),
            settings.as_ref().clone(),
            caches.clone(),
            cluster_info,
            Arc::clone(&self.metrics),
        ));
        let (runs, wanted_runs) = queue();
        let (packs, wanted_packs) = queue();
        let (agents, wanted_agents) = queue();
        let (instances, wanted_instances) = queue();
        let (policies, wanted_policies) = queue();
        let (models, wanted_models) = queue();
        let (schedules, wanted_schedules) = queue();
        let dispatch = Dispatch {
            runs,
            packs,
            agents,
            instances,
            deleted_runs: gone_sender,
            nodes_changed: Arc::clone(&nodes),
            run_counts: Arc::clone(&counted),
            policies,
            policy_refs: PolicyRefs::default(),
            models,
            schedules,
        };

        let mut tasks = JoinSet::new();
        tasks.spawn(watching);
        tasks.spawn(requeue_when_known(Arc::clone(&context), dispatch.runs.clone()));
        tasks.spawn(dispatch.run(watch_events, Arc::clone(&context)));
        let keeper = CertificateManager::new(client.clone(), &settings.system_namespace, Arc::clone(&self.metrics));
        tasks.spawn(keeper.run(material_sender));
        let follower = ClusterInfoWatcher {
            settings,
            overrides: self.overrides.clone(),
            caches: caches.clone(),
            nodes_changed: nodes,
            material,
            metrics: Arc::clone(&self.metrics),
        };
        tasks.spawn(follower.run(client.clone(), cluster_info_sender));

        let mut loops = JoinSet::new();
        let stop = || stopping.clone();
        let with = || Arc::clone(&context);
        loops.spawn(run_loop("AgentRun", with(), caches.runs.clone(), wanted_runs, stop(), run::reconcile));
        loops.spawn(run_loop("SkillPack", with(), caches.packs.clone(), wanted_packs, stop(), packs::reconcile));
        loops.spawn(run_loop(
            "SympoziumPolicy",
            with(),
            caches.policies.clone(),
            wanted_policies,
            stop(),
            policies::reconcile,
        ));
        loops.spawn(run_loop(
            "Model",
            with(),
            caches.models.clone(),
            wanted_models,
            stop(),
            admission_status::reconcile_model,
        ));
        loops.spawn(run_loop(
            "SympoziumSchedule",
            with(),
            caches.schedules.clone(),
            wanted_schedules,
            stop(),
            admission_status::reconcile_schedule,
        ));
        let numbers = Arc::clone(&counted);
        loops.spawn(run_loop("Agent", with(), caches.agents.clone(), wanted_agents, stop(), move |agent, context| {
            agents::reconcile_agent(agent, context, Arc::clone(&numbers))
        }));
        loops.spawn(run_loop(
            "SympoziumInstance",
            with(),
            caches.instances.clone(),
            wanted_instances,
            stop(),
            move |agent, context| agents::reconcile_instance(agent, context, Arc::clone(&counted)),
        ));
        // The sweeper deletes objects: it must wait until the caches are complete.
        let sweeper = Sweeper::new(with());
        let listed = caches.clone();
        let stop = stop();
        loops.spawn(async move {
            let mut stopped = stop.clone();
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => {}
                () = async {
                    if listed.wait_until_ready().await {
                        sweeper.run(gone, stop).await;
                    }
                } => {}
            }
        });
        StartedTasks { loops, tasks, caches }
    }
}

/// Requeues all unfinished runs when the cluster info becomes known.
async fn requeue_when_known(context: Arc<Context>, runs: Queue<AgentRun>) {
    let mut cluster_info = context.cluster_info.clone();
    let mut known = cluster_info.borrow_and_update().is_some();
    while cluster_info.changed().await.is_ok() {
        let before = known;
        known = cluster_info.borrow_and_update().is_some();
        if known && !before {
            for run in context.index.unfinished() {
                runs.add(run);
            }
        }
    }
    // The sender has ended, which ends the process as well.
    std::future::pending().await
}

struct StartedTasks {
    /// End after the stop signal.
    loops: JoinSet<()>,
    /// End when they are dropped.
    tasks: JoinSet<()>,
    caches: Caches,
}

fn lease_lost(lost: LeaseLost) -> Failure {
    tracing::error!(error = %lost, "this process must not work any more");
    Failure::new(
        anyhow::Error::new(lost).context("the Lease is lost"),
        "another process goes on; is the API server overloaded, or this machine?",
    )
}

fn task_ended() -> Failure {
    anyhow!("a part of this process ended that must not; this is a fault in it").into()
}
