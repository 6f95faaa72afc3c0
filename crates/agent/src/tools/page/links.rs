//! Resolves links to absolute addresses.

use sympozium_api::text::is_prose;

/// Longer addresses mostly carry a session or a tracker.
const MAX_TARGET: usize = 300;

const MAX_LINKS: usize = 2_000;

#[derive(Debug)]
pub struct Links<'u> {
    scheme: &'u str,
    origin: &'u str,
    /// Up to and including the last slash of the path.
    directory: String,
    /// Without query and fragment, for links that consist of a query.
    page: &'u str,
    remaining: usize,
}

impl<'u> Links<'u> {
    pub fn new(url: &'u str) -> Self {
        let page = url.split(['?', '#']).next().unwrap_or_default();
        let (scheme, rest) = page.split_once("://").unwrap_or(("https", ""));
        let host = rest.split('/').next().unwrap_or_default();
        let origin = page.get(..page.len() - rest.len() + host.len()).unwrap_or_default();
        let path = page.get(origin.len()..).unwrap_or_default();
        let directory = match path.rfind('/') {
            Some(slash) => format!("{origin}{}", path.get(..=slash).unwrap_or_default()),
            None => format!("{origin}/"),
        };
        Self { scheme, origin, directory, page, remaining: MAX_LINKS }
    }

    /// The absolute address of a link; `None` for fragments, scripts and what is too long.
    pub fn resolve(&mut self, href: &str) -> Option<String> {
        let href = href.trim();
        if href.is_empty() || href.starts_with('#') || href.len() > MAX_TARGET || self.remaining == 0 {
            return None;
        }
        let href = href.split('#').next().unwrap_or_default().replace("&amp;", "&");
        let target = match scheme(&href) {
            Some("http" | "https" | "mailto") => href,
            Some(_) => return None,
            None if href.starts_with("//") => format!("{}:{href}", self.scheme),
            None if href.starts_with('/') => format!("{}{href}", self.origin),
            None if href.starts_with('?') => self.join(self.page, &href)?,
            None => self.relative(&href)?,
        };
        if target.len() > MAX_TARGET {
            return None;
        }
        self.remaining -= 1;
        // Escape what would end the Markdown link.
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

    fn join(&self, start: &str, href: &str) -> Option<String> {
        (start.len() + href.len() <= MAX_TARGET).then(|| format!("{start}{href}"))
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
                return self.join(start, href);
            }
        }
    }
}

/// `other` for schemes that are not known.
fn scheme(href: &str) -> Option<&'static str> {
    let (before, _) = href.split_once(':')?;
    if before.is_empty() || !before.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
        return None;
    }
    let known = ["http", "https", "mailto"];
    Some(known.into_iter().find(|known| before.eq_ignore_ascii_case(known)).unwrap_or("other"))
}
