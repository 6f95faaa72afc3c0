//! The trusted CAs and the TLS configuration.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::EgressError;

/// Maximum number of bytes of CA certificates, in PEM.
pub const MAX_ROOTS_BYTES: usize = 1 << 20;
/// Maximum number of CA certificates.
pub const MAX_ROOTS: usize = 1024;
/// Maximum number of TLS sessions that are stored for resumption.
const MAX_SESSIONS: usize = 16;

/// The CA of the gateway's certificate, and no other. Each certificate must be valid.
pub fn gateway_roots(pem: &[u8]) -> Result<RootCertStore, EgressError> {
    let unusable = |why| EgressError::Roots { which: "certificate of the gateway's authority", why };
    let mut roots = RootCertStore::empty();
    for certificate in parse_certificates(pem).map_err(unusable)? {
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    Ok(roots)
}

/// CAs besides the public ones. The bundles of operating systems contain some that cannot be used; those are skipped,
/// which only reduces trust.
pub fn extra_roots(pem: &[u8]) -> Result<RootCertStore, EgressError> {
    let unusable = |why| EgressError::Roots { which: "list of further authorities", why };
    let mut roots = RootCertStore::empty();
    let certificates = parse_certificates(pem).map_err(unusable)?;
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err(unusable("none of its certificates is a good one".to_owned())),
        _ => Ok(roots),
    }
}

/// The public CAs, and the additional ones.
pub fn server_roots(extra: &RootCertStore) -> RootCertStore {
    let mut roots = extra.clone();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots
}

/// TLS 1.2 and newer, with one ALPN protocol.
pub fn client_config(roots: RootCertStore, protocol: &[u8]) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::in_memory_sessions(MAX_SESSIONS);
    Ok(config)
}

fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    if pem.len() > MAX_ROOTS_BYTES {
        return Err(format!("it has more than {MAX_ROOTS_BYTES} bytes"));
    }
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        if certificates.len() == MAX_ROOTS {
            return Err(format!("it has more than {MAX_ROOTS} certificates"));
        }
        certificates.push(certificate.map_err(|error| error.to_string())?);
    }
    if certificates.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(certificates)
}
