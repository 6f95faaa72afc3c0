//! Real processes against the executor: each test names one promise or one escape.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod killed;
mod lifecycle;
mod lockdown;
mod matrix;
mod mutations;
mod request;
mod sandbox;
mod secret_env;
mod trees;
