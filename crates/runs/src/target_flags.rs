//! The flags that address the same place again: this machine, or a cluster.

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
    fn a_place_is_what_must_be_typed() {
        assert_eq!(TargetFlags::local().as_str(), "");
        let place = TargetFlags::cluster([
            ("--cluster", None),
            ("--context", Some("arn:aws:eks/it's me")),
            ("-n", Some("team-a")),
        ]);
        assert_eq!(place.as_str(), r" --cluster --context 'arn:aws:eks/it'\''s me' -n team-a");
    }
}
