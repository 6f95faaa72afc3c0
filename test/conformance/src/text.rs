//! A text that is expected: the whole of it, or what must and must not be in it.

use anyhow::{Context as _, bail};
use regex_lite::Regex;
use serde::Deserialize;

/// What a text must be.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Expected {
    /// This, and nothing else.
    Whole(String),
    /// Something in which all of this holds.
    Parts(Parts),
}

/// What must hold of a text.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parts {
    /// Each of these is in it.
    #[serde(default)]
    pub contains: Vec<String>,
    /// None of these is in it.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// A regular expression that is found in it.
    #[serde(default)]
    pub matches: Option<String>,
    /// How many bytes it has, at most.
    #[serde(default)]
    pub most_bytes: Option<usize>,
}

impl Expected {
    /// Whether it says anything, and can be compared with.
    ///
    /// # Errors
    ///
    /// When it is empty, or an expression is none.
    pub fn check(&self) -> anyhow::Result<()> {
        let Self::Parts(parts) = self else {
            return Ok(());
        };
        if let Some(matches) = &parts.matches {
            Regex::new(matches).with_context(|| format!("`{matches}` is no regular expression"))?;
        }
        if parts.contains.is_empty() && parts.lacks.is_empty() && parts.matches.is_none() && parts.most_bytes.is_none()
        {
            bail!("an expectation of a text that says nothing");
        }
        Ok(())
    }

    /// What is wrong with `found`.
    pub fn problems(&self, found: &str) -> Vec<String> {
        let parts = match self {
            Self::Whole(whole) if whole == found => return Vec::new(),
            Self::Whole(whole) => return vec![format!("is {found:?}, and should be {whole:?}")],
            Self::Parts(parts) => parts,
        };
        let mut problems = Vec::new();
        for wanted in &parts.contains {
            if !found.contains(wanted.as_str()) {
                problems.push(format!("does not contain {wanted:?}"));
            }
        }
        for unwanted in &parts.lacks {
            if found.contains(unwanted.as_str()) {
                problems.push(format!("contains {unwanted:?}"));
            }
        }
        if let Some(matches) = &parts.matches
            && !Regex::new(matches).is_ok_and(|it| it.is_match(found))
        {
            problems.push(format!("does not match {matches:?}"));
        }
        if let Some(most) = parts.most_bytes
            && found.len() > most
        {
            problems.push(format!("has {} bytes, more than {most}", found.len()));
        }
        if !problems.is_empty() {
            problems.push(format!("it is {:?}", shortened(found)));
        }
        problems
    }
}

/// Start and end of a long text, for messages.
fn shortened(text: &str) -> String {
    const ENDS: usize = 600;
    if text.len() <= 2 * ENDS {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(ENDS)];
    let tail = &text[text.ceil_char_boundary(text.len() - ENDS)..];
    format!("{head} … {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(yaml: &str) -> Expected {
        serde_saphyr::from_str(yaml).expect("an expectation")
    }

    #[test]
    fn whole_texts_and_parts_of_them_are_told_apart() {
        assert_eq!(of("done").problems("done"), Vec::<String>::new());
        assert_eq!(of("done").problems("done.").len(), 1);
        let parts = of("{contains: [a, b], lacks: [c], matches: ^a, mostBytes: 3}");
        assert_eq!(parts.problems("ab"), Vec::<String>::new());
        assert_eq!(
            parts.problems("xbcd"),
            [
                "does not contain \"a\"",
                "contains \"c\"",
                "does not match \"^a\"",
                "has 4 bytes, more than 3",
                "it is \"xbcd\"",
            ]
        );
    }

    #[test]
    fn what_says_nothing_is_refused() {
        assert!(of("{}").check().is_err());
        assert!(of("{matches: '('}").check().is_err());
        assert!(of("{lacks: [x]}").check().is_ok());
        assert!(serde_saphyr::from_str::<Expected>("{contain: [x]}").is_err());
    }
}
