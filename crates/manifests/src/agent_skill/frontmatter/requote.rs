//! Corrects the most frequent mistake in frontmatter: `description: Use this when: …`, where the second colon makes
//! YAML parse a mapping within a mapping.

use super::super::super::tree::Mark;

/// The text with quotes around values that need them, and the keys of those; `None` when no value does.
///
/// Line numbers do not change. A value that continues on indented lines gets its closing quote at its end.
pub fn quote_values(text: &str) -> Option<(String, Vec<(String, Mark)>)> {
    let mut quoted: Vec<String> = Vec::new();
    let mut keys = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    let mut index = 0;
    while index < lines.len() {
        let line = lines[index];
        let below = lines[index + 1..]
            .iter()
            .take_while(|next| next.trim().is_empty() || indentation(next) > indentation(line))
            .count();
        let Some(field) = Field::parse(line) else {
            quoted.push(line.to_owned());
            index += 1;
            continue;
        };
        let is_block = field.value.starts_with(['|', '>']);
        let rest = &lines[index + 1..index + 1 + below];
        if is_block {
            quoted.push(line.to_owned());
            quoted.extend(rest.iter().map(|line| (*line).to_owned()));
            index += 1 + below;
            continue;
        }
        if !field.needs_quotes() {
            quoted.push(line.to_owned());
            index += 1;
            continue;
        }
        let at = Mark {
            line: u32::try_from(index + 1).unwrap_or(u32::MAX),
            column: u32::try_from(indentation(line) + 1).unwrap_or(u32::MAX),
        };
        keys.push((field.key.to_owned(), at));
        let escaped = |text: &str| text.trim_end().replace('\'', "''");
        let start = line.len() - field.value.len();
        quoted.push(format!("{}'{}", &line[..start], escaped(field.value)));
        // The quote closes before trailing blank lines.
        let used = rest.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1);
        quoted.extend(rest[..used].iter().map(|line| escaped(line)));
        if let Some(last) = quoted.last_mut() {
            last.push('\'');
        }
        index += 1 + used;
    }
    (!keys.is_empty()).then(|| (quoted.join("\n"), keys))
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// `key: value` on one line.
struct Field<'a> {
    key: &'a str,
    value: &'a str,
}

impl<'a> Field<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (key, value) = line.split_once(':')?;
        let key = key.trim_start_matches(' ');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let is_key = !key.is_empty() && !key.starts_with('-') && key.bytes().all(is_plain);
        let value = value.strip_prefix([' ', '\t'])?.trim_start();
        (is_key && !value.is_empty()).then_some(Self { key, value })
    }

    /// Whether YAML would not parse the value as the plain text that it looks like.
    fn needs_quotes(&self) -> bool {
        let value = self.value.trim_end();
        let is_quoted = |quote: char| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
        let is_flow = value.starts_with('[') && value.ends_with(']') || value.starts_with('{') && value.ends_with('}');
        let is_written_so = is_quoted('"') || is_quoted('\'') || is_flow;
        let starts_badly = value.starts_with(['"', '\'', '[', '{', '`', '@', '%', '*', '?', ']', '}', ',']);
        !is_written_so && (value.contains(": ") || value.ends_with(':') || starts_badly)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(text: &str) -> Option<String> {
        quote_values(text).map(|(text, _)| text)
    }

    #[test]
    fn values_with_a_colon_get_quotes() {
        for (text, expected) in [
            ("description: Use when: asked", Some("description: 'Use when: asked'")),
            ("a: it's: b\nc: d", Some("a: 'it''s: b'\nc: d")),
            ("a: b:\n  more: text\n\nc: d", Some("a: 'b:\n  more: text'\n\nc: d")),
            ("m:\n  k: v: w", Some("m:\n  k: 'v: w'")),
            ("a: `b`", Some("a: '`b`'")),
            ("a: \"b\" c", Some("a: '\"b\" c'")),
            ("a: *.py files", Some("a: '*.py files'")),
            ("a: |\n  b: c: d\ne: f: g", Some("a: |\n  b: c: d\ne: 'f: g'")),
            ("a: 'b: c'", None),
            ("a: [b, c]", None),
            ("a: b\n- c: d: e", None),
            ("", None),
        ] {
            assert_eq!(quoted(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_keys_have_their_positions() {
        let (_, keys) = quote_values("\nm:\n  k: v: w").unwrap();
        assert_eq!(keys, [("k".to_owned(), Mark { line: 3, column: 3 })]);
    }
}
