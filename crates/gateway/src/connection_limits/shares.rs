//! The shares of namespaces and runs in a common resource.

use std::collections::HashMap;

/// Every holder may hold this many while anything is free, whatever others hold: of a scarce resource, half is too
/// little to be useful.
pub const MINIMUM_SHARE: usize = 8;

/// What each namespace and each of its runs holds.
#[derive(Debug, Default)]
pub struct Shares {
    held: usize,
    namespaces: HashMap<String, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    held: usize,
    runs: HashMap<String, usize>,
}

/// One unit of the resource. Must be given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    namespace: String,
    run: String,
}

/// Which holder exceeds its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareExceeded {
    /// All runs of the namespace together.
    Namespace,
    Run,
}

impl Shares {
    /// Gives one more unit to a run, if its namespace holds less than `free`, and the run less than its namespace could
    /// still get.
    ///
    /// # Errors
    ///
    /// Returns which of them exceeds its share.
    pub fn take(&mut self, namespace: &str, run: &str, free: usize) -> Result<Share, ShareExceeded> {
        let known = self.namespaces.get(namespace);
        let of_namespace = known.map_or(0, |known| known.held);
        let of_run = known.and_then(|known| known.runs.get(run)).copied();
        if free == 0 || of_namespace >= free.max(MINIMUM_SHARE) {
            return Err(ShareExceeded::Namespace);
        }
        let left = free.saturating_sub(of_namespace);
        if of_run.unwrap_or(0) >= left.max(MINIMUM_SHARE) {
            return Err(ShareExceeded::Run);
        }
        self.held += 1;
        let known = self.namespaces.entry(namespace.to_owned()).or_default();
        known.held += 1;
        *known.runs.entry(run.to_owned()).or_default() += 1;
        Ok(Share { namespace: namespace.to_owned(), run: run.to_owned() })
    }

    pub fn release(&mut self, share: &Share) {
        let Some(namespace) = self.namespaces.get_mut(&share.namespace) else {
            return;
        };
        let Some(run) = namespace.runs.get_mut(&share.run) else {
            return;
        };
        self.held -= 1;
        namespace.held -= 1;
        *run -= 1;
        // Holders of nothing are removed: there are many.
        if *run == 0 {
            namespace.runs.remove(&share.run);
        }
        if namespace.held == 0 {
            self.namespaces.remove(&share.namespace);
        }
    }

    /// Number of units in use.
    pub fn held(&self) -> usize {
        self.held
    }

    #[cfg(test)]
    pub(super) fn of_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |namespace| namespace.held)
    }
}

impl Share {
    pub fn belongs_to(&self, namespace: &str, run: &str) -> bool {
        self.namespace == namespace && self.run == run
    }
}
