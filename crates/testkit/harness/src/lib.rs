//! One run for tests: a real gateway, the real bridge and a model server, around whatever is under test. A dev-dependency,
//! never part of a product.
//!
//! ```ignore
//! let mut run = RunHarness::new(open_plan(WireFormat::OpenAi)).start(PROGRAM).await;
//! run.model.push(Answer::text("well"));
//! let agent = run.agent().await;
//! agent.finish("done").await;
//! assert_eq!(run.wait_exit().await, 0);
//! ```
//!
//! - [`RunHarness`]: a run, from its plan to its records.
//! - [`plan`]: the stored plan, opened for tests.
//! - [`credential`]: the gateway's key, and what is signed with it.
//! - [`Internet`], [`WebServer`], [`Authority`]: what is behind the gateway.
//! - [`RecordingScheduler`]: what the gateway passes messages, schedules and subruns to.
//! - [`Agent`]: an agent at the door that sends whatever a test wants.
//! - [`executor`]: an executor on the volume of a skill.

#![expect(clippy::expect_used, reason = "a harness that cannot be built must fail its test")]

mod agent;
mod authority;
pub mod credential;
pub mod executor;
mod internet;
pub mod plan;
mod run;
mod scheduler;
mod web_server;

use std::time::{Duration, Instant};

pub use agent::{Agent, Reply};
pub use authority::Authority;
pub use internet::Internet;
pub use run::{KEY, RunHarness, Setup, make_directories, write_inputs};
pub use scheduler::RecordingScheduler;
pub use web_server::{Response, WebServer};

/// No test waits longer for anything.
pub const TIMEOUT: Duration = Duration::from_secs(180);
/// Between two looks at what another process does.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits for something that another task or process does, and returns whether it was done in time. By the real clock, also where
/// that of the runtime is paused.
pub async fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        if Instant::now() >= deadline {
            return condition();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    true
}
