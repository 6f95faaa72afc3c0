//! The error of an operation that a user asked for.

use std::borrow::Cow;

/// An error, and what to try next.
#[derive(Debug)]
pub struct HintedError {
    pub error: anyhow::Error,
    pub hint: Cow<'static, str>,
}

impl HintedError {
    pub fn new(error: anyhow::Error, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { error, hint: hint.into() }
    }

    /// Replaces the hint.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { hint: hint.into(), ..self }
    }

    /// Error and hint in one line, to be quoted in another message.
    pub fn summary(&self) -> String {
        format!("{:#} ({})", self.error, self.hint)
    }
}
