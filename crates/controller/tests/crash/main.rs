//! The controller is killed, and the API server fails, at every step of a run: every run ends right, is executed once, and
//! leaves nothing.
//!
//! A control plane of its own, without a node; kubelet and gateway are played (`sympozium_testkit::cluster::played`). The controller is the real program, and
//! reaches the API server through a proxy that stops it at any write. Start reading at [`kills`].
//!
//! A test binary of its own: its cluster is, too, so it runs side by side with the other tests of the controller.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod api_faults;
mod chaos;
mod ends;
mod harness;
mod kills;
mod order;
mod run;
