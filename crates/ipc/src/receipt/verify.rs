//! Reads lines and verifies their chain.

use sympozium_api::digest::{digest_canonical, to_canonical_json};
use sympozium_api::names::Digest;

use super::{DOMAIN, MAX_LINE_BYTES, Receipt};

/// A valid chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedChain {
    /// The receipts, in order.
    pub receipts: Vec<Receipt>,
    /// The hash of the last line.
    pub head: Digest,
}

/// Where a chain is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ChainError {
    /// The number of the line, from 1. One after the last line if the end is missing.
    pub line: usize,
    /// The error in that line.
    pub problem: LineError,
}

/// Why a line is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It is too long; contains its length in bytes.
    #[error("it has {0} bytes; receipts have at most {MAX_LINE_BYTES}")]
    TooLong(usize),
    /// It is not a receipt, or a receipt of another release.
    #[error("it is not a receipt that this release understands")]
    NotAReceipt,
    /// It is not canonical JSON, so it is not the line that was hashed.
    #[error("it is not written as receipts are")]
    NotCanonical,
    /// It is out of order.
    #[error("it is number {found}, and {expected} was expected")]
    WrongNumber {
        /// The expected number.
        expected: u64,
        /// The number in the line.
        found: u64,
    },
    /// It does not have the hash of the previous line.
    #[error("it does not follow from the line before, or the run has another plan")]
    WrongPrevious,
    /// The end is missing, or lines were appended.
    #[error("the last line has hash {found}, and the run reported {expected}")]
    WrongHead {
        /// The head that the run reported.
        expected: Digest,
        /// The head of these lines.
        found: Digest,
    },
}

/// Verifies a chain line by line, without storing the lines: for callers that receive it in parts.
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

    /// After `lines` lines, the last of which has the hash `head`.
    pub fn resume(lines: u64, head: Digest) -> Self {
        Self { next: lines, head }
    }

    /// Number of lines that were read.
    pub fn lines(&self) -> u64 {
        self.next
    }

    /// The hash of the last line; the plan's digest when there was none.
    pub fn head(&self) -> &Digest {
        &self.head
    }

    /// Reads the next line.
    ///
    /// # Errors
    ///
    /// When it is not the next line of this chain. The state is unchanged then.
    pub fn read(&mut self, text: &str) -> Result<Receipt, LineError> {
        if text.len() > MAX_LINE_BYTES {
            return Err(LineError::TooLong(text.len()));
        }
        let receipt: Receipt = serde_json::from_str(text).map_err(|_| LineError::NotAReceipt)?;
        // Two forms of the same JSON would have two hashes, and only one of them was reported.
        match to_canonical_json(&receipt) {
            Ok(written) if written == text.as_bytes() => {}
            _ => return Err(LineError::NotCanonical),
        }
        if receipt.number != self.next {
            return Err(LineError::WrongNumber { expected: self.next, found: receipt.number });
        }
        if receipt.previous != self.head {
            return Err(LineError::WrongPrevious);
        }
        self.head = digest_canonical(DOMAIN, text.as_bytes());
        self.next += 1;
        Ok(receipt)
    }
}

/// Verifies that these lines are the receipts of a run with this plan and, if the last reported head is given, that
/// they are complete.
///
/// # Errors
///
/// The first invalid line.
pub fn verify<'l>(
    lines: impl IntoIterator<Item = &'l str>,
    plan: &Digest,
    reported: Option<&Digest>,
) -> Result<VerifiedChain, ChainError> {
    let mut verifier = Verifier::new(plan.clone());
    let mut receipts = Vec::new();
    for text in lines {
        let line = receipts.len() + 1;
        let receipt = verifier.read(text);
        receipts.push(receipt.map_err(|problem| ChainError { line, problem })?);
    }
    let head = verifier.head;
    match reported {
        Some(expected) if *expected != head => Err(ChainError {
            line: receipts.len() + 1,
            problem: LineError::WrongHead { expected: expected.clone(), found: head },
        }),
        _ => Ok(VerifiedChain { receipts, head }),
    }
}
