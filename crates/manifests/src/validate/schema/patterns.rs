//! Descriptions of the patterns of our schemas: what a text should be, how to write it, and an example.

use regex_lite::Regex;
use sympozium_api::duration::DurationText;
use sympozium_api::names::{
    Digest, EnvName, HostPattern, ImageRef, LabelName, ModelRef, MountPath, ObjectName, OptionalSecretName,
    SkillFilePath, SkillName, ToolName, ToolPattern, Uid,
};
use sympozium_api::quantity::Quantity;

use sympozium_api::text::printable;

/// The maximum number of characters of a suggestion.
const MAX_GUESS_CHARS: usize = 60;

/// The meaning of a pattern.
#[derive(Debug, PartialEq, Eq)]
pub struct PatternHelp {
    pub pattern: &'static str,
    /// With its article.
    pub what: &'static str,
    /// How to write such a text.
    syntax: &'static str,
    pub example: &'static str,
}

const fn pattern_help(
    pattern: &'static str,
    what: &'static str,
    how: &'static str,
    example: &'static str,
) -> PatternHelp {
    PatternHelp { pattern, what, syntax: how, example }
}

/// Every pattern that our schemas have; a test compares.
pub const PATTERNS: &[PatternHelp] = &[
    pattern_help(DurationText::PATTERN, "a duration", "write numbers with units (ms, s, m, h)", "1h30m"),
    pattern_help(
        Quantity::PATTERN,
        "a quantity",
        "write a number, optionally followed by m, k, M, G, Ki, Mi or Gi",
        "500m",
    ),
    pattern_help(
        ObjectName::PATTERN,
        "a name of an object",
        "use lower-case letters, digits, `-` and `.`",
        "code-review",
    ),
    pattern_help(
        OptionalSecretName::PATTERN,
        "a name of a Secret",
        "use lower-case letters, digits, `-` and `.`",
        "anthropic-key",
    ),
    pattern_help(LabelName::PATTERN, "a name without dots", "use lower-case letters, digits and `-`", "work-dir"),
    pattern_help(
        ModelRef::PATTERN,
        "a name, or a namespace and a name",
        "write its name, or its namespace and name with `/` between",
        "models/llama",
    ),
    pattern_help(
        SkillName::PATTERN,
        "a name of a skill",
        "use letters, digits, `.`, `_` and `-`, with a letter or digit at both ends",
        "code-review",
    ),
    pattern_help(
        SkillFilePath::PATTERN,
        "a path below the skill's directory",
        "write it as `scripts/check.sh`: letters, digits, `.`, `_` and `-` between the slashes, no `.` or `-` in front",
        "scripts/check.sh",
    ),
    pattern_help(
        ToolName::PATTERN,
        "a name of a tool",
        "use lower-case letters, digits and `_`, and start with a letter",
        "list_pods",
    ),
    pattern_help(
        ToolPattern::PATTERN,
        "a tool",
        "write `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool`, `namespace/pack/*` or `*`",
        "k8s-ops/*",
    ),
    pattern_help(
        ImageRef::PATTERN,
        "an image reference",
        "write registry, name and tag or digest, without spaces",
        "ghcr.io/example/tool:v1",
    ),
    pattern_help(
        HostPattern::PATTERN,
        "a host name",
        "write a name or an address without scheme, port and path, or `*.` and a domain",
        "api.example.com",
    ),
    pattern_help(
        EnvName::PATTERN,
        "a name of an environment variable",
        "use letters, digits, `_`, `-` and `.`, and do not start with a digit",
        "LOG_LEVEL",
    ),
    pattern_help(MountPath::PATTERN, "an absolute path", "start with `/`, and use no `:`", "/var/cache"),
    pattern_help(Uid::PATTERN, "a UID", "use letters, digits and `-`", "6d1c8f5e-0000-4000-8000-000000000000"),
    pattern_help(
        Digest::PATTERN,
        "a digest",
        "write `sha256:` and 64 hexadecimal digits in lower case",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ),
    pattern_help(
        r"^[A-Fa-f0-9]{64}$",
        "a SHA-256 sum",
        "write only its 64 hexadecimal digits",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ),
    pattern_help(
        r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[^ \t]+([ \t]+[^ \t]+){4})$",
        "a cron expression",
        "write minute, hour, day, month and weekday, or a keyword like `@daily`",
        "0 6 * * 1-5",
    ),
    pattern_help(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        "a plain file name",
        "use letters, digits, `.`, `_` and `-`, without directories",
        "model.gguf",
    ),
    pattern_help(r"^(0(\.[0-9]+)?|1(\.0+)?)$", "a fraction", "write a number from 0 to 1, in quotes", "0.25"),
    pattern_help(
        r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        "a reason",
        "use letters, digits, `_`, `,` and `:`, and start with a letter",
        "PodFailed",
    ),
    pattern_help(
        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$",
        "a type of a condition",
        "use letters, digits, `-`, `_` and `.`",
        "Ready",
    ),
];

pub fn find(pattern: &str) -> Option<&'static PatternHelp> {
    PATTERNS.iter().find(|form| form.pattern == pattern)
}

impl PatternHelp {
    /// The hint for `typed`: the text that was probably meant, or how such a text is written.
    pub fn hint(&self, typed: &str) -> String {
        match self.correct(typed) {
            Some(corrected) => format!("did you mean \"{}\"?", printable(&corrected)),
            None => format!("{}, such as \"{}\"", self.syntax, self.example),
        }
    }

    /// The closest text that matches the pattern, for common mistakes.
    fn correct(&self, typed: &str) -> Option<String> {
        let pattern = Regex::new(self.pattern).ok()?;
        let lower = typed.trim().to_lowercase();
        // A number alone usually means seconds.
        let seconds = (self.pattern == DurationText::PATTERN).then(|| format!("{lower}s"));
        [Some(typed.to_owned()), Some(typed.trim().to_owned()), seconds, Some(lower.replace('_', "-")), Some(lower)]
            .into_iter()
            .flatten()
            .find(|text| {
                let length = text.chars().count();
                (1..=MAX_GUESS_CHARS).contains(&length) && pattern.is_match(text)
            })
    }
}
