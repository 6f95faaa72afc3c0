//! Output of commands: data to stdout, messages to stderr; JSON and YAML that are safe to print.

use std::io::{self, Write};

use anyhow::Context as _;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::DoubleQuoted;
use sympozium_api::text::is_visible;

use crate::failure::Failure;

/// Prints to stdout. A reader that closes the pipe early (`sympozium crds | head`) is not a failure.
pub fn print_stdout(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
    .context("cannot write to stdout")
    .map_err(|error| Failure::new(error, "check that the disk of the output is not full"))
}

/// Formats a value as indented JSON with a trailing line break, and no character that a terminal would act on.
pub fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value)
        .context("cannot serialize the output as JSON")
        .map_err(|error| Failure::new(error, "use `-o text`, and report this as a bug"))?;
    Ok(escape_json(text) + "\n")
}

/// Escapes unprintable characters of JSON text. They occur in strings only, except for line breaks.
pub fn escape_json(text: String) -> String {
    if text.chars().all(|it| it == '\n' || is_visible(it)) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '\n' || is_visible(character) {
            escaped.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            escaped.push_str(&format!("\\u{unit:04x}"));
        }
    }
    escaped
}

/// Formats a value as YAML that reads back the same, and has no character that a terminal would act on: a string with
/// such characters is double-quoted, with escapes.
pub fn to_yaml(value: &impl Serialize) -> Result<String, Failure> {
    serialize_yaml(value)
        .context("cannot serialize the output as YAML")
        .map_err(|error| Failure::new(error, "use `-o json`, and report this as a bug"))
}

fn serialize_yaml(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(value)?;
    if is_all_printable(&text) {
        return Ok(text);
    }
    let value = serde_json::to_value(value)?;
    // The YAML writer has no option to quote keys. In JSON, which is YAML too, they always are.
    let text = match has_printable_keys(&value) {
        true => serde_saphyr::to_string(&QuoteUnprintable(&value))?,
        false => serde_json::to_string_pretty(&value)? + "\n",
    };
    Ok(escape_yaml(&text))
}

fn is_all_printable(text: &str) -> bool {
    text.chars().all(|it| it == '\n' || is_visible(it))
}

fn has_printable_keys(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().all(has_printable_keys),
        Value::Object(all) => {
            let mut entries = all.iter();
            entries.all(|(key, value)| is_all_printable(key) && has_printable_keys(value))
        }
        _ => true,
    }
}

/// Escapes unprintable characters of YAML in which they occur in double-quoted strings only.
fn escape_yaml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '\n' || is_visible(character) {
            escaped.push(character);
            continue;
        }
        escaped.push_str(&match u32::from(character) {
            code @ ..=0xff => format!("\\x{code:02X}"),
            code @ ..=0xffff => format!("\\u{code:04X}"),
            code => format!("\\U{code:08X}"),
        });
    }
    escaped
}

/// Serialises strings with unprintable characters as double-quoted ones.
struct QuoteUnprintable<'v>(&'v Value);

impl Serialize for QuoteUnprintable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::String(text) if !is_all_printable(text) => DoubleQuoted(text).serialize(serializer),
            Value::Array(all) => serializer.collect_seq(all.iter().map(QuoteUnprintable)),
            Value::Object(all) => serializer.collect_map(all.iter().map(|(key, value)| (key, QuoteUnprintable(value)))),
            other => other.serialize(serializer),
        }
    }
}

/// Prints a line to stderr. If that fails, there is nowhere to report it.
pub fn print_stderr(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{202e}b\u{9b}31m\u{1b}[2J\nc\u{e0041}\u{feff}";

    #[test]
    fn json_reads_back_and_is_printable() {
        let text = to_json(&HOSTILE).unwrap();
        assert!(text.trim_end().chars().all(is_visible), "{text:?}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), HOSTILE);
        assert_eq!(to_json(&["größe"]).unwrap(), "[\n  \"größe\"\n]\n");
    }

    #[test]
    fn yaml_reads_back_and_is_printable() {
        let texts = [
            HOSTILE,
            "#!/bin/sh\nif true; then\n\techo a\nfi\n",
            "a\r\nb\r\n",
            "\r",
            "\t",
            "\u{202e}",
            "x: \u{202e}y",
            "- \u{9b}31m",
            "\u{1}\u{7f}\u{85}\u{a0}\u{2028}\u{2029}\u{feff}\u{e0041}",
            " leading",
            "trailing ",
            " \n both \n ",
            "\n\nlines\n\n",
            "\t\n \t",
            "key: value",
            "\tkey: value\n---\n...\n",
            "---",
            "--- a\n---\n",
            "# no comment",
            "\t# no comment",
            "\"quoted\" and \\ and \\x41 \u{202e}",
            "'quoted'\t",
            "",
            "yes",
            "0x10\t",
            "größe 日本語 🦀\t",
        ];
        let long = format!("\t{}", "word ".repeat(100));
        for text in texts.into_iter().chain([long.as_str()]) {
            let value = serde_json::json!({
                "in": {"a": [text, {text: text}], "plain": "größe"},
                text: [[text]],
                "list": [{"first": text, "second": text}],
            });
            let written = to_yaml(&value).unwrap();
            assert!(written.chars().all(|it| it == '\n' || is_visible(it)), "{written:?}");
            let read: Value = serde_saphyr::from_str(&written).unwrap();
            assert_eq!(read, value, "{written}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_yaml_reads_back(texts in proptest::collection::vec("[ a:#\\-\"'\\\\\t\r\n\u{1}\u{1b}\u{85}\u{9b}\u{202e}\u{feff}]{0,8}", 1..4)) {
            let value = serde_json::json!({"texts": texts, "of": {texts[0].as_str(): texts}});
            let written = to_yaml(&value).unwrap();
            proptest::prop_assert!(written.chars().all(|it| it == '\n' || is_visible(it)));
            let read: Value = serde_saphyr::from_str(&written).unwrap();
            proptest::prop_assert_eq!(read, value);
        }
    }
}
