//! The bridge with real processes, a real gateway and real servers. Each test names one promise or one attack; `eNN` and
//! `bNN` are lines in the list of hostile cases.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod check_network;
mod fetch;
mod model;
mod model_answers;
mod model_harness;
mod model_limits;
mod model_scripted;
mod outward;
mod program;
mod run;
mod support;
