//! Reads the inputs of a run before it is served: bounded, strict, once.
//!
//! The directories are mounted for the bridge alone and hold what the controller and the kubelet wrote. An invalid file
//! is an error of the installation or of the person who filled a Secret, and the run does not start. The plan is read
//! first and identified by its digest: not a byte of another plan is parsed.

mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{self, GatewayCredential, Role, UnreadablePlan};
use sympozium_ipc::credential::{Credential, MAX_USER_BYTES, PASSWORD_BYTES};
use zeroize::Zeroizing;

use crate::egress_client::MAX_ROOTS_BYTES;
use crate::model::is_reserved_header;
use file::{invalid_content, list_names, read, read_text};

/// Maximum number of bytes of the run's token.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Maximum number of bytes of the CA certificates for the gateway.
pub const MAX_CERTIFICATES_BYTES: usize = 256 << 10;
/// Maximum number of headers in a Secret.
pub const MAX_HEADERS: usize = 32;
/// Maximum number of bytes of a header name.
pub const MAX_HEADER_NAME_BYTES: usize = 128;
/// Maximum number of bytes of a header value.
pub const MAX_HEADER_BYTES: usize = 8 << 10;
/// Maximum number of bytes of the script of a scripted model.
pub const MAX_SCRIPT_BYTES: usize = 1 << 20;
/// Maximum number of bytes of a credential file: name, colon, password, line break.
const MAX_CREDENTIAL_BYTES: usize = MAX_USER_BYTES + 1 + PASSWORD_BYTES + 2;

/// File names in the input directory.
const PLAN_FILE: &str = "plan.json";
const TOKEN_FILE: &str = "token";
const CERTIFICATES_FILE: &str = "ca.crt";
const CREDENTIAL_PREFIX: &str = "credential-";

/// The directories that the bridge reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Plan, credentials, token, certificates.
    pub input: PathBuf,
    /// The directory of the socket for the agent.
    pub door: PathBuf,
    /// The directories of the skills, each named after its pack.
    pub ipc: PathBuf,
    /// Headers for the model provider, one file each.
    pub headers: PathBuf,
    /// The script of a scripted model, one file.
    pub script: PathBuf,
}

pub struct Inputs {
    pub plan: RunPlan,
    pub plan_digest: Digest,
    /// The bridge's credentials at the gateway, by their names in the plan (`model`, `web`).
    pub credentials: BTreeMap<String, Credential>,
    /// The run's token. The kubelet renews the file: [`read_token`] returns the current one.
    pub token: Option<Zeroizing<String>>,
    /// The CA certificates for the gateway, as PEM.
    pub gateway_certificates: Option<Vec<u8>>,
    /// Headers for every model request, by their names in lower case. The values are secret.
    pub headers: BTreeMap<String, Zeroizing<String>>,
    pub script: Option<String>,
}

/// Whether the run must have a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRequirement {
    /// The gateway is reached by network, and authenticates the run by its token.
    Required,
    /// The gateway knows the run by its socket. A token is read if there is one.
    Optional,
}

/// Why the inputs cannot be used. Contains no secret.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("{0} is missing")]
    Missing(PathBuf),
    #[error("{path} cannot be read")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} has more than {most} bytes")]
    TooLong { path: PathBuf, most: usize },
    #[error("{path} has too many files: {most} at most")]
    TooMany { path: PathBuf, most: usize },
    #[error("the plan in {path} cannot be used")]
    Plan {
        path: PathBuf,
        #[source]
        source: UnreadablePlan,
    },
    #[error("{path} {why}")]
    Content { path: PathBuf, why: &'static str },
}

impl InputError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Plan { source: UnreadablePlan::Digest { .. }, .. } => {
                "the plan was replaced after the run was made, or --plan-digest is another run's: delete the run and make it again"
            }
            Self::Plan { .. } => {
                "controller and bridge must be of releases that understand each other: use images of one release"
            }
            Self::Missing(_) => {
                "--input, --headers and --script name directories of the run; `kubectl describe pod` says whether they could be mounted"
            }
            Self::Unreadable { .. } => "the files must be readable for the user of this process",
            Self::TooLong { .. } | Self::TooMany { .. } | Self::Content { .. } => {
                "look at the Secret or ConfigMap that this file comes from"
            }
        }
    }
}

/// Reads the plan. `None` if it is not there yet.
///
/// # Errors
///
/// Returns an error if the file is not the plan of this digest.
pub fn read_plan(input: &Path, digest: &Digest) -> Result<Option<RunPlan>, InputError> {
    let path = input.join(PLAN_FILE);
    let bytes = match read(&path, run_plan::MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(InputError::Missing(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The digest first: nothing else of a wrong plan is parsed.
    let plan = RunPlan::read_verified(&bytes, digest);
    plan.map(Some).map_err(|source| InputError::Plan { path, source })
}

/// The file that [`read_plan`] reads.
pub fn plan_path(input: &Path) -> PathBuf {
    input.join(PLAN_FILE)
}

/// Reads the current token of the run. The kubelet renews it well before it expires, so call this for each use.
///
/// # Errors
///
/// Returns an error if there is none, or if it is not a valid token.
pub fn read_token(input: &Path) -> Result<Zeroizing<String>, InputError> {
    let path = input.join(TOKEN_FILE);
    let token = read_text(&path, MAX_TOKEN_BYTES)?;
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid_content(path, "is not a token"));
    }
    Ok(token)
}

/// Reads certificates of additional CAs.
///
/// # Errors
///
/// Returns an error if the file cannot be read or is too long.
pub fn read_certificates(path: &Path) -> Result<Vec<u8>, InputError> {
    Ok(read(path, MAX_ROOTS_BYTES)?.to_vec())
}

impl Inputs {
    /// Reads everything that belongs to `plan`.
    ///
    /// # Errors
    ///
    /// Returns the first error.
    pub fn read(
        plan: RunPlan,
        plan_digest: Digest,
        places: &Directories,
        token_need: TokenRequirement,
    ) -> Result<Self, InputError> {
        let mut credentials = BTreeMap::new();
        for wanted in bridge_credentials(&plan) {
            let path = places.input.join(format!("{CREDENTIAL_PREFIX}{}", wanted.name));
            let text = read_text(&path, MAX_CREDENTIAL_BYTES)?;
            let run = plan.run.uid.as_str();
            let credential = parse_credential(&text, run, &wanted.name);
            let credential = credential.map_err(|why| invalid_content(path, why))?;
            credentials.insert(wanted.name.clone(), credential);
        }
        let token = match (read_token(&places.input), token_need) {
            (Ok(token), _) => Some(token),
            (Err(InputError::Missing(_)), TokenRequirement::Optional) => None,
            (Err(error), _) => return Err(error),
        };
        Ok(Self {
            credentials,
            token,
            gateway_certificates: read_gateway_certificates(&places.input.join(CERTIFICATES_FILE))?,
            headers: match &plan.model.headers_secret {
                Some(_) => read_headers(&places.headers)?,
                None => BTreeMap::new(),
            },
            script: match &plan.model.script {
                Some(_) => Some(read_script(&places.script)?),
                None => None,
            },
            plan,
            plan_digest,
        })
    }

    pub fn credential(&self, name: &str) -> Option<&Credential> {
        self.credentials.get(name)
    }
}

/// The credentials that the plan gives to the bridge.
fn bridge_credentials(plan: &RunPlan) -> impl Iterator<Item = &GatewayCredential> {
    let bridge = plan.parts.iter().find(|part| part.role == Role::Bridge);
    let credentials = plan.credentials.iter();
    credentials.filter(move |credential| bridge.is_some_and(|bridge| bridge.name == credential.part))
}

/// Parses `USER:PASSWORD`. Only the gateway can verify it. But the bridge can see whether it belongs to another run or
/// has another purpose, which is an error in the Secret.
fn parse_credential(text: &str, run: &str, name: &str) -> Result<Credential, &'static str> {
    const NO_CREDENTIAL: &str = "is not a credential of the gateway";
    let (user, password) = text.split_once(':').ok_or(NO_CREDENTIAL)?;
    let is_hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if user.len() > MAX_USER_BYTES
        || !user.bytes().all(is_plain)
        || password.len() != PASSWORD_BYTES
        || !password.bytes().all(is_hexadecimal)
    {
        return Err(NO_CREDENTIAL);
    }
    let (_key, claims) = user.split_once('.').ok_or(NO_CREDENTIAL)?;
    let (claims, expiry) = claims.rsplit_once('.').ok_or(NO_CREDENTIAL)?;
    if expiry.is_empty() || !expiry.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NO_CREDENTIAL);
    }
    if claims.split_once('.') != Some((run, name)) {
        return Err("is a credential of another run, or for something else");
    }
    Ok(Credential { user: user.to_owned(), password: Zeroizing::new(password.to_owned()) })
}

/// Reads CA certificates as PEM. The TLS library parses them.
fn read_gateway_certificates(path: &Path) -> Result<Option<Vec<u8>>, InputError> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    let bytes = match read(path, MAX_CERTIFICATES_BYTES) {
        Ok(bytes) => bytes,
        Err(InputError::Missing(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !bytes.windows(BEGIN.len()).any(|part| part == BEGIN) {
        return Err(invalid_content(path, "has no certificate in it"));
    }
    Ok(Some(bytes.to_vec()))
}

/// Reads one header from each file: the file name is its name.
fn read_headers(directory: &Path) -> Result<BTreeMap<String, Zeroizing<String>>, InputError> {
    let mut headers = BTreeMap::new();
    for name in list_names(directory, MAX_HEADERS)? {
        let path = directory.join(&name);
        let lower = name.to_ascii_lowercase();
        if !is_header_name(&name) {
            return Err(invalid_content(path, "is not called as a header can be"));
        }
        if is_reserved_header(&lower) {
            return Err(invalid_content(path, "is a header that is not for you to set"));
        }
        let value = read_text(&path, MAX_HEADER_BYTES)?;
        let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        if value.is_empty() || value.trim() != *value || !value.bytes().all(is_plain) {
            return Err(invalid_content(path, "is not the value of a header"));
        }
        if headers.insert(lower, value).is_some() {
            return Err(invalid_content(path, "is there twice, in different spellings"));
        }
    }
    Ok(headers)
}

fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=MAX_HEADER_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_token)
}

/// Reads the only file in the directory, whatever its name.
fn read_script(directory: &Path) -> Result<String, InputError> {
    match &list_names(directory, 1)?[..] {
        [name] => {
            let mut text = read_text(&directory.join(name), MAX_SCRIPT_BYTES)?;
            Ok(std::mem::take(&mut *text))
        }
        _ => Err(invalid_content(directory, "has no script in it")),
    }
}
