//! An authority of the server's own, and a certificate by it.

use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

/// Serves TLS for `host`; gives the certificate of the authority as PEM too.
pub fn acceptor(host: &str) -> anyhow::Result<(TlsAcceptor, String)> {
    let authority_key = KeyPair::generate().context("cannot make a key")?;
    let mut authority = CertificateParams::default();
    let name = "sympozium test authority";
    authority.distinguished_name.push(DnType::CommonName, name);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let certificate = authority.self_signed(&authority_key).context("cannot make the authority")?;
    let issuer = Issuer::new(authority, authority_key);

    let key = KeyPair::generate().context("cannot make a key")?;
    let mut server = CertificateParams::new([host.to_owned()])
        .with_context(|| format!("{host:?} is neither a host name nor an address"))?;
    server.distinguished_name.push(DnType::CommonName, host);
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let signed = server.signed_by(&key, &issuer).context("cannot sign")?;

    // Named here: what the process has for a default is for the code under test to choose.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let secret = PrivateKeyDer::try_from(key.serialize_der())
        .map_err(|error| anyhow::anyhow!("the key cannot be read: {error}"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("no version of TLS can be had")?
        .with_no_client_auth()
        .with_single_cert(vec![signed.der().clone()], secret)
        .context("the certificate cannot be used")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), certificate.pem()))
}
