//! Where runs are: on this machine or in a cluster, as far as somebody must type it to find them again.

/// A place, as commands about runs name it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place(String);

impl Place {
    /// This machine, of which nothing need be said.
    pub const fn here() -> Self {
        Self(String::new())
    }

    /// A cluster, by the flags that choose it.
    pub fn cluster<'f>(flags: impl IntoIterator<Item = (&'f str, Option<&'f str>)>) -> Self {
        let mut typed = String::new();
        for (flag, value) in flags {
            typed.push(' ');
            typed.push_str(flag);
            if let Some(value) = value {
                typed.push(' ');
                typed.push_str(&quoted(value));
            }
        }
        Self(typed)
    }

    /// What stands behind a command about a run of this place: nothing, or a blank and flags.
    pub fn flags(&self) -> &str {
        &self.0
    }
}

/// A value as a shell reads it.
fn quoted(value: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._:/@%+=-".contains(it);
    match !value.is_empty() && value.chars().all(is_plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_must_be_typed() {
        assert_eq!(Place::here().flags(), "");
        let place =
            Place::cluster([("--cluster", None), ("--context", Some("arn:aws:eks/it's me")), ("-n", Some("team-a"))]);
        assert_eq!(place.flags(), r" --cluster --context 'arn:aws:eks/it'\''s me' -n team-a");
    }
}
