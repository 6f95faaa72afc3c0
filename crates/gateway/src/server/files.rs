//! What the program reads from files: keys and certificates.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use rustix::fs::{Mode, OFlags};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sympozium_ipc::credential::KeyRing;
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use crate::arguments::ServeArguments;

/// Bytes of such a file.
const MAX_BYTES: u64 = 64 * 1024;

/// The keys of credentials.
pub fn keys(path: &Path) -> anyhow::Result<KeyRing> {
    let text = secret(path)?;
    KeyRing::parse(&text).with_context(|| format!("the keys in {}", path.display()))
}

/// A file with a secret in it.
pub fn secret(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    read(path).with_context(|| format!("reading {}", path.display()))
}

fn read(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    // Without waiting for whoever would write into a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    ensure!(file.metadata()?.is_file(), "it is not a regular file");
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    ensure!(
        text.len() as u64 <= MAX_BYTES,
        "it has more than {MAX_BYTES} bytes"
    );
    Ok(text)
}

/// What TLS is served with, if it is, and what may be spoken inside.
pub fn tls(
    arguments: &ServeArguments,
    protocols: Vec<Vec<u8>>,
) -> anyhow::Result<Option<TlsAcceptor>> {
    let (Some(certificate), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) else {
        return Ok(None);
    };
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(secret(certificate)?.as_bytes()).collect();
    let chain = chain.with_context(|| format!("the certificates in {}", certificate.display()))?;
    let secret_key = PrivateKeyDer::from_pem_slice(secret(key)?.as_bytes())
        .with_context(|| format!("the key in {}", key.display()))?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret_key)
        .context("the certificate and its key cannot be used")?;
    config.alpn_protocols = protocols;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
