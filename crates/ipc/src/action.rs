//! The exact action that an approver decides about: its hash, and its summary.
//!
//! An approval is valid for one hash. Everything that changes the effect is part of the hash; what is not (the files in
//! the workspace) is stated in the summary.

use std::fmt::Write as _;

use serde::{Serialize, Serializer};
use sympozium_api::digest::{CanonicalJsonError, digest, digest_canonical};
use sympozium_api::names::Digest;

/// The domain of an action's hash.
pub const DOMAIN: &str = "sympozium.ai/action/v1";
/// The domain of the hash of a command's standard input.
pub const STDIN_DOMAIN: &str = "sympozium.ai/stdin/v1";
/// Limit for the summary, in characters. A longer action cannot be approved: an approver would not read all of it.
pub const MAX_SUMMARY: usize = sympozium_api::limits::APPROVAL_SUMMARY;

/// An action, before it is executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Action<'a> {
    /// The run's UID.
    pub run: &'a str,
    /// Unique for every question, so that no answer is valid for a second one.
    pub nonce: &'a str,
    /// The tool's name.
    pub tool: &'a str,
    /// The pack of the tool, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<&'a str>,
    /// The part that would execute it.
    pub target: &'a str,
    /// The operation itself.
    pub deed: Operation<'a>,
    /// The working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<&'a str>,
    /// Standard input of the command. The hash of the action contains its hash.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "by_its_hash")]
    pub stdin: Option<&'a str>,
    /// Timeout in seconds.
    pub timeout_seconds: u32,
}

/// The operation of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation<'a> {
    /// A shell command line.
    Shell(&'a str),
    /// A program with its arguments, without a shell.
    Program(&'a [String]),
    /// A tool that runs no program, with its arguments as JSON text. As text, because two large numbers can be equal in
    /// canonical JSON and different to the tool.
    Call(&'a str),
}

impl Action<'_> {
    /// The hash of the action. Canonical JSON delimits every field, so no two actions have the same text.
    ///
    /// # Errors
    ///
    /// Never: every field can be serialized.
    pub fn digest(&self) -> Result<Digest, CanonicalJsonError> {
        digest(DOMAIN, self)
    }

    /// The text that an approver reads: the whole action, in lines that text from the model can neither imitate nor
    /// reverse. `None` if it is longer than [`MAX_SUMMARY`].
    pub fn summary(&self) -> Option<String> {
        let mut text = String::new();
        let who = match self.pack {
            Some(pack) => format!("{} of {pack}", self.tool),
            None => self.tool.to_owned(),
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "tool: {}", printable_ascii(&who));
        let _ = writeln!(text, "in: {}", printable_ascii(self.target));
        match &self.deed {
            Operation::Shell(line) => {
                let _ = writeln!(text, "shell: {}", printable_ascii(line));
            }
            Operation::Program(words) => {
                for (number, word) in words.iter().enumerate() {
                    let _ = writeln!(text, "word {number}: {}", printable_ascii(word));
                }
            }
            Operation::Call(arguments) => {
                let _ = writeln!(text, "arguments: {}", printable_ascii(arguments));
            }
        }
        match (self.work_dir, &self.deed) {
            (Some(directory), _) => {
                let _ = writeln!(text, "directory: {}", printable_ascii(directory));
            }
            (None, Operation::Shell(_) | Operation::Program(_)) => {
                text.push_str("directory: /workspace, or / where there is none\n");
            }
            (None, Operation::Call(_)) => {}
        }
        if let Some(stdin) = self.stdin {
            let _ = writeln!(text, "input: {}", printable_ascii(stdin));
        }
        let _ = writeln!(text, "seconds: {}", self.timeout_seconds);
        text.push_str("Files in /workspace are not part of this: they may change before it runs.");
        (text.chars().count() <= MAX_SUMMARY).then_some(text)
    }
}

fn by_its_hash<S: Serializer>(stdin: &Option<&str>, serializer: S) -> Result<S::Ok, S::Error> {
    let hash = stdin.map(|stdin| digest_canonical(STDIN_DOMAIN, stdin.as_bytes()));
    hash.serialize(serializer)
}

/// A text in which every character is what it looks like: only printable ASCII characters stay as they are. Letters of
/// other scripts can look like these, run from right to left, or join their neighbours; they are written as `\u{…}`,
/// like control characters, and a backslash is doubled.
pub fn printable_ascii(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            ' ' => shown.push(' '),
            _ if letter.is_ascii_graphic() => shown.push(letter),
            _ => shown.extend(letter.escape_unicode()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn action<'a>(words: &'a [String]) -> Action<'a> {
        Action {
            run: "uid",
            nonce: "1",
            tool: "execute_command",
            pack: Some("k8s-ops"),
            target: "skill-k8s-ops",
            deed: Operation::Program(words),
            work_dir: Some("/workspace"),
            stdin: None,
            timeout_seconds: 30,
        }
    }

    #[test]
    fn everything_that_matters_is_in_the_hash() {
        let (one, two) = (["a b".to_owned()], ["a".to_owned(), "b".to_owned()]);
        let base = action(&one);
        let different = [
            base.clone(),
            Action { run: "other", ..base.clone() },
            Action { nonce: "2", ..base.clone() },
            Action { tool: "other", ..base.clone() },
            Action { pack: None, ..base.clone() },
            Action { pack: Some("k8s-opsskill"), target: "-k8s-ops", ..base.clone() },
            Action { target: "sandbox", ..base.clone() },
            action(&two),
            Action { deed: Operation::Shell("a b"), ..base.clone() },
            Action { work_dir: None, ..base.clone() },
            Action { work_dir: Some("/"), ..base.clone() },
            Action { stdin: Some("in"), ..base.clone() },
            Action { stdin: Some("out"), ..base.clone() },
            Action { timeout_seconds: 31, ..base.clone() },
        ];
        let hashes: BTreeSet<Digest> = different.iter().map(|action| action.digest().expect("JSON")).collect();
        assert_eq!(hashes.len(), different.len());
        assert_eq!(base.digest().expect("JSON"), action(&one).digest().expect("JSON"));
    }

    #[test]
    fn a_person_sees_what_is_there() {
        let words = ["kubectl".to_owned(), "delete\u{202e}txt\nword 9: harmless\u{1b}[2K".to_owned(), "\\n".to_owned()];
        assert_eq!(
            action(&words).summary().expect("short"),
            "tool: execute_command of k8s-ops\n\
             in: skill-k8s-ops\n\
             word 0: kubectl\n\
             word 1: delete\\u{202e}txt\\nword 9: harmless\\u{1b}[2K\n\
             word 2: \\\\n\n\
             directory: /workspace\n\
             seconds: 30\n\
             Files in /workspace are not part of this: they may change before it runs."
        );
        let long = ["x".repeat(MAX_SUMMARY)];
        assert_eq!(action(&long).summary(), None);
    }

    proptest! {
        #[test]
        fn different_texts_are_shown_differently(one: String, other: String) {
            prop_assert_eq!(printable_ascii(&one) == printable_ascii(&other), one == other);
            let shown = printable_ascii(&one);
            prop_assert!(shown.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{shown:?}");
        }
    }
}
