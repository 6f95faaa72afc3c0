//! Addresses that are fetched: `http` and `https`, a host, no names and passwords.

use url::{Host, Url};

/// Bytes of an address in a call.
pub const MAX_URL_BYTES: usize = sympozium_api::limits::URL;
/// Bytes of an address that a server redirects to: those with a signature in them are long.
pub const MAX_LOCATION_BYTES: usize = 8192;

/// An address that can be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    url: Url,
    /// As it is connected to: a name in ASCII, or an address in its one usual form, without brackets.
    host: String,
    port: u16,
}

/// Why a text is no address that is fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAddress {
    /// Too long.
    #[error("it has more than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// Characters that programs read differently, or drop.
    #[error("it has a control character or a backslash in it, or white space around it")]
    Characters,
    /// Not an address.
    #[error("it is not an address: {0}")]
    Malformed(url::ParseError),
    /// Another scheme.
    #[error("it does not begin with `https://` or `http://`")]
    Scheme,
    /// A name or password in it.
    #[error("it has a user name or password in it; send an Authorization header instead")]
    User,
    /// No host, or none that can be connected to.
    #[error("it has no host")]
    Host,
}

/// Why a redirect is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRedirect {
    /// Too long.
    #[error("its address has more than {MAX_LOCATION_BYTES} bytes")]
    TooLong,
    /// From what is encrypted to what is not.
    #[error("it leads from https to http")]
    Downgrade,
    /// To nowhere.
    #[error("{0}")]
    Address(NoAddress),
}

impl Address {
    /// Reads what a call asks for.
    pub fn parse(text: &str) -> Result<Self, NoAddress> {
        if text.len() > MAX_URL_BYTES {
            return Err(NoAddress::TooLong);
        }
        check_characters(text)?;
        // The parser would put slashes where there are none: what is no address as it is written, is none.
        let scheme = |scheme: &str| text.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme));
        if !scheme("http://") && !scheme("https://") {
            return Err(NoAddress::Scheme);
        }
        Self::of(Url::parse(text).map_err(NoAddress::Malformed)?)
    }

    /// Where a server's `Location` leads from here.
    pub fn redirected(&self, location: &[u8]) -> Result<Self, NoRedirect> {
        if location.len() > MAX_LOCATION_BYTES {
            return Err(NoRedirect::TooLong);
        }
        let text = str::from_utf8(location);
        let text = text.map_err(|_| NoRedirect::Address(NoAddress::Characters))?;
        check_characters(text).map_err(NoRedirect::Address)?;
        let joined = self.url.join(text);
        let next = joined.map_err(NoAddress::Malformed).and_then(Self::of).map_err(NoRedirect::Address)?;
        if self.is_encrypted() && !next.is_encrypted() {
            return Err(NoRedirect::Downgrade);
        }
        Ok(next)
    }

    fn of(mut url: Url) -> Result<Self, NoAddress> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(NoAddress::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(NoAddress::User);
        }
        let host = match url.host() {
            Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            _ => return Err(NoAddress::Host),
        };
        let port = match url.port_or_known_default() {
            Some(port @ 1..) => port,
            _ => return Err(NoAddress::Host),
        };
        // Never sent.
        url.set_fragment(None);
        Ok(Self { url, host, port })
    }

    /// As it is connected to.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Written or usual.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether what is fetched is encrypted on its way.
    pub fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// As a Host header has it, and as people are told about it: no path and no query, where secrets may be.
    pub fn authority(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        match self.url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// What is asked of the server.
    pub fn path(&self) -> String {
        match self.url.query() {
            Some(query) => format!("{}?{query}", self.url.path()),
            None => self.url.path().to_owned(),
        }
    }

    /// Whether headers that are meant for the other's server are meant for this one too.
    pub fn is_at_the_same_server_as(&self, other: &Self) -> bool {
        (self.url.scheme(), &self.host, self.port) == (other.url.scheme(), &other.host, other.port)
    }

    /// As the agent is told about it. A query that the call did not have is left out: servers sign addresses that they
    /// redirect to, and whoever has such an address has what it opens.
    pub fn shown(&self, asked: &Self) -> String {
        let mut url = self.url.clone();
        if url.query() != asked.url.query() {
            url.set_query(None);
        }
        url.into()
    }
}

/// The parser drops tabs and line ends, trims, and reads a backslash as a slash; others do not.
fn check_characters(text: &str) -> Result<(), NoAddress> {
    let ambiguous = |letter: char| letter.is_control() || letter == '\\';
    if text.is_empty() || text.trim() != text || text.contains(ambiguous) {
        return Err(NoAddress::Characters);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
