//! Which tests of a process have its cluster: all at once, or one that changes what the others rely on.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static CLUSTER: RwLock<()> = RwLock::new(());

/// Held by a test for as long as it uses the cluster.
///
/// One for each test, and never a second one: a thread that asks again while another waits to be alone waits for ever.
#[must_use = "the cluster is the test's for as long as it is held"]
pub enum Exclusivity {
    /// Other tests use the cluster as well.
    Shared(RwLockReadGuard<'static, ()>),
    /// No other test does.
    Exclusive(RwLockWriteGuard<'static, ()>),
}

impl Exclusivity {
    /// Waits until no test has the cluster to itself.
    pub fn shared() -> Self {
        Self::Shared(CLUSTER.read())
    }

    /// Waits until no other test uses the cluster.
    pub fn exclusive() -> Self {
        Self::Exclusive(CLUSTER.write())
    }
}
