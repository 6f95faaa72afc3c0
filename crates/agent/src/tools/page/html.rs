//! Extracts text from HTML in one pass, without a tree.
//!
//! A tree of a hostile page is as deep as the page is long, and a hundred times as large. Text needs neither: the
//! effect of a tag on the layout is known when it is read. The scan only moves forward; unclosed tags and stray end
//! tags cost no more than their length.

mod tokenizer;

use std::borrow::Cow;

use self::tokenizer::{Tag, Token, Tokenizer};
use super::bounded_text::BoundedText;
use super::entities::{Replacement, reference};
use super::links::Links;
use super::writer::{Break, Writer};

/// Most bytes of a title and of an image's alternative text.
const MAX_LABEL: usize = 300;

pub fn extract(html: &str, url: &str, output: BoundedText) -> BoundedText {
    let first = scan(html, url, output, HiddenElements::Skip);
    if first.is_complete {
        return first.text;
    }
    // A hidden element never ended, so everything after it was skipped. Showing too much of such a page is better than
    // too little. This happens once, so the work is still linear.
    scan(html, url, first.text.into_empty(), HiddenElements::Show).text
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HiddenElements {
    Skip,
    Show,
}

pub(super) struct Extraction {
    pub text: BoundedText,
    /// Whether every skipped element had an end.
    pub is_complete: bool,
    /// Bytes that were examined, to test that the work is linear.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests count the work by it"))]
    pub examined: usize,
}

pub(super) fn scan(html: &str, url: &str, output: BoundedText, hidden: HiddenElements) -> Extraction {
    let mut page = Page { writer: Writer::new(output), links: Links::new(url), has_title: false };
    let mut skipped: Option<SkippedElement<'_>> = None;
    let mut tokenizer = Tokenizer::new(html);
    while let Some(token) = tokenizer.next_token() {
        if let Some(out) = &mut skipped {
            match out.advance(&token) {
                SkipState::Inside => continue,
                SkipState::Ended => {
                    skipped = None;
                    continue;
                }
                SkipState::EndedBefore => skipped = None,
            }
        }
        match token {
            Token::Text(text) => page.text(text),
            Token::Raw(tag, text) => page.raw(&tag, text),
            Token::Start(tag) => {
                if hidden == HiddenElements::Skip && is_skipped(&tag) {
                    skipped = Some(SkippedElement { name: tag.name(), depth: 1 });
                } else {
                    page.start(&tag);
                }
            }
            Token::End(tag) => page.end(tag.name().as_ref()),
        }
    }
    Extraction { text: page.writer.end(), is_complete: skipped.is_none(), examined: tokenizer.examined() }
}

struct SkippedElement<'h> {
    name: Cow<'h, str>,
    depth: usize,
}

enum SkipState {
    Inside,
    Ended,
    /// It ended implicitly before this token.
    EndedBefore,
}

impl SkippedElement<'_> {
    fn advance(&mut self, token: &Token<'_>) -> SkipState {
        let may_omit = may_omit_end(&self.name);
        match token {
            Token::Start(tag) if tag.name() == self.name && !tag.self_closing => {
                if may_omit {
                    return SkipState::EndedBefore;
                }
                self.depth += 1;
            }
            Token::End(tag) if tag.name() == self.name => {
                self.depth -= 1;
                if self.depth == 0 {
                    return SkipState::Ended;
                }
            }
            // It may be the end of an inner element; then a little too much is shown.
            Token::End(tag) if may_omit && closes_children(&tag.name()) => return SkipState::EndedBefore,
            _ => {}
        }
        SkipState::Inside
    }
}

fn is_skipped(tag: &Tag<'_>) -> bool {
    match tag.name().as_ref() {
        "svg" | "math" => !tag.self_closing,
        "template" | "canvas" | "audio" | "video" | "object" => true,
        name => tag.is_hidden() && !is_void(name) && !matches!(name, "html" | "body" | "head"),
    }
}

fn may_omit_end(name: &str) -> bool {
    matches!(name, "p" | "li" | "tr" | "td" | "th" | "dt" | "dd" | "option" | "optgroup" | "thead" | "tbody" | "tfoot")
}

/// Elements whose end closes what is in them.
fn closes_children(name: &str) -> bool {
    matches!(
        name,
        "ul" | "ol"
            | "dl"
            | "table"
            | "tbody"
            | "thead"
            | "tr"
            | "select"
            | "div"
            | "section"
            | "article"
            | "main"
            | "body"
    )
}

fn is_void(name: &str) -> bool {
    matches!(
        name,
        "area"
            | "base"
            | "br"
            | "col"
            | "embed"
            | "hr"
            | "img"
            | "input"
            | "link"
            | "meta"
            | "source"
            | "track"
            | "wbr"
    )
}

struct Page<'u> {
    writer: Writer,
    links: Links<'u>,
    has_title: bool,
}

impl Page<'_> {
    fn start(&mut self, tag: &Tag<'_>) {
        let name = tag.name();
        let writer = &mut self.writer;
        match name.as_ref() {
            "br" if writer.is_literal() => writer.character('\n'),
            "br" => writer.break_at_least(Break::Line),
            "h1" => writer.heading("# "),
            "h2" => writer.heading("## "),
            "h3" => writer.heading("### "),
            "h4" => writer.heading("#### "),
            "h5" => writer.heading("##### "),
            "h6" => writer.heading("###### "),
            "ul" | "menu" | "dir" => writer.list(None),
            "ol" => writer.list(Some(tag.start.and_then(|start| start.parse().ok()).unwrap_or(1))),
            "li" => writer.item(),
            "blockquote" => writer.quote(),
            "pre" | "listing" => writer.literal(),
            "code" | "kbd" | "samp" | "tt" if !writer.is_literal() => writer.word("`"),
            "tr" => writer.row(),
            "td" | "th" => writer.cell(),
            "a" => {
                let target = tag.href.and_then(|href| self.links.resolve(href));
                self.writer.link(target);
            }
            "img" => self.image(tag.alt.unwrap_or_default()),
            "hr" => writer.break_at_least(Break::Paragraph),
            "option" | "button" | "input" | "select" => writer.break_at_least(Break::Space),
            name => self.block(name),
        }
    }

    fn end(&mut self, name: &str) {
        let writer = &mut self.writer;
        match name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => writer.block_end(),
            "ul" | "menu" | "dir" | "ol" => writer.list_end(),
            "blockquote" => writer.quote_end(),
            "pre" | "listing" => writer.literal_end(),
            "code" | "kbd" | "samp" | "tt" if !writer.is_literal() => writer.close_word("`"),
            "tr" => writer.row(),
            "table" => writer.table_end(),
            "a" => writer.link_end(),
            "br" => writer.break_at_least(Break::Line),
            "option" | "button" | "select" => writer.break_at_least(Break::Space),
            name => self.block(name),
        }
    }

    /// Line breaks of block elements, at their start and end.
    fn block(&mut self, name: &str) {
        let at_least = match name {
            "p" | "dl" | "table" | "figure" | "details" | "section" | "article" | "main" | "header" | "footer"
            | "nav" | "aside" | "form" | "fieldset" => Break::Paragraph,
            "div" | "dt" | "dd" | "caption" | "figcaption" | "summary" | "address" | "center" | "thead" | "tbody"
            | "tfoot" | "legend" | "hgroup" | "body" | "html" | "search" | "dialog" => Break::Line,
            _ => return,
        };
        self.writer.break_at_least(at_least);
    }

    fn text(&mut self, text: &str) {
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            rest = rest.get(character.len_utf8()..).unwrap_or_default();
            if character == '&'
                && let Some((meaning, length)) = reference(rest)
            {
                rest = rest.get(length..).unwrap_or_default();
                match meaning {
                    Replacement::Character(character) => self.writer.character(character),
                    Replacement::Text(text) => text.chars().for_each(|character| self.writer.character(character)),
                }
            } else {
                self.writer.character(character);
            }
        }
    }

    /// The content of a raw text element.
    fn raw(&mut self, tag: &Tag<'_>, text: &str) {
        match tag.name().as_ref() {
            // A title after text belongs to something else, such as an SVG.
            "title" if !self.has_title && self.writer.is_empty() && !text.trim().is_empty() => {
                self.has_title = true;
                self.writer.heading("# ");
                self.text(super::start(text.trim(), MAX_LABEL));
                self.writer.block_end();
            }
            "textarea" => self.text(text),
            _ => {}
        }
    }

    fn image(&mut self, alt: &str) {
        let alt = alt.trim();
        if !alt.is_empty() {
            self.writer.break_at_least(Break::Space);
            self.writer.word("[image: ");
            self.text(super::start(alt, MAX_LABEL));
            self.writer.close_word("]");
            self.writer.break_at_least(Break::Space);
        }
    }
}
