//! The agent of a run: the model loop and the native tools. It holds no power and no credential; everything that it does
//! outside of its own files goes over the door to the bridge.
//!
//! * [`program`] is the process: it restricts itself (`restrict`), reads its `view` and the author's `settings`, connects to the
//!   `door`.
//! * `agent_loop` is the loop. `model_client` sends requests with retries, `model` has the two wire formats, `conversation` what
//!   requests carry, `context` limits it, `prompt` is the system prompt.
//! * `tool_calls` runs the calls of one response: `concurrency` says which run concurrently, `loop_guard` detects repetition,
//!   [`tools`] has the native tools and renders results, `skills` loads skills.
//! * `status` and `transcript` are for people; `run_clock` and `backoff` are about time.
//!
//! Start reading at `agent_loop::AgentLoop::run`, and at [`program::main`] for how it starts.

mod agent_loop;
pub mod arguments;
mod backoff;
mod concurrency;
mod context;
mod conversation;
mod door;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod loop_guard;
mod model;
mod model_client;
pub mod program;
mod prompt;
pub mod restrict;
mod run_clock;
mod settings;
mod skills;
mod status;
mod tool_calls;
pub mod tools;
mod transcript;
mod view;
