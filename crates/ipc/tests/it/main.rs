//! The protocol on real directories, with the other side played by scripts, by plain file operations, or by ourselves.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod authenticated;
mod fixture;
mod hostile;
mod inbox;
mod interop;
mod requester;
mod separate_process;
mod sharing;
mod trouble;
mod volume;
mod watching;
