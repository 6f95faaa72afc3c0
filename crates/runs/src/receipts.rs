//! Verifies that the receipts of a run are those that it wrote: complete, in order, and nothing else.

use std::fmt;

use anyhow::bail;
use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{ChainError, LineError, Receipt, Verifier};

/// A verified chain of receipts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedChain {
    pub receipts: u64,
    pub head: Digest,
    /// Bytes after the last reported receipt, which a crash left there.
    pub unreported_bytes: u64,
    /// Whether the run is running, and will write more receipts.
    pub is_running: bool,
    /// Whether it is known that these are all receipts.
    pub is_complete: bool,
}

/// Called with each valid receipt, as text and parsed. Returns whether to continue.
pub type OnReceipt<'t> = dyn FnMut(&str, &Receipt) -> bool + 't;

/// The expected end of a chain, as far as it is known.
pub struct ExpectedEnd<'e> {
    /// The hash of the last line.
    pub head: Option<&'e Digest>,
    /// The number of lines.
    pub count: Option<u64>,
    /// Bytes of the file that count.
    pub bytes: u64,
}

impl fmt::Display for VerifiedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.receipts {
            1 => write!(f, "1 receipt")?,
            count => write!(f, "{count} receipts")?,
        }
        write!(f, ", head {}", self.head)?;
        if !self.is_complete {
            write!(f, "; without --head, a truncated end is not detected")?;
        }
        if self.is_running {
            write!(f, "; the run is still running, and these are its receipts so far")?;
        } else if self.unreported_bytes > 0 {
            write!(f, "; {} bytes after them were never reported, and are ignored", self.unreported_bytes)?;
        }
        Ok(())
    }
}

/// Verifies the next line of a chain, and passes it on. Returns whether to continue.
pub fn verify_line(
    verifier: &mut Verifier,
    number: usize,
    text: &str,
    on_receipt: &mut OnReceipt<'_>,
) -> anyhow::Result<bool> {
    let receipt = verifier.read(text).map_err(|problem| ChainError { line: number, problem })?;
    Ok(on_receipt(text, &receipt))
}

/// Checks the end of a chain.
pub fn check_end(verifier: &mut Verifier, end: &ExpectedEnd<'_>, lines: usize) -> anyhow::Result<VerifiedChain> {
    let found = verifier.lines();
    if let Some(expected) = end.count
        && expected != found
    {
        if expected > found {
            bail!("line {}: missing: there are {found} receipts, but {expected} were reported", lines + 1)
        } else {
            bail!("line {}: unexpected: there are {found} receipts, but {expected} were reported", expected + 1)
        }
    }
    if let Some(expected) = end.head
        && expected != verifier.head()
    {
        let problem = LineError::WrongHead { expected: expected.clone(), found: verifier.head().clone() };
        // Another cause can be that the last line was replaced.
        return Err(ChainError { line: lines.max(1), problem }.into());
    }
    Ok(VerifiedChain {
        receipts: found,
        head: verifier.head().clone(),
        unreported_bytes: 0,
        is_running: false,
        is_complete: end.head.is_some() || end.count.is_some(),
    })
}
