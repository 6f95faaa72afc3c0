//! What the probe says: the one type that the probe writes and the testkit reads.
//!
//! The probe itself is the binary of this package; start reading at `main.rs`.

use serde_json::{Value, json};

/// The result of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The attempt as it was asked for: its name, and `=ARGUMENT` if one was given.
    pub attempt: String,
    /// The guarantee that should have stopped it (the names of `sympozium_api::Guarantee`).
    pub guarantee: String,
    /// What was tried, as a person would say it: "read the executor's environment".
    pub what: String,
    /// Whether it worked.
    pub possible: bool,
    /// The error number or what was seen. Never the content of anything that was read.
    pub detail: String,
}

impl Finding {
    /// The line that the probe prints.
    pub fn to_json(&self) -> Value {
        json!({
            "attempt": self.attempt,
            "guarantee": self.guarantee,
            "what": self.what,
            "possible": self.possible,
            "detail": self.detail,
        })
    }

    /// Reads one line of the probe. `None` when it is not one: the line then came from something else.
    pub fn from_line(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |field: &str| value.get(field)?.as_str().map(str::to_owned);
        Some(Self {
            attempt: text("attempt")?,
            guarantee: text("guarantee")?,
            what: text("what")?,
            possible: value.get("possible")?.as_bool()?,
            detail: text("detail")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_survives_the_wire() {
        let finding = Finding {
            attempt: "read-file=/etc/shadow".into(),
            guarantee: "filesystem".into(),
            what: "read a file".into(),
            possible: false,
            detail: "EACCES \"quoted\"\n".into(),
        };
        assert_eq!(Finding::from_line(&finding.to_json().to_string()), Some(finding));
    }

    #[test]
    fn other_lines_are_not_findings() {
        for line in ["", "hello", "{}", "[1]", r#"{"attempt":"x","possible":"yes"}"#] {
            assert_eq!(Finding::from_line(line), None, "{line}");
        }
    }
}
