//! Produces lines, each with the hash of the previous one.

use sympozium_api::digest::{CanonicalJsonError, digest_canonical, to_canonical_json};
use sympozium_api::names::Digest;

use super::{DOMAIN, Event, MAX_LINE_BYTES, MAX_NUMBER, Receipt};

/// The chain of one run: number of lines and last hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    next: u64,
    head: Digest,
}

/// A line that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The JSON, without a line break.
    pub text: String,
    /// Its hash: the head of the chain.
    pub head: Digest,
}

/// Why a line was not added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// It would be longer than the limit; contains its length in bytes.
    #[error("the receipt has {0} bytes; {MAX_LINE_BYTES} fit into a line")]
    Bytes(usize),
    /// It cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] CanonicalJsonError),
}

impl Chain {
    /// The empty chain of a run with this plan.
    pub fn new(plan: Digest) -> Self {
        Self { next: 0, head: plan }
    }

    /// The hash of a line: the head of the chain that ends with it.
    pub fn line_hash(line: &str) -> Digest {
        digest_canonical(DOMAIN, line.as_bytes())
    }

    /// Number of lines.
    pub fn len(&self) -> u64 {
        self.next
    }

    /// Whether there is no line yet.
    pub fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// The hash over all lines so far; the plan's digest when there is none.
    pub fn head(&self) -> &Digest {
        &self.head
    }

    /// Adds an event.
    ///
    /// # Errors
    ///
    /// When the line would be too long, which is impossible for a [truncated](Event::truncate) event. The chain is
    /// unchanged then.
    pub fn add(&mut self, at_ms: u64, event: Event) -> Result<Line, AddError> {
        let receipt = Receipt {
            number: self.next,
            previous: self.head.clone(),
            at_ms: at_ms.min(MAX_NUMBER),
            event: event.truncate(),
        };
        let bytes = to_canonical_json(&receipt)?;
        let length = bytes.len();
        let head = digest_canonical(DOMAIN, &bytes);
        let text =
            String::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_LINE_BYTES).ok_or(AddError::Bytes(length))?;
        self.next += 1;
        self.head = head.clone();
        Ok(Line { text, head })
    }
}
