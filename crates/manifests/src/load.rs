//! Parses text into trees.
//!
//! The parser produces events. The builder makes nodes of them, counts every node against a [`Budget`], and copies what
//! aliases refer to, which is counted too: an alias is a copy, so a file of 400 bytes can mean gigabytes.

mod builder;

#[cfg(test)]
mod tests;

use granit_parser::{ErrorKind, Event, Parser, ScanError};

use super::limits::{MAX_COPIED_BYTES, MAX_DEPTH, MAX_DOCUMENTS, MAX_KEY_LENGTH, MAX_NODES};
use super::problem::{Problem, Problems};
use super::tree::{Mark, Node};
use builder::{Builder, Stop};

/// What may still be read, over all files.
#[derive(Debug)]
pub struct Budget {
    documents: usize,
    nodes: usize,
    copied_bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { documents: MAX_DOCUMENTS, nodes: MAX_NODES, copied_bytes: MAX_COPIED_BYTES }
    }
}

impl Budget {
    /// A budget of fewer nodes, for callers that read many files and must not spend seconds on a hostile one.
    pub fn with_nodes(nodes: usize) -> Self {
        Self { nodes, ..Self::default() }
    }
}

/// The content of one file.
#[derive(Debug, Default)]
pub struct LoadedFile {
    /// The documents that could be parsed, without empty ones.
    pub documents: Vec<Node>,
    pub problems: Problems,
}

impl LoadedFile {
    /// For a file that cannot be read.
    pub fn from_problem(problem: Problem) -> Self {
        let mut loaded = Self::default();
        loaded.problems.add(problem);
        loaded
    }
}

/// Parses the documents of one file, YAML or JSON.
///
/// A broken document is a problem and is skipped; the ones after it are parsed. When a bound is exceeded, the rest of
/// the file is not read.
pub fn load(text: &str, budget: &mut Budget) -> LoadedFile {
    let mut loaded = LoadedFile::default();
    let options = granit_parser::options! {
        emit_comments: false,
        disallow_directives: true,
        simple_key_max_lookahead: MAX_KEY_LENGTH,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder::new(budget, &mut loaded.problems);
    loop {
        let stop = match parser.next() {
            None => break,
            Some(Ok((Event::DocumentEnd, _))) => {
                loaded.documents.extend(builder.finish_document());
                continue;
            }
            Some(Ok((event, span))) => match builder.handle_event(event, &span) {
                Ok(()) => continue,
                Err(stop) => stop,
            },
            Some(Err(error)) => Stop::Document(syntax_problem(&error)),
        };
        match stop {
            Stop::File(problem) => {
                builder.problems.add(problem);
                break;
            }
            Stop::Document(problem) => {
                builder.problems.add(problem);
                builder.abandon_document();
                // The source cannot fail: the text is in memory.
                if !matches!(parser.proceed_next_document(), Ok(true)) {
                    break;
                }
            }
        }
    }
    loaded
}

fn syntax_problem(error: &ScanError) -> Problem {
    let marker = error.marker();
    let at = mark(marker.line(), marker.col());
    match error.kind() {
        ErrorKind::RecursionLimitExceeded => too_deep(at),
        ErrorKind::UnknownAnchor => Problem::error("alias", at, "the alias names no anchor before it")
            .with_hint("write the value instead of the alias, or put the anchor (&name) before its alias (*name)"),
        kind @ (ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabAtBlockScalarStart) => Problem::error("syntax", at, kind.to_string())
            .with_hint("indent with spaces; YAML does not allow tabs there"),
        kind => Problem::error("syntax", at, kind.to_string()).with_hint(
            "check this line and the one above for indentation, a colon without a space, and unclosed quotes or brackets",
        ),
    }
}

fn too_deep(at: Mark) -> Problem {
    Problem::error("too-deep", at, format!("nested deeper than {MAX_DEPTH} levels"))
        .with_hint("no kind needs that many levels; check that this is a manifest")
}

/// From the parser's counting (lines from 1, columns from 0).
fn mark(line: usize, column: usize) -> Mark {
    Mark {
        line: u32::try_from(line.max(1)).unwrap_or(u32::MAX),
        column: u32::try_from(column.saturating_add(1)).unwrap_or(u32::MAX),
    }
}
