//! Issues the authority and the gateway's certificate, and checks them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

const DAY: Duration = Duration::from_secs(86_400);
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(3_652 * 86_400);
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(90 * 86_400);
/// With less than this left, the certificate is issued again: at two thirds of its lifetime.
pub const RENEW_WITH_LEFT: Duration = Duration::from_secs(30 * 86_400);
/// Certificates are valid from a little before they are issued: clocks differ.
const CLOCK_SKEW: Duration = DAY;
/// The common name of the authority.
const AUTHORITY_NAME: &str = "Sympozium gateway authority";

/// A PEM certificate, followed by its issuers, and its key.
#[derive(Clone)]
pub struct CertificatePair {
    pub certificate: String,
    pub key: Zeroizing<String>,
}

/// Why a pair is unusable. No variant contains the key.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("`tls.crt` is not a certificate in PEM")]
    Certificate,
    #[error("`tls.key` is not a private key in PEM")]
    Key,
    #[error("`tls.key` is not the key of `tls.crt`")]
    OtherKey,
    #[error("`tls.crt` is no authority: {0}")]
    NoAuthority(#[source] rustls::Error),
    #[error("the authority is not one that this program made: what it signs cannot be verified")]
    OtherAuthority,
    #[error("the certificate cannot be made: {0}")]
    Issue(#[from] rcgen::Error),
    #[error("`{0}` is not a name for a certificate")]
    Name(String),
}

#[derive(Debug, PartialEq, Eq)]
pub enum CertificateState {
    Valid,
    /// It expires soon, or has expired.
    Expiring,
    /// It was not issued by this authority for this name.
    Invalid,
}

pub fn issue_authority(now: Timestamp) -> Result<CertificatePair, PairError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut parameters = authority_parameters();
    set_validity(&mut parameters, now, AUTHORITY_LIFE);
    let certificate = parameters.self_signed(&key)?.pem();
    Ok(CertificatePair { certificate, key: Zeroizing::new(key.serialize_pem()) })
}

/// The fields of the authority that certificates issued by it repeat.
fn authority_parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = common_name(AUTHORITY_NAME);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

/// Issues the gateway's certificate for `host`, with the authority's behind it.
pub fn issue_certificate(
    authority: &CertificatePair,
    host: &str,
    now: Timestamp,
) -> Result<CertificatePair, PairError> {
    let authority_key = KeyPair::from_pem(&authority.key).map_err(|_| PairError::Key)?;
    let issuer = Issuer::new(authority_parameters(), authority_key);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut parameters = CertificateParams::new(vec![host.to_owned()])?;
    parameters.distinguished_name = common_name(host);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    set_validity(&mut parameters, now, CERTIFICATE_LIFE);
    let leaf = parameters.signed_by(&key, &issuer)?.pem();
    let pair = CertificatePair {
        certificate: format!("{leaf}{}", authority.certificate),
        key: Zeroizing::new(key.serialize_pem()),
    };
    // An authority that another program created has another name: certificates that we issue for it would not verify.
    match check_certificate(&pair, authority, host, now)? {
        CertificateState::Valid => Ok(pair),
        CertificateState::Expiring | CertificateState::Invalid => Err(PairError::OtherAuthority),
    }
}

pub fn check_authority(authority: &CertificatePair) -> Result<(), PairError> {
    check_key(authority)?;
    root_store(authority).map(|_| ())
}

pub fn check_certificate(
    pair: &CertificatePair,
    authority: &CertificatePair,
    host: &str,
    now: Timestamp,
) -> Result<CertificateState, PairError> {
    if check_key(pair).is_err() {
        return Ok(CertificateState::Invalid);
    }
    let chain = parse_chain(pair)?;
    let Some((leaf, rest)) = chain.split_first() else {
        return Ok(CertificateState::Invalid);
    };
    let provider = Arc::new(default_provider());
    let roots = Arc::new(root_store(authority)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
    let Ok(verifier) = verifier else {
        return Ok(CertificateState::Invalid);
    };
    let name = ServerName::try_from(host).map_err(|_| PairError::Name(host.to_owned()))?;
    let verify = |at: Duration| {
        let at = UnixTime::since_unix_epoch(at);
        verifier.verify_server_cert(leaf, rest, &name, &[], at)
    };
    let now = unix_time(now);
    use rustls::CertificateError::{Expired, ExpiredContext};
    Ok(match (verify(now), verify(now + RENEW_WITH_LEFT)) {
        (Ok(_), Ok(_)) => CertificateState::Valid,
        (Ok(_), Err(_)) | (Err(rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. })), _) => {
            CertificateState::Expiring
        }
        (Err(_), _) => CertificateState::Invalid,
    })
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn set_validity(parameters: &mut CertificateParams, now: Timestamp, life: Duration) {
    let now = date_time_ymd(1970, 1, 1) + unix_time(now);
    parameters.not_before = now - CLOCK_SKEW;
    parameters.not_after = now + life;
}

fn unix_time(time: Timestamp) -> Duration {
    // A time before 1970 makes nothing valid.
    Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0))
}

fn parse_chain(pair: &CertificatePair) -> Result<Vec<CertificateDer<'static>>, PairError> {
    let all = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
    all.collect::<Result<_, _>>().map_err(|_| PairError::Certificate)
}

fn root_store(authority: &CertificatePair) -> Result<RootCertStore, PairError> {
    let certificate =
        CertificateDer::from_pem_slice(authority.certificate.as_bytes()).map_err(|_| PairError::Certificate)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(PairError::NoAuthority)?;
    Ok(roots)
}

fn check_key(pair: &CertificatePair) -> Result<(), PairError> {
    let chain = parse_chain(pair)?;
    if chain.is_empty() {
        return Err(PairError::Certificate);
    }
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|_| PairError::Key)?;
    let key = any_supported_type(&key).map_err(|_| PairError::Key)?;
    let pair = CertifiedKey::new(chain, key);
    pair.keys_match().map_err(|_| PairError::OtherKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "sympozium-gateway.sympozium-system.svc";

    fn at(days: u32) -> Timestamp {
        Timestamp::from_second(1_790_000_000).unwrap() + DAY * days
    }

    #[test]
    fn a_certificate_is_good_for_two_thirds_of_its_life_and_then_renewed() {
        let authority = issue_authority(at(0)).unwrap();
        check_authority(&authority).unwrap();
        let pair = issue_certificate(&authority, HOST, at(0)).unwrap();
        for (days, expected) in [
            (0, CertificateState::Valid),
            (59, CertificateState::Valid),
            (61, CertificateState::Expiring),
            (91, CertificateState::Expiring),
        ] {
            let judged = check_certificate(&pair, &authority, HOST, at(days)).unwrap();
            assert_eq!(judged, expected, "after {days} days");
        }
        // Also close to the authority's own expiry.
        let late = issue_certificate(&authority, HOST, at(3_600)).unwrap();
        assert_eq!(check_certificate(&late, &authority, HOST, at(3_600)).unwrap(), CertificateState::Valid);
    }

    #[test]
    fn what_is_for_another_name_authority_or_key_is_useless() {
        let authority = super::issue_authority(at(0)).unwrap();
        let other = super::issue_authority(at(0)).unwrap();
        let pair = issue_certificate(&authority, HOST, at(0)).unwrap();
        let judged = |pair: &CertificatePair, authority: &CertificatePair, host: &str| {
            check_certificate(pair, authority, host, at(0)).unwrap()
        };
        assert_eq!(judged(&pair, &other, HOST), CertificateState::Invalid);
        let elsewhere = "sympozium-gateway.elsewhere.svc";
        assert_eq!(judged(&pair, &authority, elsewhere), CertificateState::Invalid);
        let mixed = CertificatePair { key: other.key.clone(), ..pair.clone() };
        assert_eq!(judged(&mixed, &authority, HOST), CertificateState::Invalid);
        let empty = CertificatePair { certificate: String::new(), ..pair };
        assert_eq!(judged(&empty, &authority, HOST), CertificateState::Invalid);
    }

    #[test]
    fn another_authority_is_refused() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut parameters = authority_parameters();
        parameters.distinguished_name = common_name("another authority");
        let theirs = CertificatePair {
            certificate: parameters.self_signed(&key).unwrap().pem(),
            key: Zeroizing::new(key.serialize_pem()),
        };
        let made = issue_certificate(&theirs, HOST, at(0));
        assert!(matches!(made, Err(PairError::OtherAuthority)));

        let ours = issue_authority(at(0)).unwrap();
        let mixed = CertificatePair { key: theirs.key, ..ours.clone() };
        assert!(matches!(check_authority(&mixed), Err(PairError::OtherKey)));
        let damaged = CertificatePair { certificate: "-----BEGIN".to_owned(), ..ours };
        assert!(matches!(check_authority(&damaged), Err(PairError::Certificate)));
    }
}
