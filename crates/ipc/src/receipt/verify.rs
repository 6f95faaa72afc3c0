//! Reads lines again, and says where a chain is broken.

use sympozium_api::digest::{canonical, of_canonical};
use sympozium_api::names::Digest;

use super::{DOMAIN, MAX_LINE_BYTES, Receipt};

/// A chain that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The lines.
    pub receipts: Vec<Receipt>,
    /// The hash of the last.
    pub head: Digest,
}

/// Where a chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Broken {
    /// The line, from 1. One after the last where the end is missing.
    pub line: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Longer than lines are.
    #[error("it has {0} bytes; receipts have at most {MAX_LINE_BYTES}")]
    Length(usize),
    /// No receipt, or one of another release.
    #[error("it is not a receipt that this release understands")]
    Form,
    /// Written otherwise than receipts are, so it is not the line that was hashed.
    #[error("it is not written as receipts are")]
    Writing,
    /// Out of order.
    #[error("it is number {found}, and {expected} was expected")]
    Number {
        /// What should be there.
        expected: u64,
        /// What is.
        found: u64,
    },
    /// Not what followed.
    #[error("it does not follow from the line before, or the run has another plan")]
    Previous,
    /// Cut off, or continued.
    #[error("the last line has hash {found}, and the run reported {expected}")]
    Head {
        /// What was reported.
        expected: Digest,
        /// What is there.
        found: Digest,
    },
}

/// Reads a chain line by line, with nothing kept but how far it has come: for whoever gets it in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifier {
    next: u64,
    head: Digest,
}

impl Verifier {
    /// At the beginning of the chain of a run with this plan.
    pub fn new(plan: Digest) -> Self {
        Self::resume(0, plan)
    }

    /// Behind so many lines, of which the last has this hash.
    pub fn resume(lines: u64, head: Digest) -> Self {
        Self { next: lines, head }
    }

    /// How many lines were read.
    pub fn lines(&self) -> u64 {
        self.next
    }

    /// The hash of the last; the plan's digest when there was none.
    pub fn head(&self) -> &Digest {
        &self.head
    }

    /// The next line.
    ///
    /// # Errors
    ///
    /// When it is not the next line of this chain. Nothing has changed then.
    pub fn read(&mut self, text: &str) -> Result<Receipt, Problem> {
        if text.len() > MAX_LINE_BYTES {
            return Err(Problem::Length(text.len()));
        }
        let receipt: Receipt = serde_json::from_str(text).map_err(|_| Problem::Form)?;
        // Two texts of one meaning would have two hashes, and only one of them was reported.
        match canonical(&receipt) {
            Ok(written) if written == text.as_bytes() => {}
            _ => return Err(Problem::Writing),
        }
        if receipt.number != self.next {
            return Err(Problem::Number { expected: self.next, found: receipt.number });
        }
        if receipt.previous != self.head {
            return Err(Problem::Previous);
        }
        self.head = of_canonical(DOMAIN, text.as_bytes());
        self.next += 1;
        Ok(receipt)
    }
}

/// Whether these lines are the receipts of a run with this plan, and, where the last head that it reported is known, all of
/// them.
///
/// # Errors
///
/// With the first line that is wrong.
pub fn verify<'l>(
    lines: impl IntoIterator<Item = &'l str>,
    plan: &Digest,
    reported: Option<&Digest>,
) -> Result<Verified, Broken> {
    let mut verifier = Verifier::new(plan.clone());
    let mut receipts = Vec::new();
    for text in lines {
        let line = receipts.len() + 1;
        let receipt = verifier.read(text);
        receipts.push(receipt.map_err(|problem| Broken { line, problem })?);
    }
    let head = verifier.head;
    match reported {
        Some(expected) if *expected != head => {
            Err(Broken { line: receipts.len() + 1, problem: Problem::Head { expected: expected.clone(), found: head } })
        }
        _ => Ok(Verified { receipts, head }),
    }
}
