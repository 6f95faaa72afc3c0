//! Who has the shared cluster: all tests at once, or one that takes away what the others rely on.
//!
//! One guard per test, and never a second one: a thread that asks again while another waits for exclusive access waits for ever.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static CLUSTER: RwLock<()> = RwLock::new(());

/// Held by every test that relies on enforced NetworkPolicies, or on controller and gateway.
#[must_use = "the cluster is shared for as long as it is held"]
pub struct Together(#[expect(dead_code, reason = "held for its drop")] RwLockReadGuard<'static, ()>);

/// Held by a test that takes one of these away for a while.
#[must_use = "the test is alone for as long as it is held"]
pub struct Alone(#[expect(dead_code, reason = "held for its drop")] RwLockWriteGuard<'static, ()>);

/// Waits until no test has exclusive access.
pub fn together() -> Together {
    Together(CLUSTER.read())
}

/// Waits until no other test runs.
pub fn alone() -> Alone {
    Alone(CLUSTER.write())
}
