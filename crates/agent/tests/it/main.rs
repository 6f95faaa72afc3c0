//! The agent as a process, in a run that is real except for the model: a real bridge, a real gateway, volumes of
//! skills, and a model server that the test scripts. Each test names one promise or one attack.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod approvals;
mod authoring;
mod cancellation;
mod context;
mod harness;
mod hostile;
mod lockdown;
mod loop_end;
mod model_requests;
mod retries;
mod streams;
mod tools;
mod transcript;
