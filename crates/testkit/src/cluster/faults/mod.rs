//! A way to the API server that fails when a test says so.
//!
//! A program under test gets [`FaultProxy::kubeconfig`] and reaches the real API server by way of this process, which
//! counts what it writes, in order, and can spoil any of it: stop before or after a given write (so that the program can
//! be killed exactly there), answer with an error, do the work and lose the answer, cut watches, hold everything, or be
//! gone for a while as an API server is that restarts.
//!
//! Towards the program it is plain HTTP/1.1 on loopback; towards the API server it has the cluster's own credentials, and
//! one connection for each of the program's.

mod serve;
mod state;
mod upstream;
mod writes;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::oneshot;

pub use state::{Fault, Moment, Refusal, Sprinkle};
pub use writes::{Class, MOST_KEPT_WRITES, Write};

use super::kubectl::Route;
use super::{Cluster, Kubectl};
use state::State;
use upstream::Upstream;

/// Connections at a time; more are closed as they come.
pub const MOST_CONNECTIONS: usize = 1024;
/// Bytes of the body of a request; more is answered with 413.
pub const MOST_REQUEST_BYTES: usize = 16 * 1024 * 1024;

/// How long the port may take to be closed or opened.
const PORT_PATIENCE: Duration = Duration::from_secs(60);

/// A running proxy. When it is dropped it closes its port and all connections.
pub struct FaultProxy {
    address: SocketAddr,
    kubectl: PathBuf,
    state: Arc<State>,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// In whose name the proxy calls the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The administrator of the cluster.
    Administrator,
    /// Somebody with no more rights than the cluster gives them, such as `system:serviceaccount:<namespace>:<name>`.
    User(String),
}

impl FaultProxy {
    /// Starts without any fault, and counts every write of [`Class::Object`]; it listens when this returns.
    ///
    /// # Errors
    ///
    /// When the cluster's kubeconfig cannot be used, or there is no port.
    pub fn start(cluster: &Cluster, caller: Caller) -> Result<Self> {
        let upstream = Upstream::read(cluster.kubeconfig(), caller)?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening on loopback")?;
        let address = listener.local_addr().context("asking for the own port")?;
        let folder = tempfile::tempdir().context("making a folder for the kubeconfig")?;
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "faults",
            "clusters": [{"name": "faults", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "faults", "user": {}}],
            "contexts": [{"name": "faults", "context": {"cluster": "faults", "user": "faults"}}],
        });
        std::fs::write(folder.path().join("kubeconfig"), config.to_string()).context("writing the kubeconfig")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("making a runtime")?;
        let state = Arc::new(State::new());
        let serving = Arc::clone(&state);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("fault-proxy".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        () = serve::listen(listener, address, Arc::new(upstream), serving) => {}
                        _ = stopped => {}
                    }
                });
            })
            .context("starting a thread")?;
        Ok(Self { address, kubectl: cluster.kubectl.clone(), state, folder, stop: Some(stop), thread: Some(thread) })
    }

    /// What the program under test is given.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `kubectl` by way of the proxy.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubectl, Path::new(&self.kubeconfig()), Route::Proxied)
    }

    /// Begins anew: no write has been counted, no fault is set, and of writes to objects those count that `counts` says
    /// (by method and path). What is under way goes on.
    pub fn begin(&self, counts: impl Fn(&str, &str) -> bool + Send + 'static) {
        self.state.begin(Box::new(counts));
    }

    /// What was written since the proxy was started or [`FaultProxy::begin`] was called, in the order in which it came.
    pub fn writes(&self) -> Vec<Write> {
        self.state.writes()
    }

    /// Stops at the counted write `number`, the first being 1: nothing passes any more, in either direction, until
    /// [`FaultProxy::resume`].
    pub fn stop_at(&self, number: usize, moment: Moment) {
        self.state.stop_at(number, moment);
    }

    /// Whether the write of [`FaultProxy::stop_at`] has come.
    pub fn has_stopped(&self) -> bool {
        self.state.has_stopped()
    }

    /// Goes on after a stop. Everybody who was connected is cut off: whatever they still waited for never comes.
    pub fn resume(&self) {
        self.state.resume();
    }

    /// Spoils the counted write `number`, once.
    pub fn spoil(&self, number: usize, fault: Fault) {
        self.state.spoil(number, fault);
    }

    /// Spoils some of what comes, chosen by a seed; `None` ends it.
    pub fn sprinkle(&self, sprinkle: Option<Sprinkle>) {
        self.state.sprinkle(sprinkle);
    }

    /// How many requests have been spoilt since [`FaultProxy::begin`].
    pub fn spoilt(&self) -> usize {
        self.state.spoilt()
    }

    /// Cuts every watch that is open now.
    pub fn cut_watches(&self) {
        self.state.cut_watches();
    }

    /// Cuts every watch after it has been open for so long; `None` ends it.
    pub fn cut_watches_after(&self, age: Option<Duration>) {
        self.state.cut_watches_after(age);
    }

    /// How many watches have been cut since [`FaultProxy::begin`].
    pub fn cuts(&self) -> usize {
        self.state.cuts()
    }

    /// Lets no request through until [`FaultProxy::release`]; then they all go on.
    pub fn hold(&self) {
        self.state.hold(true);
    }

    /// See [`FaultProxy::hold`].
    pub fn release(&self) {
        self.state.hold(false);
    }

    /// Cuts everybody off and closes the port, as an API server that has ended. Returns when the port is closed.
    pub fn go_away(&self) -> bool {
        self.state.refuse(true);
        crate::wait_until(PORT_PATIENCE, || !self.state.is_listening())
    }

    /// Listens again at the same port. Returns when it does.
    pub fn come_back(&self) -> bool {
        self.state.refuse(false);
        crate::wait_until(PORT_PATIENCE, || self.state.is_listening())
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that a test could use.
            let _ = thread.join();
        }
    }
}
