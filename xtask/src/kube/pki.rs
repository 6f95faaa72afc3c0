//! Keys and certificates of one cluster, made new each time and removed with it.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

/// The authority that every certificate of a cluster comes from.
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut parameters = parameters("sympozium test cluster", None);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = parameters.self_signed(&key).context("cannot make the authority")?;
        Ok(Self { certificate, issuer: Issuer::new(parameters, key) })
    }

    pub fn certificate(&self) -> String {
        self.certificate.pem()
    }

    /// A client: Kubernetes reads the user from the common name and the group from the organisation.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        self.sign(parameters(user, group), ExtendedKeyUsagePurpose::ClientAuth)
    }

    pub fn server(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Identity> {
        let mut parameters = parameters("kube-apiserver", None);
        for name in names {
            let name = (*name).try_into().with_context(|| format!("{name:?} is no DNS name"))?;
            parameters.subject_alt_names.push(SanType::DnsName(name));
        }
        parameters.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        self.sign(parameters, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn sign(&self, mut parameters: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> Result<Identity> {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().context("cannot make a key")?;
        let certificate = parameters.signed_by(&key, &self.issuer).context("cannot sign")?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// A key pair for signing service account tokens: (private, public), as PEM.
pub fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate().context("cannot make the token signing key")?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn parameters(common_name: &str, organisation: Option<&str>) -> CertificateParams {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organisation) = organisation {
        name.push(DnType::OrganizationName, organisation);
    }
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = name;
    parameters
}
