//! The way to the real API server, with the cluster's own credentials.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Caller;

/// The header by which an administrator impersonates a user.
const IMPERSONATE: HeaderName = HeaderName::from_static("impersonate-user");

/// The way to the real API server.
pub struct Upstream {
    address: String,
    name: ServerName<'static>,
    connector: TlsConnector,
    caller: Option<HeaderValue>,
}

impl Upstream {
    /// Reads a kubeconfig as `cargo xtask kube` writes it: JSON, one cluster, everything inline.
    pub fn read(kubeconfig: &Path, caller: Caller) -> Result<Self> {
        let text = std::fs::read_to_string(kubeconfig).context("reading the kubeconfig")?;
        let config: Value =
            serde_json::from_str(&text).context("the proxy reads kubeconfigs of test clusters only, which are JSON")?;
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let server = cluster["server"].as_str().unwrap_or_default();
        let address =
            server.strip_prefix("https://").with_context(|| format!("the API server's address is {server:?}"))?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&cluster["certificate-authority-data"])? {
            roots.add(certificate).context("the cluster's authority cannot be used")?;
        }
        let key = PrivateKeyDer::from_pem_slice(&inline(&user["client-key-data"])?)
            .map_err(|error| anyhow!("the administrator's key cannot be read: {error}"))?;
        // Named here: what the process has for a default is for the code under test to choose.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no version of TLS can be had")?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(&user["client-certificate-data"])?, key)
            .context("the administrator's certificate cannot be used")?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let caller = match caller {
            Caller::Administrator => None,
            Caller::User(name) => Some(HeaderValue::from_str(&name).context("naming the caller")?),
        };
        Ok(Self {
            name: ServerName::try_from(host.to_owned()).context("naming the API server")?,
            address: address.to_owned(),
            connector: TlsConnector::from(Arc::new(tls)),
            caller,
        })
    }

    /// One more connection. What drives it ends with it.
    pub async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let socket = TcpStream::connect(&self.address).await?;
        socket.set_nodelay(true)?;
        let stream = self.connector.connect(self.name.clone(), socket).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Whoever waits for an answer on it hears of its end.
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// Makes a request of the program one of the proxy's.
    pub fn dress(&self, headers: &mut hyper::HeaderMap) -> Result<()> {
        headers.insert(hyper::header::HOST, HeaderValue::from_str(&self.address).context("naming the API server")?);
        if let Some(caller) = &self.caller {
            headers.insert(IMPERSONATE, caller.clone());
        }
        Ok(())
    }
}

fn inline(value: &Value) -> Result<Vec<u8>> {
    STANDARD.decode(value.as_str().unwrap_or_default()).context("decoding the kubeconfig")
}

fn certificates(value: &Value) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(&inline(value)?)
        .collect::<Result<_, _>>()
        .map_err(|error| anyhow!("a certificate of the kubeconfig cannot be read: {error}"))
}
