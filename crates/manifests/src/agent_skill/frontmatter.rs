//! Splits and parses `SKILL.md`: YAML between two lines of `---`, then Markdown.

mod requote;

use sympozium_api::text::quote;

use super::super::invisible_chars;
use super::super::load::{Budget, load};
use super::super::problem::{Problem, Problems, Severity};
use super::super::sources::decode;
use super::super::tree::{Mark, Node, Value};

const FENCE: &str = "---";

/// How to begin a skill, for hints.
const EXAMPLE: &str = "start the file with the lines `---`, `name: …`, `description: …` and `---`";

/// The content of `SKILL.md`.
#[derive(Debug)]
pub struct Document {
    /// The frontmatter: an object with the positions in the file.
    pub head: Node,
    /// The text of the frontmatter, on the lines of the file.
    head_text: String,
    /// The Markdown, with line feeds between its lines, and without control characters.
    pub body: String,
    /// The position of the body.
    pub body_at: Mark,
    pub warnings: Vec<Problem>,
}

/// Parses the bytes of `SKILL.md`.
///
/// # Errors
/// When it is not text, has no frontmatter, or one that is not YAML even with its values quoted.
pub fn parse(bytes: Vec<u8>, budget: &mut Budget) -> Result<Document, Problems> {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        // Decode again to get the position of the error.
        Err(error) => match decode(error.into_bytes()) {
            Ok(text) => text,
            Err(problem) => return Err(single_problem(problem)),
        },
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let parts = split_frontmatter(&text).map_err(single_problem)?;
    let head_text = decode(parts.head.into_bytes()).map_err(single_problem)?;
    // Control characters that are removed from the body reach no model, and have a rule of their own.
    let before_body = &text[..text.len() - parts.body.len()];
    let visible_body = parts.body.replace(|character| !is_text_char(character), " ");
    let mut warnings = invisible_chars::warnings(&format!("{before_body}{visible_body}"));
    let head = load_head(&head_text, budget, &mut warnings)?;
    let body_at = Mark { line: parts.body_line, column: 1 };
    let body = clean_body(parts.body, body_at, &mut warnings);
    Ok(Document { head, head_text, body, body_at, warnings })
}

impl Document {
    /// A scalar as it is written: `1.10` is a text here, although YAML resolves it to a number.
    pub fn scalar_text(&self, node: &Node) -> Option<String> {
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => {
                let line = self.head_text.lines().nth(node.at.line as usize - 1)?;
                let rest = line.chars().skip(node.at.column as usize - 1);
                let ends = |character: &char| character.is_whitespace() || matches!(character, ',' | ']' | '}');
                Some(rest.take_while(|character| !ends(character)).collect())
            }
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }
}

struct Parts<'a> {
    /// With an empty line for each line above it, so that positions are those of the file.
    head: String,
    body: &'a str,
    body_line: u32,
}

fn split_frontmatter(text: &str) -> Result<Parts<'_>, Problem> {
    let mut lines = text.split_inclusive('\n').enumerate();
    let opening = lines.find(|(_, line)| !line.trim().is_empty());
    let Some((first, _)) = opening.filter(|(_, line)| line.trim_end() == FENCE) else {
        let line = opening.map_or(1, |(number, _)| line_number(number));
        let at = Mark { line, column: 1 };
        let problem = Problem::error("frontmatter", at, "the file has no frontmatter");
        return Err(problem.with_hint(EXAMPLE));
    };
    let mut head = "\n".repeat(first + 1);
    for (number, line) in lines {
        if line.trim_end() != FENCE {
            head.push_str(line);
            continue;
        }
        let before: usize = text.split_inclusive('\n').take(number + 1).map(str::len).sum();
        let body = &text[before..];
        let blank = body.len() - body.trim_start_matches('\n').len();
        return Ok(Parts { head, body: &body[blank..], body_line: line_number(number + 1 + blank) });
    }
    let at = Mark { line: line_number(first), column: 1 };
    let problem = Problem::error("frontmatter", at, "the frontmatter is not closed");
    Err(problem.with_hint("write a line `---` after its last field"))
}

fn line_number(index: usize) -> u32 {
    u32::try_from(index + 1).unwrap_or(u32::MAX)
}

fn load_head(text: &str, budget: &mut Budget, warnings: &mut Vec<Problem>) -> Result<Node, Problems> {
    let mut loaded = load(text, budget);
    if is_quoting_error(&loaded.problems)
        && let Some((quoted_text, keys)) = requote::quote_values(text)
    {
        let again = load(&quoted_text, budget);
        if !has_error(&again.problems) {
            loaded = again;
            warnings.extend(keys.into_iter().map(|(key, at)| {
                let message = format!(
                    "the value of {} is not valid YAML without quotes; it is read as if it were quoted",
                    quote(&key)
                );
                Problem::warning("frontmatter-quotes", at, message).with_hint("put the value in quotes")
            }));
        }
    }
    // Warnings about kubectl do not matter: it never reads this file.
    loaded.problems.items.retain(|problem| problem.severity == Severity::Error);
    if has_error(&loaded.problems) {
        return Err(loaded.problems);
    }
    let mut documents = loaded.documents.into_iter();
    match (documents.next(), documents.next()) {
        (Some(head), None) if matches!(head.value, Value::Map(_)) => Ok(head),
        (None, _) => {
            let problem = Problem::error("frontmatter", Mark::START, "the frontmatter is empty");
            Err(single_problem(problem.with_hint(EXAMPLE)))
        }
        (Some(head), None) => {
            let message = format!("the frontmatter must be fields, not {}", head.value.type_name());
            Err(single_problem(Problem::error("frontmatter", head.at, message).with_hint(EXAMPLE)))
        }
        (Some(_), Some(second)) => {
            let message = "the frontmatter must be one document";
            Err(single_problem(Problem::error("frontmatter", second.at, message).with_hint(EXAMPLE)))
        }
    }
}

/// Whether adding quotes could help. Errors about size or depth must not be bypassed this way.
fn is_quoting_error(problems: &Problems) -> bool {
    let mut errors = problems.items.iter().filter(|problem| problem.severity == Severity::Error);
    has_error(problems) && errors.all(|error| matches!(error.rule, "syntax" | "alias"))
}

fn has_error(problems: &Problems) -> bool {
    let is_error = |problem: &Problem| problem.severity == Severity::Error;
    problems.errors_omitted > 0 || problems.items.iter().any(is_error)
}

/// Removes control characters, and turns line separators into line feeds, so that all readers see the same lines.
fn clean_body(body: &str, at: Mark, warnings: &mut Vec<Problem>) -> String {
    let cleaned: String = body
        .chars()
        .filter_map(|character| match character {
            '\u{85}' | '\u{2028}' | '\u{2029}' => Some('\n'),
            other => is_text_char(other).then_some(other),
        })
        .collect();
    if cleaned != body {
        let message = "the text has control characters or line separators; they are removed";
        let problem = Problem::warning("control-characters", at, message);
        warnings.push(problem.with_hint("remove them from the file"));
    }
    let trimmed = cleaned.trim_end();
    if trimmed.is_empty() { String::new() } else { format!("{trimmed}\n") }
}

/// Whether YAML, editors and terminals all handle a character unchanged.
pub fn is_text_char(character: char) -> bool {
    match character {
        '\n' | '\t' => true,
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => false,
        other => !other.is_control(),
    }
}

fn single_problem(problem: Problem) -> Problems {
    let mut problems = Problems::default();
    problems.add(problem);
    problems
}
