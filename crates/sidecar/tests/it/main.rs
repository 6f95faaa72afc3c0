//! The real binary against real sockets, processes and files: each test names one promise or one attack.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod injected;
mod ipc_authenticated;
mod ipc_protocol;
mod ipc_together;
mod pod;
mod serve_calls;
mod serve_connections;
mod serve_exhaustion;
mod serve_framing;
mod serve_http;
mod serve_openapi;
mod serve_seed;
mod serve_server;
mod serve_skills;
mod serve_start;
mod serve_tasks;
