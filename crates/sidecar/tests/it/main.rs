//! The sidecar's program, started as it is in a pod.

#![expect(
    clippy::expect_used,
    reason = "all of this is tests, which clippy does not see outside of #[test]"
)]

mod ipc_protocol;
mod pod;
