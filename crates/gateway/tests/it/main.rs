//! The gateway against real sockets, in network namespaces in which every address of the world is this machine's: what
//! gets out anywhere is caught. Each test names one promise or one attack; `eNN` is its line in the list of hostile cases.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod caps;
mod cluster;
mod credentials;
mod dns;
mod harness;
mod heads;
mod hosts;
mod http;
mod inside;
mod names;
mod program;
mod relay;
mod run_api;
mod tls;
