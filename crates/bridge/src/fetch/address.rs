//! URLs that can be fetched: `http` or `https`, with a host, without a user name or password.

use url::{Host, Url};

/// Maximum number of bytes of a URL in a call.
pub const MAX_URL_BYTES: usize = sympozium_api::limits::URL;
/// Maximum number of bytes of the target of a redirect: URLs with a signature in them are long.
pub const MAX_LOCATION_BYTES: usize = 8192;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    url: Url,
    /// The host to connect to: a name in ASCII, or an IP address in canonical form without brackets.
    host: String,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("it has more than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// Characters that programs parse differently, or drop.
    #[error("it has a control character or a backslash in it, or white space around it")]
    Characters,
    #[error("it is not an address: {0}")]
    Malformed(url::ParseError),
    #[error("it does not begin with `https://` or `http://`")]
    Scheme,
    #[error("it has a user name or password in it; send an Authorization header instead")]
    User,
    /// No host, or none that can be connected to.
    #[error("it has no host")]
    Host,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedirectError {
    #[error("its address has more than {MAX_LOCATION_BYTES} bytes")]
    TooLong,
    /// From https to http.
    #[error("it leads from https to http")]
    Downgrade,
    /// The target is not a URL that can be fetched.
    #[error("{0}")]
    Address(AddressError),
}

impl Address {
    /// Parses the URL of a call.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.len() > MAX_URL_BYTES {
            return Err(AddressError::TooLong);
        }
        check_characters(text)?;
        // The parser would add missing slashes. A text that is not a URL as it is written is refused.
        let scheme = |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        if !scheme("http://") && !scheme("https://") {
            return Err(AddressError::Scheme);
        }
        Self::from_url(Url::parse(text).map_err(AddressError::Malformed)?)
    }

    /// Resolves the `Location` of a response to this URL.
    pub fn resolve_redirect(&self, location: &[u8]) -> Result<Self, RedirectError> {
        if location.len() > MAX_LOCATION_BYTES {
            return Err(RedirectError::TooLong);
        }
        let text = str::from_utf8(location);
        let text = text.map_err(|_| RedirectError::Address(AddressError::Characters))?;
        check_characters(text).map_err(RedirectError::Address)?;
        let joined = self.url.join(text);
        let next = joined.map_err(AddressError::Malformed).and_then(Self::from_url).map_err(RedirectError::Address)?;
        if self.is_https() && !next.is_https() {
            return Err(RedirectError::Downgrade);
        }
        Ok(next)
    }

    fn from_url(mut url: Url) -> Result<Self, AddressError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(AddressError::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::User);
        }
        let host = match url.host() {
            Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            _ => return Err(AddressError::Host),
        };
        let port = match url.port_or_known_default() {
            Some(port @ 1..) => port,
            _ => return Err(AddressError::Host),
        };
        // Fragments are never sent.
        url.set_fragment(None);
        Ok(Self { url, host, port })
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// The explicit port, or the default of the scheme.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// As in a Host header, and for error messages: without path and query, which may contain secrets.
    pub fn authority(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        match self.url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// The path and query of the request.
    pub fn request_target(&self) -> String {
        match self.url.query() {
            Some(query) => format!("{}?{query}", self.url.path()),
            None => self.url.path().to_owned(),
        }
    }

    /// Whether headers that are meant for the other server may be sent to this one too.
    pub fn has_same_origin(&self, other: &Self) -> bool {
        (self.url.scheme(), &self.host, self.port) == (other.url.scheme(), &other.host, other.port)
    }

    /// The URL that the agent is told. A query that the call did not have is removed: servers sign the URLs that they
    /// redirect to, and a signed URL grants access.
    pub fn reported_url(&self, asked: &Self) -> String {
        let mut url = self.url.clone();
        if url.query() != asked.url.query() {
            url.set_query(None);
        }
        url.into()
    }
}

/// Refuses what parsers read differently: this one drops tabs and line ends, trims, and reads a backslash as a slash.
fn check_characters(text: &str) -> Result<(), AddressError> {
    let ambiguous = |letter: char| letter.is_control() || letter == '\\';
    if text.is_empty() || text.trim() != text || text.contains(ambiguous) {
        return Err(AddressError::Characters);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
