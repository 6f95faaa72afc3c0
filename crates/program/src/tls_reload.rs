//! A certificate that is read again while the program serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::files::read_secret;

/// The files of a certificate, and the TLS configuration that was read from them last.
pub struct ReloadingTls {
    certificate: PathBuf,
    key: PathBuf,
    alpn_protocols: Vec<Vec<u8>>,
    acceptor: watch::Sender<TlsAcceptor>,
}

impl ReloadingTls {
    /// Reads the certificate chain and its key. The crypto provider of the process must be installed.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or the key is not that of the certificate.
    pub fn load(certificate: &Path, key: &Path, alpn_protocols: Vec<Vec<u8>>) -> anyhow::Result<Self> {
        let acceptor = read_acceptor(certificate, key, &alpn_protocols)?;
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self { certificate, key, alpn_protocols, acceptor: watch::Sender::new(acceptor) })
    }

    /// The TLS configuration. Changes for connections that are accepted after a [`reload`](Self::reload).
    pub fn subscribe(&self) -> watch::Receiver<TlsAcceptor> {
        self.acceptor.subscribe()
    }

    /// Reads the files again. If they are not valid, the previous certificate stays in use, and a warning is logged.
    pub fn reload(&self) {
        match read_acceptor(&self.certificate, &self.key, &self.alpn_protocols) {
            Ok(acceptor) => drop(self.acceptor.send_replace(acceptor)),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "the certificate cannot be used; the one before stays in use"
            ),
        }
    }
}

fn read_acceptor(certificate: &Path, key: &Path, alpn_protocols: &[Vec<u8>]) -> anyhow::Result<TlsAcceptor> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(read_secret(certificate)?.as_bytes()).collect();
    let chain = chain.with_context(|| format!("the certificates in {}", certificate.display()))?;
    let secret_key = PrivateKeyDer::from_pem_slice(read_secret(key)?.as_bytes())
        .with_context(|| format!("the key in {}", key.display()))?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret_key)
        .context("the certificate and its key cannot be used")?;
    config.alpn_protocols = alpn_protocols.to_vec();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
