//! Image references, parsed as container runtimes parse them, so that a rule about a registry sees the host that would
//! be contacted and not how the text begins.

mod registry;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::Ipv6Addr;

use sympozium_api::text::quote;

pub use registry::{InvalidRegistryPattern, RegistryPattern};

/// Maximum length of a reference.
pub const MAX_REFERENCE_BYTES: usize = 512;
/// Maximum length of host and repository together, as in registries.
pub const MAX_NAME_BYTES: usize = 255;
/// Maximum length of a tag.
pub const MAX_TAG_BYTES: usize = 128;
/// The host of a reference without one.
pub const DEFAULT_HOST: &str = "docker.io";

/// Another name that runtimes know for [`DEFAULT_HOST`].
const OLD_DEFAULT_HOST: &str = "index.docker.io";
/// The organisation of a repository of one word on [`DEFAULT_HOST`].
const DEFAULT_ORGANISATION: &str = "library";
/// Digest algorithms that runtimes accept, with the length of their sums in hexadecimal digits.
const ALGORITHMS: &[(&str, usize)] = &[("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// An image reference in its full form: `alpine` is `docker.io/library/alpine`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Image {
    host: RegistryHost,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// A registry's host: a name or an address, and a port where the reference has one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegistryHost {
    name: String,
    port: Option<u16>,
}

/// Why a text is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImage {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// Longer than this maximum.
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// Upper case letters, which registries do not have and which hide look-alikes.
    #[error("it has upper case letters")]
    UpperCase,
    /// Not a host name, address or port.
    #[error("{} is not a registry's host", quote(.0))]
    Host(String),
    /// A component of the repository has the wrong syntax.
    #[error(
        "{} is not a part of a repository's name (lower case letters, digits, and `.`, `_` or `-` between them)",
        quote(.0)
    )]
    Component(String),
    /// Not a tag.
    #[error("{} is not a tag", quote(.0))]
    Tag(String),
    /// Not a digest with a known algorithm.
    #[error("{} is not a digest such as `sha256:` and 64 hexadecimal digits", quote(.0))]
    Digest(String),
    /// 64 hexadecimal digits name an image on the node, whatever registry it is from.
    #[error("64 hexadecimal digits are an identifier on one node, not a reference")]
    Identifier,
}

impl Image {
    /// Parses a reference.
    ///
    /// # Errors
    ///
    /// When the text is not a reference, or different runtimes could find different hosts in it.
    pub fn parse(text: &str) -> Result<Self, InvalidImage> {
        if text.is_empty() {
            return Err(InvalidImage::Empty);
        }
        if text.len() > MAX_REFERENCE_BYTES {
            return Err(InvalidImage::TooLong(MAX_REFERENCE_BYTES));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(parse_digest(digest)?)),
            None => (text, None),
        };
        let (name, tag) = split_tag(name)?;
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(InvalidImage::UpperCase);
        }
        let (host, repository) = split_host(name)?;
        let mut repository = parse_repository(repository)?;
        if host.is_default() && !repository.contains('/') {
            repository = format!("{DEFAULT_ORGANISATION}/{repository}");
        }
        let image = Self { host, repository, tag, digest };
        if image.name_len() > MAX_NAME_BYTES {
            return Err(InvalidImage::TooLong(MAX_NAME_BYTES));
        }
        Ok(image)
    }

    /// The registry's host.
    pub fn host(&self) -> &RegistryHost {
        &self.host
    }

    /// The repository's path on that host, without host and tag.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag, if the reference has one.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if the reference has one. With it the registry cannot serve another image.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    fn name_len(&self) -> usize {
        self.host.to_string().len() + 1 + self.repository.len()
    }
}

impl RegistryHost {
    /// Parses a host with or without a port. A name of one word is accepted: the caller has decided that it is a host.
    fn parse(text: &str) -> Result<Self, InvalidImage> {
        let invalid = || InvalidImage::Host(text.to_owned());
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, after) = rest.split_once(']').ok_or_else(invalid)?;
                let address: Ipv6Addr = address.parse().map_err(|_| invalid())?;
                let port = match after {
                    "" => None,
                    _ => Some(after.strip_prefix(':').ok_or_else(invalid)?),
                };
                (format!("[{address}]"), port)
            }
            None => {
                let (name, port) = match text.split_once(':') {
                    Some((name, port)) => (name, Some(port)),
                    None => (text, None),
                };
                if !is_host_name(name) {
                    return Err(invalid());
                }
                (name.to_owned(), port)
            }
        };
        let port = port.map(|port| parse_port(port).ok_or_else(invalid)).transpose()?;
        let name = match name.as_str() {
            OLD_DEFAULT_HOST if port.is_none() => DEFAULT_HOST.to_owned(),
            _ => name,
        };
        Ok(Self { name, port })
    }

    /// The name or address; an IPv6 address has its brackets.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port, if the reference has one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    fn is_default(&self) -> bool {
        self.name == DEFAULT_HOST && self.port.is_none()
    }
}

/// Splits off the tag: what follows the last colon, unless a slash follows (then it is a port).
fn split_tag(name: &str) -> Result<(&str, Option<String>), InvalidImage> {
    let Some((before, tag)) = name.rsplit_once(':') else {
        return Ok((name, None));
    };
    if tag.contains('/') || tag.contains(']') {
        return Ok((name, None));
    }
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good = tag.len() <= MAX_TAG_BYTES
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'));
    if !good {
        return Err(InvalidImage::Tag(tag.to_owned()));
    }
    Ok((before, Some(tag.to_owned())))
}

/// The first component is a host when it cannot be one of a repository: it has a dot or a port, is an address, or
/// `localhost`.
fn split_host(name: &str) -> Result<(RegistryHost, &str), InvalidImage> {
    let default = || RegistryHost { name: DEFAULT_HOST.to_owned(), port: None };
    match name.split_once('/') {
        Some((first, rest)) if is_host(first) => Ok((RegistryHost::parse(first)?, rest)),
        Some(_) => Ok((default(), name)),
        None if is_node_identifier(name) => Err(InvalidImage::Identifier),
        None => Ok((default(), name)),
    }
}

fn is_host(first: &str) -> bool {
    first.contains(['.', ':', '[']) || first == "localhost"
}

fn is_node_identifier(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_host_name(name: &str) -> bool {
    !name.is_empty() && name.split('.').all(is_host_label)
}

fn is_host_label(label: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    label.len() <= 63
        && edge(label.bytes().next())
        && edge(label.bytes().next_back())
        && label.bytes().all(|byte| edge(Some(byte)) || byte == b'-')
}

fn parse_port(port: &str) -> Option<u16> {
    let plain = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    // One text per port, so that an allowed `host:5000` cannot be written as `host:05000`.
    (plain && !port.starts_with('0')).then(|| port.parse().ok()).flatten()
}

fn parse_repository(repository: &str) -> Result<String, InvalidImage> {
    for component in repository.split('/') {
        if !is_path_component(component) {
            return Err(InvalidImage::Component(component.to_owned()));
        }
    }
    Ok(repository.to_owned())
}

/// Words of lower case letters and digits, separated by `.`, `_`, `__` or any number of `-`.
fn is_path_component(component: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let edges = bytes.first().copied().is_some_and(is_word) && bytes.last().copied().is_some_and(is_word);
    edges
        && component
            .split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit())
            .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-'))
}

fn parse_digest(digest: &str) -> Result<String, InvalidImage> {
    let invalid = || InvalidImage::Digest(digest.to_owned());
    let (algorithm, sum) = digest.split_once(':').ok_or_else(invalid)?;
    let good = ALGORITHMS.contains(&(algorithm, sum.len()))
        && sum.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'));
    if good { Ok(digest.to_owned()) } else { Err(invalid()) }
}

impl fmt::Display for RegistryHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}
