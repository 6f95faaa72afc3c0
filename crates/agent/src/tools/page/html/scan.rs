//! Tags and what is between them. The scan moves forward only, by bytes that are all ASCII, so every slice is at a boundary.

use std::borrow::Cow;

/// Most bytes of an element's name that matter: longer ones are nobody's.
const MOST_NAME: usize = 16;

/// Most bytes of a `style` that are searched.
const MOST_STYLE: usize = 256;

/// A piece of a page.
#[derive(Debug)]
pub enum Piece<'h> {
    /// Text, with its references as they are written.
    Text(&'h str),
    Start(Tag<'h>),
    End(Tag<'h>),
    /// An element in which there are no tags, and what it holds.
    Raw(Tag<'h>, &'h str),
}

/// A tag, with the attributes that matter here.
#[derive(Debug, Default)]
pub struct Tag<'h> {
    name: &'h str,
    pub closes_itself: bool,
    pub href: Option<&'h str>,
    pub alt: Option<&'h str>,
    pub start: Option<&'h str>,
    hidden: bool,
}

impl<'h> Tag<'h> {
    /// The name in lower case; nothing for one that is too long to be known.
    pub fn name(&self) -> Cow<'h, str> {
        if self.name.len() > MOST_NAME {
            Cow::Borrowed("")
        } else if self.name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(self.name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(self.name)
        }
    }

    /// Whether a browser does not show the element.
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    fn is_raw(&self) -> bool {
        matches!(
            self.name().as_ref(),
            "script" | "style" | "noscript" | "iframe" | "noembed" | "noframes" | "title" | "textarea" | "xmp"
        )
    }

    fn attribute(&mut self, name: &str, value: &'h str) {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("href") {
            self.href.get_or_insert(value);
        } else if is("alt") {
            self.alt.get_or_insert(value);
        } else if is("start") {
            self.start.get_or_insert(value);
        } else if is("hidden") {
            // `until-found` is shown to who searches, and a model does.
            self.hidden |= !value.eq_ignore_ascii_case("until-found");
        } else if is("aria-hidden") {
            self.hidden |= value.eq_ignore_ascii_case("true");
        } else if is("style") {
            self.hidden |= hides(value);
        }
    }
}

/// Whether a style makes an element invisible.
fn hides(style: &str) -> bool {
    let style: String = style
        .chars()
        .take(MOST_STYLE)
        .filter(|character| !character.is_whitespace())
        .map(|character| character.to_ascii_lowercase())
        .collect();
    style.split(';').any(|rule| {
        let rule = rule.strip_suffix("!important").unwrap_or(rule);
        matches!(rule, "display:none" | "visibility:hidden" | "opacity:0" | "font-size:0" | "font-size:0px")
    })
}

/// A scan of a page.
#[derive(Debug)]
pub struct Scan<'h> {
    html: &'h str,
    at: usize,
    /// Bytes that were looked at, some of them twice.
    looked_at: usize,
}

impl<'h> Scan<'h> {
    pub fn new(html: &'h str) -> Self {
        Self { html, at: 0, looked_at: 0 }
    }

    pub fn looked_at(&self) -> usize {
        self.looked_at
    }

    pub fn next_piece(&mut self) -> Option<Piece<'h>> {
        loop {
            if self.byte(0)? != b'<' {
                return Some(Piece::Text(self.until(|byte| byte == b'<')));
            }
            match (self.byte(1), self.byte(2)) {
                (Some(b'a'..=b'z' | b'A'..=b'Z'), _) => {
                    self.forward(1);
                    // A tag that the end of the page cuts off is none.
                    let tag = self.tag()?;
                    if tag.is_raw() && !tag.closes_itself {
                        let text = self.raw_text(tag.name);
                        return Some(Piece::Raw(tag, text));
                    }
                    return Some(Piece::Start(tag));
                }
                (Some(b'/'), Some(b'a'..=b'z' | b'A'..=b'Z')) => {
                    self.forward(2);
                    return Some(Piece::End(self.tag()?));
                }
                (Some(b'!'), Some(b'-')) if self.byte(3) == Some(b'-') => {
                    self.forward(4);
                    self.comment();
                }
                (Some(b'!' | b'?' | b'/'), _) => {
                    self.until(|byte| byte == b'>');
                    self.forward(1);
                }
                _ => {
                    let from = self.at;
                    self.forward(1);
                    return Some(Piece::Text(self.html.get(from..self.at)?));
                }
            }
        }
    }

    /// A tag from its name on, and its end. None when the page ends before it does.
    fn tag(&mut self) -> Option<Tag<'h>> {
        let mut tag = Tag {
            name: self.until(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>')),
            ..Tag::default()
        };
        loop {
            self.until(|byte| !byte.is_ascii_whitespace());
            match self.byte(0)? {
                b'>' => {
                    self.forward(1);
                    return Some(tag);
                }
                b'/' => {
                    self.forward(1);
                    tag.closes_itself = self.byte(0) == Some(b'>');
                }
                _ => {
                    let (name, value) = self.attribute()?;
                    tag.attribute(name, value);
                }
            }
        }
    }

    fn attribute(&mut self) -> Option<(&'h str, &'h str)> {
        let from = self.at;
        // A name may begin with `=`, which so is never left where it is.
        self.forward(1);
        self.until(|byte| byte.is_ascii_whitespace() || matches!(byte, b'=' | b'/' | b'>'));
        let name = self.html.get(from..self.at)?;
        self.until(|byte| !byte.is_ascii_whitespace());
        if self.byte(0)? != b'=' {
            return Some((name, ""));
        }
        self.forward(1);
        self.until(|byte| !byte.is_ascii_whitespace());
        let value = match self.byte(0)? {
            quote @ (b'"' | b'\'') => {
                self.forward(1);
                let value = self.until(|byte| byte == quote);
                self.forward(1);
                value
            }
            _ => self.until(|byte| byte.is_ascii_whitespace() || byte == b'>'),
        };
        Some((name, value))
    }

    /// Up to the end of a comment, which `<!-->` and `<!--->` have at once.
    fn comment(&mut self) {
        if self.byte(0) == Some(b'>') {
            return self.forward(1);
        }
        while self.byte(0).is_some() {
            self.until(|byte| byte == b'-');
            self.forward(1);
            while self.byte(0) == Some(b'-') || (self.byte(0), self.byte(1)) == (Some(b'!'), Some(b'>')) {
                self.forward(1);
            }
            if self.byte(0) == Some(b'>') {
                return self.forward(1);
            }
        }
    }

    /// Everything up to the end tag of an element in which there are no tags, or up to the end of the page.
    fn raw_text(&mut self, name: &str) -> &'h str {
        let from = self.at;
        loop {
            self.until(|byte| byte == b'<');
            let to = self.at;
            if self.byte(0).is_none() {
                return self.html.get(from..to).unwrap_or_default();
            }
            self.forward(1);
            if self.byte(0) != Some(b'/') {
                continue;
            }
            self.forward(1);
            let found = self.until(|byte| !byte.is_ascii_alphanumeric());
            if found.eq_ignore_ascii_case(name) {
                self.until(|byte| byte == b'>');
                self.forward(1);
                return self.html.get(from..to).unwrap_or_default();
            }
        }
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.html.as_bytes().get(self.at + ahead).copied()
    }

    fn forward(&mut self, bytes: usize) {
        let to = (self.at + bytes).min(self.html.len());
        // All that is stepped over is ASCII but for the first byte of an attribute's name.
        let to = self.html.ceil_char_boundary(to);
        self.looked_at += to - self.at;
        self.at = to;
    }

    /// Everything before the first such byte, which has to be one that no character holds but its own.
    fn until(&mut self, such: impl Fn(u8) -> bool) -> &'h str {
        let rest = self.html.as_bytes().get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| such(*byte)).unwrap_or(rest.len());
        let from = self.at;
        self.at += length;
        self.looked_at += length + 1;
        self.html.get(from..self.at).unwrap_or_default()
    }
}
