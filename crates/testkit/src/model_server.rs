//! A stand-in for a hosted model: real HTTP, the providers' own wire formats, and answers that the test scripts.
//!
//! It speaks OpenAI chat completions (`POST /v1/chat/completions`) and Anthropic messages (`POST /v1/messages`), streamed and
//! not, with usage, calls of tools and errors as the providers send them. It answers the requests that a provider would
//! refuse (path, method, key, `anthropic-version`, missing fields) as that provider does, and those do not use up the script.
//!
//! ```
//! use sympozium_testkit::model_server::{Answer, Gate, ModelServer, Reply, Settings, ToolCall};
//!
//! # fn main() -> anyhow::Result<()> {
//! // Plain HTTP at 127.0.0.1, any key. It runs on a thread of its own and ends when it is dropped.
//! let server = ModelServer::start()?;
//! assert!(server.url().starts_with("http://127.0.0.1:"));
//!
//! // The next three answers, in this order; then the default one for all that follow.
//! let call = ToolCall::new("read_file", &serde_json::json!({ "path": "/workspace/a" }));
//! server.push(Answer::text("Let me look.").tool(call).usage(120, 34));
//! server.push(Reply::error(529, "Overloaded"));
//! let gate = Gate::new();
//! server.push(Reply::pieces(["one ", "two"]).gated(&gate));
//! server.set_default(Reply::text("Done."));
//!
//! // Once a client has seen what opens the stream: let "one " through, then the rest.
//! gate.release(1);
//! gate.open();
//!
//! // After the code under test has spoken to it: what came. `wait_for_requests(n)` waits for it.
//! assert_eq!(server.requests(), []);
//!
//! // TLS by an authority of its own, and a key that must be there.
//! let server = Settings::new().tls("api.openai.com").key("sk-test").start()?;
//! assert!(server.ca_pem().is_some_and(|it| it.contains("BEGIN CERTIFICATE")));
//! # Ok(())
//! # }
//! ```
//!
//! Ids and times are the same in each run (`chatcmpl-1`, `msg_1`, `call_1_0`, made of the number of the request), so whole answers
//! can be compared. Every event of a stream is one write, on a socket without delay.

mod anthropic;
mod body;
mod format;
mod gate;
mod openai;
mod record;
mod reply;
mod service;
#[cfg(test)]
mod tests;
mod tls;
mod wire;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Context as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;

pub use format::Format;
pub use gate::Gate;
pub use record::{MOST_KEPT, MOST_KEPT_BYTES, Recorded};
pub use reply::{Answer, Cut, HttpAnswer, ProviderError, Reply, Stop, Then, ToolCall, Usage};

use record::Records;
use service::Service;
use wire::{Control, Wire};

/// Bytes of the body of a request; more is answered with 413.
pub const MOST_REQUEST_BYTES: usize = 64 * 1024 * 1024;
/// Connections at a time; more are closed as they come.
pub const MOST_CONNECTIONS: usize = 1024;
/// The host name of the certificate where a test does not care.
pub const DEFAULT_HOST: &str = "model.test";

/// How a [`ModelServer`] is started.
#[derive(Clone, Debug)]
pub struct Settings {
    address: SocketAddr,
    tls_host: Option<String>,
    key: Option<String>,
    routes: Vec<(String, Format)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            tls_host: None,
            key: None,
            routes: vec![("/v1/chat/completions".into(), Format::OpenAi), ("/v1/messages".into(), Format::Anthropic)],
        }
    }
}

impl Settings {
    /// Plain HTTP at a free port of 127.0.0.1, the usual paths, any key.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens there instead.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// TLS, with a certificate for this host name or address ([`DEFAULT_HOST`] where it does not matter).
    #[must_use]
    pub fn tls(mut self, host: impl Into<String>) -> Self {
        self.tls_host = Some(host.into());
        self
    }

    /// Refuses requests without this key, in the header that the format of the path has for it.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Speaks a format at one more path, which is compared without its query.
    #[must_use]
    pub fn route(mut self, path: impl Into<String>, format: Format) -> Self {
        self.routes.insert(0, (path.into(), format));
        self
    }

    /// Starts the server; it listens when this returns.
    pub fn start(self) -> anyhow::Result<ModelServer> {
        let listener = TcpListener::bind(self.address).with_context(|| format!("cannot listen on {}", self.address))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let tls = self.tls_host.as_deref().map(tls::acceptor).transpose()?;
        let (acceptor, authority) = tls.unzip();
        let url = match &self.tls_host {
            Some(host) => format!("https://{host}:{}", address.port()),
            None => format!("http://{address}"),
        };
        let shared = Arc::new(Shared::new(&self));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().context("cannot make a runtime")?;
        let (stop, stopped) = oneshot::channel();
        let serving = shared.clone();
        let thread = std::thread::Builder::new()
            .name("model-server".into())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        () = accept(listener, acceptor, serving) => {}
                        _ = stopped => {}
                    }
                });
            })
            .context("cannot start a thread")?;
        Ok(ModelServer { address, url, authority, shared, stop: Some(stop), thread: Some(thread) })
    }
}

/// A running model server. When it is dropped it closes all its connections and its port.
pub struct ModelServer {
    address: SocketAddr,
    url: String,
    authority: Option<String>,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ModelServer {
    /// A server with the usual [`Settings`].
    pub fn start() -> anyhow::Result<Self> {
        Settings::new().start()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL without a path: `http://127.0.0.1:port`, or `https://` and the host name of its certificate.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate of the authority to trust, where it speaks TLS.
    pub fn ca_pem(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Adds a reply to the queue. Requests take replies in the order in which their bodies are complete.
    pub fn push(&self, reply: impl Into<Reply>) {
        self.shared.script.lock().queue.push_back(Arc::new(reply.into()));
    }

    /// What is answered when the queue is empty.
    pub fn set_default(&self, reply: impl Into<Reply>) {
        self.shared.script.lock().default = Arc::new(reply.into());
    }

    /// Replies that have not been requested yet.
    pub fn left(&self) -> usize {
        self.shared.script.lock().queue.len()
    }

    /// The requests so far, refused ones too: the newest [`MOST_KEPT`] of them.
    pub fn requests(&self) -> Vec<Arc<Recorded>> {
        self.shared.records.retained()
    }

    /// How many requests came so far.
    pub fn request_count(&self) -> u64 {
        self.shared.records.requests()
    }

    /// Waits until this many requests came, counted from the start, and gives those that are kept.
    ///
    /// It blocks the thread: where the client runs on the same one (a current-thread runtime), ask [`requests`](Self::requests).
    ///
    /// # Panics
    ///
    /// When they do not come in three minutes.
    #[track_caller]
    pub fn wait_for_requests(&self, count: u64) -> Vec<Arc<Recorded>> {
        self.shared.records.wait_for_requests(count);
        self.requests()
    }

    /// How many answers were left by their client before the end: cancelled requests.
    pub fn abandoned(&self) -> u64 {
        self.shared.records.abandoned()
    }

    /// Waits until this many answers were left by their client before the end.
    ///
    /// # Panics
    ///
    /// When they are not in three minutes.
    #[track_caller]
    pub fn wait_for_abandoned(&self, count: u64) {
        self.shared.records.wait_for_abandoned(count);
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // An error means that the thread is gone already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the test and the server's thread share.
struct Shared {
    key: Option<String>,
    routes: Vec<(String, Format)>,
    script: Mutex<Script>,
    records: Arc<Records>,
    connections: AtomicU64,
}

struct Script {
    queue: VecDeque<Arc<Reply>>,
    default: Arc<Reply>,
}

impl Default for Script {
    fn default() -> Self {
        Self { queue: VecDeque::new(), default: Arc::new(Reply::text("Hello from the model server.")) }
    }
}

impl Shared {
    fn new(settings: &Settings) -> Self {
        Self {
            key: settings.key.clone(),
            routes: settings.routes.clone(),
            script: Mutex::default(),
            records: Arc::default(),
            connections: AtomicU64::new(0),
        }
    }

    fn next_reply(&self) -> Arc<Reply> {
        let mut script = self.script.lock();
        let next = script.queue.pop_front();
        next.unwrap_or_else(|| script.default.clone())
    }
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // A connection that was gone before it was accepted, or no descriptor left: neither is a reason to stop, nor to
            // keep others from running.
            tokio::task::yield_now().await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let connection = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        tokio::spawn(async move {
            greet(stream, acceptor, shared, connection).await;
            drop(place);
        });
    }
}

async fn greet(stream: TcpStream, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>, connection: u64) {
    match acceptor {
        None => serve(stream, shared, connection).await,
        Some(acceptor) => {
            // A client that does not trust the authority says so itself.
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream, shared, connection).await;
            }
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, shared: Arc<Shared>, connection: u64) {
    let control = Control::default();
    let service = Arc::new(Service { shared, control: control.clone(), connection });
    let earlier = AtomicU64::new(0);
    let answer = service_fn(move |request| {
        let service = service.clone();
        let earlier = earlier.fetch_add(1, Ordering::Relaxed);
        async move { service.answer(request, earlier).await }
    });
    // How a connection ends is the client's to see: it left, or the script cut it.
    let _ = http1::Builder::new()
        // Without the time, answers are the same in each run.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(Wire::new(stream, control)), answer)
        .await;
}
