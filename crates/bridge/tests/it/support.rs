//! A world for the bridge: a real gateway, on a socket in the file system or behind TLS, with the credentials of one run,
//! and beyond it an internet whose names and addresses lead to servers of the test on loopback.
//!
//! ```ignore
//! let world = World::unix(&[reach("web", Public::Open, &["intranet 8080"])]).await;
//! let site = Site::plain(|_| Reply::page("hello")).await;
//! world.internet.host("a.example", 80, &site);
//! let stream = world.outward.tunnel(&world.credential("web"), "a.example", 80).await;
//! ```

mod authority;
mod internet;
mod site;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sympozium_api::run_plan::{AllowedHosts, Destination, GatewayCredential, PartName};
use sympozium_bridge::egress_client::{EgressClient, GatewayAddress};
use sympozium_gateway::events::{Event, EventKind};
use sympozium_gateway::{Gateway, Settings};
use sympozium_ipc::credential::{Claims, Credential, KEY_BYTES, KeyRing};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

pub use authority::Authority;
pub use internet::Internet;
pub use site::{Reply, Site};

/// No test waits longer for anything.
pub const TIMEOUT: Duration = Duration::from_secs(90);
/// And looks again so soon.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// The one run of a world.
pub const RUN: &str = "0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11";
/// The name in the certificate of a gateway behind TLS.
pub const GATEWAY: &str = "gateway.sympozium.test";

/// Whether a credential opens public hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Public {
    Open,
    Closed,
}

/// A credential of the plan, with what it opens: each `host`, or `host port`.
pub fn reach(name: &str, public: Public, hosts: &[&str]) -> GatewayCredential {
    let destination = |text: &&str| {
        let (host, port) = match text.split_once(' ') {
            Some((host, port)) => (host, Some(port.parse().expect("a port"))),
            None => (*text, None),
        };
        Destination { host: host.to_owned(), port }
    };
    GatewayCredential {
        name: name.to_owned(),
        part: PartName(format!("part-of-{name}")),
        reach: AllowedHosts { public: public == Public::Open, destinations: hosts.iter().map(destination).collect() },
    }
}

/// A gateway with one run, what is beyond it, and a bridge's way to it.
pub struct GatewayHarness {
    pub gateway: Arc<Gateway<Internet>>,
    pub internet: Internet,
    /// Signs the certificates of servers, and the gateway's. The way out trusts it.
    pub authority: Authority,
    pub outward: Arc<EgressClient>,
    /// Where the gateway is.
    pub address: GatewayAddress,
    serving: JoinHandle<()>,
    /// Where the socket is.
    _directory: TempDir,
}

impl GatewayHarness {
    /// The gateway at a socket in the file system.
    pub async fn unix(credentials: &[GatewayCredential]) -> Self {
        Self::with(Transport::Unix, Settings::default(), credentials).await
    }

    /// The gateway at an address, behind TLS.
    pub async fn tls(credentials: &[GatewayCredential]) -> Self {
        Self::with(Transport::Tls, Settings::default(), credentials).await
    }

    /// All that can be chosen.
    pub async fn with(transport: Transport, settings: Settings, credentials: &[GatewayCredential]) -> Self {
        let internet = Internet::default();
        let authority = Authority::new("the authority of a test");
        let gateway = Gateway::new(keys(), settings, internet.clone());
        let added = gateway.plans().add_credentials(RUN, credentials);
        added.expect("a plan");
        let directory = tempfile::tempdir().expect("a directory");
        let (address, serving) = match transport {
            Transport::Unix => unix(Arc::clone(&gateway), directory.path().join("gateway.sock")),
            Transport::Tls => tls(Arc::clone(&gateway), &authority).await,
        };
        let ca = authority.pem();
        let outward = EgressClient::new(address.clone(), Some(ca.as_bytes())).expect("a way");
        let outward = outward.with_extra_roots(ca.as_bytes()).expect("an authority");
        Self { gateway, internet, authority, outward: Arc::new(outward), address, serving, _directory: directory }
    }

    /// A credential of the run by the name in its plan.
    pub fn credential(&self, name: &str) -> Credential {
        signed(name, now() + 600)
    }

    /// The gateway is gone: open connections are cut, and new ones refused.
    pub fn kill_gateway(&self) {
        self.serving.abort();
        self.gateway.shut_down();
    }

    /// The outcomes so far, in short, with what was asked for.
    pub fn outcomes(&self) -> Vec<String> {
        let mut watcher = self.gateway.events().subscribe(1);
        let mut outcomes = Vec::new();
        while let Some(Ok(event)) = watcher.try_next() {
            outcomes.push(short(&event));
        }
        outcomes
    }
}

/// How the bridge speaks to the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Unix,
    Tls,
}

/// Waits for something that another task does, and says whether it was done in time.
pub async fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        if Instant::now() >= end {
            return condition();
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    true
}

/// The key that credentials are signed with.
pub fn keys() -> KeyRing {
    KeyRing::single("k1", [9; KEY_BYTES]).expect("a key")
}

/// Now, in seconds of Unix time.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_secs()
}

/// A credential of the run.
pub fn signed(name: &str, expires: u64) -> Credential {
    let claims = Claims { run: RUN.to_owned(), name: name.to_owned(), expires };
    keys().sign(&claims).expect("claims that fit")
}

fn unix(gateway: Arc<Gateway<Internet>>, path: PathBuf) -> (GatewayAddress, JoinHandle<()>) {
    let listener = UnixListener::bind(&path).expect("a listener");
    let serving = tokio::spawn(async move {
        gateway.serve_unix(listener).await.expect("it accepts");
    });
    (GatewayAddress::Unix(path), serving)
}

async fn tls(gateway: Arc<Gateway<Internet>>, authority: &Authority) -> (GatewayAddress, JoinHandle<()>) {
    let config = authority.server(&[GATEWAY], &["h2", "http/1.1"]);
    let acceptor = TlsAcceptor::from(config);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (gateway, acceptor) = (Arc::clone(&gateway), acceptor.clone());
            tokio::spawn(async move {
                // A client that does not trust us ends here.
                if let Ok(stream) = acceptor.accept(stream).await {
                    gateway.serve(stream).await;
                }
            });
        }
    });
    let address = GatewayAddress::Tcp { addresses: vec![address], server_name: GATEWAY.to_owned() };
    (address, serving)
}

fn short(event: &Event) -> String {
    let what = match &event.what {
        Some(what) => format!("{}:{}", what.host, what.port),
        None => "-".to_owned(),
    };
    match &event.outcome {
        EventKind::Allowed { rule, .. } => format!("{what} allowed {rule}"),
        EventKind::Refused { reason, .. } => format!("{what} refused {}", reason.as_str()),
        EventKind::Ended { reason, .. } => format!("{what} ended {}", reason.as_str()),
        other => format!("run {other:?}"),
    }
}
