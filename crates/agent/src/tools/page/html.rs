//! HTML as text, in one pass and without a tree.
//!
//! A tree of a hostile page is as deep as the page is long, and a hundred times as large. Text needs neither: what a tag means
//! for the lines around it is known when it is read. The scan only ever moves forward; tags that nobody closes, or that close
//! nothing, cost what they are long.

mod scan;

use std::borrow::Cow;

use self::scan::{Piece, Scan, Tag};
use super::entities::{Meaning, reference};
use super::kept::Kept;
use super::links::Links;
use super::writer::{Break, Writer};

/// Most characters of a title, and of what stands for an image.
const MOST_LABEL: usize = 300;

/// The text of a page that is at `url`.
pub fn text(html: &str, url: &str, kept: Kept) -> Kept {
    let first = read(html, url, kept, Hidden::LeftOut);
    if first.ended {
        return first.kept;
    }
    // Something that is not shown never ended, and so all that follows was left out. A page that is broken this way is better
    // read with too much than with too little. This happens once, so the work is still linear.
    read(html, url, first.kept.emptied(), Hidden::Shown).kept
}

/// Whether elements that a browser does not show are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    LeftOut,
    Shown,
}

/// A page, read to its end.
pub(super) struct Read {
    pub kept: Kept,
    /// Whether everything that was left out had an end.
    pub ended: bool,
    /// Bytes that were looked at.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests count the work by it"))]
    pub looked_at: usize,
}

pub(super) fn read(html: &str, url: &str, kept: Kept, hidden: Hidden) -> Read {
    let mut page = Page { writer: Writer::new(kept), links: Links::of(url), titled: false };
    let mut left_out: Option<LeftOut<'_>> = None;
    let mut scan = Scan::new(html);
    while let Some(piece) = scan.next_piece() {
        if let Some(out) = &mut left_out {
            match out.after(&piece) {
                After::Inside => continue,
                After::Ended => {
                    left_out = None;
                    continue;
                }
                After::EndedBefore => left_out = None,
            }
        }
        match piece {
            Piece::Text(text) => page.text(text),
            Piece::Raw(tag, text) => page.raw(&tag, text),
            Piece::Start(tag) => {
                if hidden == Hidden::LeftOut && is_left_out(&tag) {
                    left_out = Some(LeftOut { name: tag.name(), depth: 1 });
                } else {
                    page.start(&tag);
                }
            }
            Piece::End(tag) => page.end(tag.name().as_ref()),
        }
    }
    Read { kept: page.writer.end(), ended: left_out.is_none(), looked_at: scan.looked_at() }
}

/// An element of which nothing is shown.
struct LeftOut<'h> {
    name: Cow<'h, str>,
    depth: usize,
}

/// Where a piece is, seen from an element of which nothing is shown.
enum After {
    Inside,
    /// The piece is its end.
    Ended,
    /// It ended without an end tag, and the piece is not its own.
    EndedBefore,
}

impl LeftOut<'_> {
    fn after(&mut self, piece: &Piece<'_>) -> After {
        let lax = end_may_be_missing(&self.name);
        match piece {
            Piece::Start(tag) if tag.name() == self.name && !tag.closes_itself => {
                if lax {
                    return After::EndedBefore;
                }
                self.depth += 1;
            }
            Piece::End(tag) if tag.name() == self.name => {
                self.depth -= 1;
                if self.depth == 0 {
                    return After::Ended;
                }
            }
            // It may be the end of something inside; then a little too much is shown.
            Piece::End(tag) if lax && holds_others(&tag.name()) => return After::EndedBefore,
            _ => {}
        }
        After::Inside
    }
}

fn is_left_out(tag: &Tag<'_>) -> bool {
    match tag.name().as_ref() {
        "svg" | "math" => !tag.closes_itself,
        "template" | "canvas" | "audio" | "video" | "object" => true,
        name => tag.is_hidden() && !is_void(name) && !matches!(name, "html" | "body" | "head"),
    }
}

fn end_may_be_missing(name: &str) -> bool {
    matches!(name, "p" | "li" | "tr" | "td" | "th" | "dt" | "dd" | "option" | "optgroup" | "thead" | "tbody" | "tfoot")
}

/// Elements whose end is the end of what is in them.
fn holds_others(name: &str) -> bool {
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

/// A page as it is read.
struct Page<'u> {
    writer: Writer,
    links: Links<'u>,
    titled: bool,
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
                let target = tag.href.and_then(|href| self.links.target(href));
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

    /// What any other element does at its start and at its end.
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
                    Meaning::Character(character) => self.writer.character(character),
                    Meaning::Text(text) => text.chars().for_each(|character| self.writer.character(character)),
                }
            } else {
                self.writer.character(character);
            }
        }
    }

    /// The content of an element in which there are no tags.
    fn raw(&mut self, tag: &Tag<'_>, text: &str) {
        match tag.name().as_ref() {
            // A title that comes after text is none of the page's.
            "title" if !self.titled && self.writer.is_empty() && !text.trim().is_empty() => {
                self.titled = true;
                self.writer.heading("# ");
                self.text(super::start(text.trim(), MOST_LABEL));
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
            self.text(super::start(alt, MOST_LABEL));
            self.writer.close_word("]");
            self.writer.break_at_least(Break::Space);
        }
    }
}
