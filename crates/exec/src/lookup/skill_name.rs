//! Names of skills.

use std::fmt;
use std::str::FromStr;

/// The name of a skill: one path component that no shell, URL or option parser can interpret differently.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkillName(String);

/// Why a text is not a skill name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SkillNameError {
    /// It is empty.
    #[error("skill name is empty")]
    Empty,
    /// It is longer than [`SkillName::MAX_BYTES`].
    #[error("skill name has {length} bytes, at most {} are allowed", SkillName::MAX_BYTES)]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It starts like a hidden file, a parent directory or an option.
    #[error("skill name starts with {0:?}")]
    BadStart(char),
    /// It contains a character outside `[A-Za-z0-9_.+-]`.
    #[error("skill name contains {0:?}: only letters, digits and _ . + - are allowed")]
    BadCharacter(char),
}

impl SkillName {
    /// Limit for a name, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Parses a name as a caller sent it, without any URL encoding.
    ///
    /// # Errors
    /// The first rule that it violates.
    pub fn parse(name: &str) -> Result<Self, SkillNameError> {
        if name.len() > Self::MAX_BYTES {
            return Err(SkillNameError::TooLong { length: name.len() });
        }
        match name.chars().next() {
            None => return Err(SkillNameError::Empty),
            Some(first @ ('.' | '-')) => return Err(SkillNameError::BadStart(first)),
            Some(_) => {}
        }
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_.+-".contains(letter);
        match name.chars().find(|letter| !allowed(*letter)) {
            Some(letter) => Err(SkillNameError::BadCharacter(letter)),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SkillName {
    type Err = SkillNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::parse(name)
    }
}

impl fmt::Display for SkillName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
