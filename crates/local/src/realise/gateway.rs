//! The gateway of one run: its only egress, and the run API for its bridge. A library in this process.

use std::sync::Arc;

use sympozium_api::RunPlan;
use sympozium_gateway::run_api::RunApi;
use sympozium_gateway::run_api::local::{ApprovalQueue, NoScheduler, RecordStore};
use sympozium_gateway::settings::Loopback;
use sympozium_gateway::{Gateway, Settings};
use sympozium_ipc::credential::{KEY_BYTES, KeyRing};
use sympozium_runs::EventLog;
use tokio::net::UnixListener;

use crate::lazy_network::LazyNetwork;
use crate::reporting::EmittingReporter;
use crate::sandbox_spec::GATEWAY_SOCKET;
use crate::sockets;
use crate::state::{RunDirectory, StateDirectory};
use crate::volumes::make_directory;

/// The directory with the gateway's socket, in `live`.
pub const DIRECTORY_NAME: &str = "gateway";

pub struct RunGateway {
    pub gateway: Arc<Gateway<LazyNetwork>>,
    pub listener: UnixListener,
    pub approval_queue: ApprovalQueue,
    pub reporter: EmittingReporter,
}

impl RunGateway {
    /// Opens the gateway's socket. It serves the run of this plan, and credentials that these keys have signed.
    pub fn open(
        plan: &RunPlan,
        keys: KeyRing,
        directory: &RunDirectory,
        state: &StateDirectory,
        events: &EventLog,
    ) -> anyhow::Result<Self> {
        let settings = Settings { loopback: Loopback::AsPlanned, ..Settings::default() };
        let gateway = Gateway::new(keys, settings, LazyNetwork::default());
        gateway.plans().add(plan)?;
        let approval_queue = ApprovalQueue::new();
        let reporter = EmittingReporter::new(RecordStore::open(&state.runs_directory())?, events.clone());
        gateway.serve_run_api(RunApi {
            authenticator: gateway.credentials(),
            question_handler: approval_queue.clone(),
            report_store: reporter.clone(),
            scheduler: NoScheduler,
        })?;
        let directory = directory.live_directory().join(DIRECTORY_NAME);
        make_directory(&directory)?;
        let listener = sockets::listen(&directory, GATEWAY_SOCKET)?;
        Ok(Self { gateway, listener, approval_queue, reporter })
    }
}

/// A new key for the credentials of one run. It exists in this process only.
pub fn new_keys() -> anyhow::Result<KeyRing> {
    let mut key = [0; KEY_BYTES];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    Ok(KeyRing::single("local", key)?)
}
