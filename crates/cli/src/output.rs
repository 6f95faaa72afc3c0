//! Where answers go: data to stdout.

use std::io::{self, Write};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::manifests::problem::{is_printable, printable};

/// Writes an answer to stdout. A reader that has seen enough (`sympozium crds | head`) is not a failure.
pub fn answer(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
    .context("cannot write the answer to stdout")
    .map_err(|error| Failure::new(error, "see that the output's disk is not full"))
}

/// A value as JSON for programs and people: indented, with a line break at its end, and nothing in it that a terminal
/// would act on.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value)
        .context("cannot write the answer as JSON")
        .map_err(|error| Failure::new(error, "use `-o text`, and report this"))?;
    Ok(escaped(text) + "\n")
}

/// JSON in which texts have escapes for what is not printed. Between texts there is nothing of the kind but line breaks.
pub fn escaped(text: String) -> String {
    if text.chars().all(|it| it == '\n' || is_printable(it)) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '\n' || is_printable(character) {
            escaped.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            escaped.push_str(&format!("\\u{unit:04x}"));
        }
    }
    escaped
}

/// A value as YAML, with nothing in it that a terminal would act on: such characters are written as `\u{202e}`.
pub fn yaml(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_saphyr::to_string(value).map_err(anyhow::Error::from);
    let text = match text {
        Ok(text) if !text.chars().all(|it| it == '\n' || is_printable(it)) => {
            let value = serde_json::to_value(value).map_err(anyhow::Error::from);
            value.and_then(|value| Ok(serde_saphyr::to_string(&harmless(value))?))
        }
        text => text,
    };
    text.context("cannot write the answer as YAML")
        .map_err(|error| Failure::new(error, "use `-o json`, and report this"))
}

/// A value whose texts are fit for a terminal. Line breaks are the writer's to mark.
fn harmless(value: Value) -> Value {
    let text = |text: String| {
        let lines: Vec<String> = text.split('\n').map(printable).collect();
        lines.join("\n")
    };
    match value {
        Value::String(it) => Value::String(text(it)),
        Value::Array(all) => all.into_iter().map(harmless).collect(),
        Value::Object(all) => all
            .into_iter()
            .map(|(key, value)| (text(key), harmless(value)))
            .collect(),
        other => other,
    }
}

/// Writes what is not data to stderr. When that is gone there is nobody left to tell.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{202e}b\u{9b}31m\u{1b}[2J\nc\u{e0041}\u{feff}";

    #[test]
    fn json_means_the_same_and_a_terminal_acts_on_nothing_of_it() {
        let text = json(&HOSTILE).unwrap();
        assert!(text.trim_end().chars().all(is_printable), "{text:?}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), HOSTILE);
        assert_eq!(json(&["größe"]).unwrap(), "[\n  \"größe\"\n]\n");
    }

    #[test]
    fn yaml_has_nothing_that_a_terminal_acts_on() {
        let text = yaml(&serde_json::json!({HOSTILE: [HOSTILE], "plain": "größe"})).unwrap();
        assert!(
            text.chars().all(|it| it == '\n' || is_printable(it)),
            "{text:?}"
        );
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read["plain"], "größe");
        assert_eq!(read.as_object().unwrap().len(), 2);
    }
}
