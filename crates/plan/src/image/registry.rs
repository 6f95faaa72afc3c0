//! Entries of a list of allowed registries.

use std::fmt;

use sympozium_api::text::quote;

use super::{Image, InvalidImage, RegistryHost, parse_repository};

/// One entry: a host, or a path on it. `ghcr.io/org` allows the repository of that path and those below it, by whole
/// path components; `ghcr.io/org/*` only those below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegistryPattern {
    host: RegistryHost,
    /// Path components that a repository must start with.
    path: Vec<String>,
    only_below: bool,
}

/// Why a text is not an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRegistryPattern {
    /// The first component is not a host.
    #[error("{} does not begin with a registry's host; images of Docker Hub are below `docker.io/`", quote(.0))]
    NoHost(String),
    /// Host or path has the wrong syntax.
    #[error(transparent)]
    Malformed(#[from] InvalidImage),
}

impl RegistryPattern {
    /// Parses an entry. A slash at the end is ignored.
    ///
    /// # Errors
    ///
    /// When it has no host, or the syntax of host or path is wrong.
    pub fn parse(text: &str) -> Result<Self, InvalidRegistryPattern> {
        if text.len() > super::MAX_NAME_BYTES {
            return Err(InvalidImage::TooLong(super::MAX_NAME_BYTES).into());
        }
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(InvalidImage::UpperCase.into());
        }
        let text = text.strip_suffix('/').unwrap_or(text);
        let (text, only_below) = match text.strip_suffix("/*") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (host, path) = match text.split_once('/') {
            Some((host, path)) => (host, Some(path)),
            None => (text, None),
        };
        if !super::is_host(host) {
            return Err(InvalidRegistryPattern::NoHost(text.to_owned()));
        }
        let path: Vec<String> = match path {
            Some(path) => parse_repository(path)?.split('/').map(str::to_owned).collect(),
            None => Vec::new(),
        };
        Ok(Self {
            host: RegistryHost::parse(host)?,
            // Every repository is below its host.
            only_below: only_below && !path.is_empty(),
            path,
        })
    }

    /// Whether this entry allows the image.
    pub fn allows(&self, image: &Image) -> bool {
        self.host == image.host && self.covers_path(image.repository.split('/'), false)
    }

    /// Whether this entry allows everything that `other` allows.
    pub fn covers(&self, other: &Self) -> bool {
        self.host == other.host && self.covers_path(other.path.iter().map(String::as_str), other.only_below)
    }

    fn covers_path<'a>(&self, mut path: impl Iterator<Item = &'a str>, only_below: bool) -> bool {
        let starts_so = self.path.iter().all(|component| path.next() == Some(component.as_str()));
        starts_so && (!self.only_below || only_below || path.next().is_some())
    }
}

impl fmt::Display for RegistryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        for component in &self.path {
            write!(f, "/{component}")?;
        }
        if self.only_below {
            f.write_str("/*")?;
        }
        Ok(())
    }
}
