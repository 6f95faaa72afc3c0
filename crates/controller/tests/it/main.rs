//! The program as a process, against a real control plane, with the rights that it ships with and no others.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod admission_status;
mod agents;
mod harness;
mod idle;
mod leader;
mod packs;
mod policies;
mod program;
mod runs;
mod secrets;
mod sweep;
