//! Splits HTML into tags and text. It moves forward only, by ASCII bytes, so every slice is at a character boundary.

use std::borrow::Cow;

/// No known element has a longer name.
const MAX_NAME: usize = 16;

const MAX_STYLE: usize = 256;

#[derive(Debug)]
pub enum Token<'h> {
    /// Text with undecoded character references.
    Text(&'h str),
    Start(Tag<'h>),
    End(Tag<'h>),
    /// A raw text element with its content.
    Raw(Tag<'h>, &'h str),
}

#[derive(Debug, Default)]
pub struct Tag<'h> {
    name: &'h str,
    pub self_closing: bool,
    pub href: Option<&'h str>,
    pub alt: Option<&'h str>,
    pub start: Option<&'h str>,
    hidden: bool,
}

impl<'h> Tag<'h> {
    /// In lower case; empty for a name that is too long to be known.
    pub fn name(&self) -> Cow<'h, str> {
        if self.name.len() > MAX_NAME {
            Cow::Borrowed("")
        } else if self.name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(self.name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(self.name)
        }
    }

    /// Whether browsers hide the element.
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
            // `until-found` is found by search, so it is shown to a model.
            self.hidden |= !value.eq_ignore_ascii_case("until-found");
        } else if is("aria-hidden") {
            self.hidden |= value.eq_ignore_ascii_case("true");
        } else if is("style") {
            self.hidden |= hides(value);
        }
    }
}

fn hides(style: &str) -> bool {
    let style: String = style
        .chars()
        .take(MAX_STYLE)
        .filter(|character| !character.is_whitespace())
        .map(|character| character.to_ascii_lowercase())
        .collect();
    style.split(';').any(|rule| {
        let rule = rule.strip_suffix("!important").unwrap_or(rule);
        matches!(rule, "display:none" | "visibility:hidden" | "opacity:0" | "font-size:0" | "font-size:0px")
    })
}

#[derive(Debug)]
pub struct Tokenizer<'h> {
    html: &'h str,
    at: usize,
    /// Bytes examined, some of them twice.
    examined: usize,
}

impl<'h> Tokenizer<'h> {
    pub fn new(html: &'h str) -> Self {
        Self { html, at: 0, examined: 0 }
    }

    pub fn examined(&self) -> usize {
        self.examined
    }

    pub fn next_token(&mut self) -> Option<Token<'h>> {
        loop {
            if self.byte(0)? != b'<' {
                return Some(Token::Text(self.until(|byte| byte == b'<')));
            }
            match (self.byte(1), self.byte(2)) {
                (Some(b'a'..=b'z' | b'A'..=b'Z'), _) => {
                    self.forward(1);
                    // A tag that the end of the page cuts off is ignored.
                    let tag = self.tag()?;
                    if tag.is_raw() && !tag.self_closing {
                        let text = self.raw_text(tag.name);
                        return Some(Token::Raw(tag, text));
                    }
                    return Some(Token::Start(tag));
                }
                (Some(b'/'), Some(b'a'..=b'z' | b'A'..=b'Z')) => {
                    self.forward(2);
                    return Some(Token::End(self.tag()?));
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
                    return Some(Token::Text(self.html.get(from..self.at)?));
                }
            }
        }
    }

    /// A tag from its name on. `None` when the page ends first.
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
                    tag.self_closing = self.byte(0) == Some(b'>');
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
        // A name may start with `=`, so always advance.
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

    /// `<!-->` and `<!--->` end at once.
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

    /// Everything up to the end tag of a raw text element, or the end of the page.
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
        // Everything skipped is ASCII, except for the first byte of an attribute's name.
        let to = self.html.ceil_char_boundary(to);
        self.examined += to - self.at;
        self.at = to;
    }

    /// `matches` must accept ASCII only.
    fn until(&mut self, matches_byte: impl Fn(u8) -> bool) -> &'h str {
        let rest = self.html.as_bytes().get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| matches_byte(*byte)).unwrap_or(rest.len());
        let from = self.at;
        self.at += length;
        self.examined += length + 1;
        self.html.get(from..self.at).unwrap_or_default()
    }
}
