//! The agent as a process, in a run that is real but for the model: a real bridge, a real gateway with everything behind it,
//! volumes of skills, and a model that says what the test wants. Each test names one promise or one attack.

#![expect(clippy::expect_used, reason = "helpers of tests are tests, which clippy does not see")]

mod asking;
mod authoring;
mod bridge;
mod cancelled;
mod context;
mod endings;
mod hostile;
mod lockdown;
mod outside;
mod retries;
mod said;
mod skills;
mod streams;
mod tools;
mod transcript;
mod world;
