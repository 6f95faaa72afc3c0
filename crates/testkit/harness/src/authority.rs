//! A certificate authority of the test's own, and the servers that it signs certificates for.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one with this common name.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Its own certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server with a certificate for these names and addresses, that speaks these protocols.
    pub fn server(&self, names: &[&str], protocols: &[&str]) -> Arc<ServerConfig> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).expect("parameters");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a configuration");
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}
