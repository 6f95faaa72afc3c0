//! The testing ground tested: a probe that sees nothing would make every sandbox look tight.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "all of this is tests; clippy sees that only in the test functions themselves"
)]

mod actions;
mod attempts;
mod examples;
mod faults;
mod harness;
mod model_server;
mod tool_executor;

use std::process::Output;

use sympozium_testkit::probe::{self, Findings};

/// Runs `probe attempt …` with nothing around it.
fn attempt(attempts: &[&str]) -> Findings {
    let output = run("attempt", attempts);
    assert!(output.status.success(), "{output:?}");
    Findings::parse(&output.stdout)
}

/// Runs the probe with nothing around it.
fn run(verb: &str, words: &[&str]) -> Output {
    sympozium_testkit::command(probe::path()).arg(verb).args(words).output().unwrap()
}
