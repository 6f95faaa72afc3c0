//! Run one command: bounded, killable, isolated; and report what was really live.
//!
//! Every command of the system runs through this crate. It never decides *whether* a command may run, and it knows
//! nothing of skills, agents or Kubernetes.
//!
//! Start reading at [`Executor`]: it builds a sandbox once, by a [profile](guarantee::Profile), and runs many commands
//! in it. What a profile promises is one table, [`guarantee::cell`]; what was live is returned with every [`Outcome`].
//! How a sandbox is built and torn down is in [`stage`], which is our own binary executed again.

#![warn(missing_docs)]

pub mod beneath;
pub mod cancel;
pub mod cgroup;
pub mod config;
pub mod environment;
pub mod executor;
pub mod features;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guarantee;
pub mod landlock;
pub mod layout;
pub mod lockdown;
pub mod lookup;
pub mod outcome;
pub mod report;
pub mod request;
pub mod seccomp;
pub mod secret_env;
pub mod stage;
mod sys;

pub use cancel::Cancel;
pub use config::{Config, ProcessVisibility, StageProgram};
pub use executor::{Executor, RunError, StartError};
pub use guarantee::{Floor, Layer, Profile};
pub use outcome::{CapturedOutput, Outcome, Stream, Termination};
pub use report::IsolationReport;
pub use request::{Invocation, Request};
