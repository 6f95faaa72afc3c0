//! Thinking parameters. Models up to 4.5 take a budget in tokens; those from 4.7 on refuse it and take an effort level.

use serde_json::json;

/// The smallest budget that the API accepts.
const MIN_BUDGET: u64 = 1024;
const MEDIUM_BUDGET: u64 = 4096;
const HIGH_BUDGET: u64 = 16384;
const MAX_BUDGET: u64 = 128 << 10;
/// First version of the models that choose their own budget.
const ADAPTIVE: (u8, u8) = (4, 6);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// The model's default.
    Default,
    Budget(u64),
    /// The model decides, with an effort that corresponds to this budget.
    Adaptive(u64),
}

impl Thinking {
    /// Unknown levels mean the default, because thinking costs tokens.
    pub fn from_level(level: Option<&str>, model: &str) -> Self {
        let level = level.map(|level| level.trim().to_ascii_lowercase());
        let budget = match level.as_deref().unwrap_or_default() {
            "minimal" | "low" => MIN_BUDGET,
            "medium" => MEDIUM_BUDGET,
            "high" => HIGH_BUDGET,
            // For models whose name does not reveal their version.
            "adaptive" => return Self::Adaptive(HIGH_BUDGET),
            other => match other.parse::<u64>() {
                Ok(0) | Err(_) => return Self::Default,
                Ok(budget) => budget.clamp(MIN_BUDGET, MAX_BUDGET),
            },
        };
        match version(model) {
            Some(version) if version >= ADAPTIVE => Self::Adaptive(budget),
            _ => Self::Budget(budget),
        }
    }

    pub fn budget_tokens(self) -> u64 {
        match self {
            Self::Default => 0,
            Self::Budget(budget) | Self::Adaptive(budget) => budget,
        }
    }

    pub fn request_fields(self) -> String {
        match self {
            Self::Default => String::new(),
            Self::Budget(budget) => {
                let thinking = json!({"type": "enabled", "budget_tokens": budget});
                format!(r#","thinking":{thinking}"#)
            }
            Self::Adaptive(budget) => {
                let effort = if budget <= MIN_BUDGET {
                    "low"
                } else if budget <= MEDIUM_BUDGET {
                    "medium"
                } else {
                    "high"
                };
                let config = json!({"effort": effort});
                format!(r#","thinking":{{"type":"adaptive"}},"output_config":{config}"#)
            }
        }
    }
}

/// The version in the name of one of Anthropic's models, wherever it is hosted: `claude-opus-4-7`,
/// `vendor/claude-sonnet-5`, `claude-3-7-sonnet-20250219`. Numbers of more than two digits are dates.
fn version(model: &str) -> Option<(u8, u8)> {
    let (_, name) = model.split_once("claude-")?;
    let number = |part: &str| part.parse::<u8>().ok().filter(|number| *number < 100);
    let mut parts = name.split(['-', '.', '@', ':']).skip_while(|part| number(part).is_none());
    let major = parts.next().and_then(number)?;
    let minor = parts.next().and_then(number).unwrap_or_default();
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_budget() {
        let cases = [
            (None, Thinking::Default),
            (Some(""), Thinking::Default),
            (Some("off"), Thinking::Default),
            (Some("none"), Thinking::Default),
            (Some("0"), Thinking::Default),
            (Some("-3"), Thinking::Default),
            (Some("as much as you like"), Thinking::Default),
            (Some("minimal"), Thinking::Budget(1024)),
            (Some("low"), Thinking::Budget(1024)),
            (Some(" Medium "), Thinking::Budget(4096)),
            (Some("HIGH"), Thinking::Budget(16384)),
            (Some("adaptive"), Thinking::Adaptive(16384)),
            (Some("7"), Thinking::Budget(1024)),
            (Some("2000"), Thinking::Budget(2000)),
            (Some("18446744073709551615"), Thinking::Budget(MAX_BUDGET)),
        ];
        for (level, expected) in cases {
            assert_eq!(Thinking::from_level(level, "a-model"), expected, "{level:?}");
        }
    }

    #[test]
    fn model_names_contain_the_version() {
        let cases = [
            ("claude-3-7-sonnet-20250219", Some((3, 7))),
            ("claude-sonnet-4-20250514", Some((4, 0))),
            ("claude-opus-4-5@20251101", Some((4, 5))),
            ("claude-opus-4-6", Some((4, 6))),
            ("vendor/claude-opus-4.8", Some((4, 8))),
            ("global.anthropic.claude-opus-4-8-20260601-v1:0", Some((4, 8))),
            ("claude-sonnet-5", Some((5, 0))),
            ("claude-latest", None),
            ("claude-", None),
            ("qwen-4-8", None),
            ("", None),
        ];
        for (model, expected) in cases {
            assert_eq!(version(model), expected, "{model}");
        }
    }

    #[test]
    fn adaptive_models_get_an_effort_level() {
        let fields = |level, model| Thinking::from_level(Some(level), model).request_fields();
        let adaptive = |effort| format!(r#","thinking":{{"type":"adaptive"}},"output_config":{{"effort":"{effort}"}}"#);
        assert_eq!(fields("low", "claude-opus-4-7"), adaptive("low"));
        assert_eq!(fields("medium", "claude-sonnet-5"), adaptive("medium"));
        assert_eq!(fields("20000", "claude-opus-4-8"), adaptive("high"));
        assert_eq!(fields("off", "claude-opus-4-8"), "");
        let budget = r#","thinking":{"budget_tokens":4096,"type":"enabled"}"#;
        assert_eq!(fields("medium", "claude-haiku-4-5"), budget);
    }
}
