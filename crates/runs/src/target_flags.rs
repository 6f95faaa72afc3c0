//! The flags that select the same machine or cluster in another command.

/// The flags that a printed command needs to find the same runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetFlags(String);

impl TargetFlags {
    /// This machine, which needs no flags.
    pub const fn local() -> Self {
        Self(String::new())
    }

    /// A cluster, addressed by these flags.
    pub fn cluster<'f>(flags: impl IntoIterator<Item = (&'f str, Option<&'f str>)>) -> Self {
        let mut typed = String::new();
        for (flag, value) in flags {
            typed.push(' ');
            typed.push_str(flag);
            if let Some(value) = value {
                typed.push(' ');
                typed.push_str(&shell_quote(value));
            }
        }
        Self(typed)
    }

    /// What to append to a printed command: nothing, or a blank and the flags.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Quotes a value for a shell.
fn shell_quote(value: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "._:/@%+=-".contains(character);
    if !value.is_empty() && value.chars().all(is_plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_quoted_for_a_shell() {
        assert_eq!(TargetFlags::local().as_str(), "");
        let target = TargetFlags::cluster([
            ("--cluster", None),
            ("--context", Some("arn:aws:eks/it's me")),
            ("-n", Some("team-a")),
        ]);
        assert_eq!(target.as_str(), r" --cluster --context 'arn:aws:eks/it'\''s me' -n team-a");
    }
}
