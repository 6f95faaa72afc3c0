//! Where a link leads, as an address that can be fetched.

use sympozium_api::text::is_prose;

/// Most bytes of an address that is shown with a link. A longer one is mostly a session or a tracker.
const MOST_TARGET: usize = 300;

/// Most links of a page that are shown with their addresses.
const MOST_LINKS: usize = 2_000;

/// The address of a page, taken apart once.
#[derive(Debug)]
pub struct Links<'u> {
    scheme: &'u str,
    /// Scheme and host.
    origin: &'u str,
    /// Everything up to the last slash of the path, that one too.
    directory: String,
    /// Path and host, for links that have only a query.
    page: &'u str,
    left: usize,
}

impl<'u> Links<'u> {
    pub fn of(url: &'u str) -> Self {
        let page = url.split(['?', '#']).next().unwrap_or_default();
        let (scheme, rest) = page.split_once("://").unwrap_or(("https", ""));
        let host = rest.split('/').next().unwrap_or_default();
        let origin = page.get(..page.len() - rest.len() + host.len()).unwrap_or_default();
        let path = page.get(origin.len()..).unwrap_or_default();
        let directory = match path.rfind('/') {
            Some(slash) => format!("{origin}{}", path.get(..=slash).unwrap_or_default()),
            None => format!("{origin}/"),
        };
        Self { scheme, origin, directory, page, left: MOST_LINKS }
    }

    /// The address that a link leads to, if it is one to show: not a place in the same page, nor a script.
    pub fn target(&mut self, href: &str) -> Option<String> {
        let href = href.trim();
        if href.is_empty() || href.starts_with('#') || href.len() > MOST_TARGET || self.left == 0 {
            return None;
        }
        let href = href.split('#').next().unwrap_or_default().replace("&amp;", "&");
        let target = match scheme(&href) {
            Some("http" | "https" | "mailto") => href,
            Some(_) => return None,
            None if href.starts_with("//") => format!("{}:{href}", self.scheme),
            None if href.starts_with('/') => format!("{}{href}", self.origin),
            None if href.starts_with('?') => self.after(self.page, &href)?,
            None => self.relative(&href)?,
        };
        if target.len() > MOST_TARGET {
            return None;
        }
        self.left -= 1;
        // What would end the link, or hide in it, is written as an address may write it.
        let mut shown = String::with_capacity(target.len());
        for character in target.chars() {
            match character {
                ' ' => shown.push_str("%20"),
                '(' => shown.push_str("%28"),
                ')' => shown.push_str("%29"),
                other if other.is_whitespace() || !is_prose(other) => {}
                other => shown.push(other),
            }
        }
        Some(shown)
    }

    fn after(&self, start: &str, href: &str) -> Option<String> {
        (start.len() + href.len() <= MOST_TARGET).then(|| format!("{start}{href}"))
    }

    fn relative(&self, href: &str) -> Option<String> {
        let mut start = self.directory.as_str();
        let mut href = href;
        loop {
            if let Some(rest) = href.strip_prefix("./") {
                href = rest;
            } else if let Some(rest) = href.strip_prefix("../") {
                href = rest;
                let above = start.strip_suffix('/').unwrap_or(start);
                if above.len() > self.origin.len()
                    && let Some(slash) = above.rfind('/')
                {
                    start = start.get(..=slash).unwrap_or(start);
                }
            } else {
                return self.after(start, href);
            }
        }
    }
}

/// The scheme of an address in lower case as it is written by us, if it has one.
fn scheme(href: &str) -> Option<&'static str> {
    let (before, _) = href.split_once(':')?;
    if before.is_empty() || !before.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
        return None;
    }
    let known = ["http", "https", "mailto"];
    Some(known.into_iter().find(|known| before.eq_ignore_ascii_case(known)).unwrap_or("other"))
}
