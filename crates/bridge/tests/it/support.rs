//! A gateway for the bridge's client: a real one, on a socket in the file system or behind TLS, with the credentials of one
//! run, and behind it an internet whose names and addresses lead to servers of the test on loopback.
//!
//! ```ignore
//! let harness = GatewayHarness::unix(&[credential("web", Public::Open, &["intranet 8080"])]).await;
//! let server = WebServer::plain(|_| Response::page("hello")).await;
//! harness.internet.host("a.example", 80, &server);
//! let stream = harness.client.tunnel(&harness.credential("web"), "a.example", 80).await;
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use sympozium_api::run_plan::GatewayCredential;
use sympozium_bridge::egress_client::{EgressClient, GatewayAddress};
use sympozium_gateway::events::{Event, EventKind};
use sympozium_gateway::{Gateway, Settings};
use sympozium_harness::credential::{keys, now, sign};
use sympozium_harness::{Authority, Internet};
use sympozium_ipc::credential::Credential;
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The one run of a gateway.
pub const RUN: &str = "0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11";
/// The name in the certificate of a gateway behind TLS.
pub const GATEWAY: &str = "gateway.sympozium.test";

/// A gateway with one run, what is behind it, and a bridge's client.
pub struct GatewayHarness {
    pub gateway: Arc<Gateway<Internet>>,
    pub internet: Internet,
    /// Signs the certificates of servers, and the gateway's. The client trusts it.
    pub authority: Authority,
    pub client: Arc<EgressClient>,
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
        let client = EgressClient::new(address.clone(), Some(ca.as_bytes())).expect("a client");
        let client = client.with_extra_roots(ca.as_bytes()).expect("an authority");
        Self { gateway, internet, authority, client: Arc::new(client), address, serving, _directory: directory }
    }

    /// A credential of the run by the name in its plan.
    pub fn credential(&self, name: &str) -> Credential {
        sign(RUN, name, now() + 600)
    }

    /// Ends the gateway: open connections are cut, and new ones refused.
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
