//! The gateway: the only way out of a run.
//!
//! A part of a run connects to it as to an HTTP proxy, authenticates with its [credential](sympozium_ipc::credential),
//! and may reach what its run's plan lists for it. The gateway resolves names, checks every address, and connects to a
//! checked address; a run needs no DNS and has none. Each decision is an [event](events).
//!
//! On the same address a run sends reports, asks approvers, and requests schedules, messages and subruns: the [run
//! API](run_api). The gateway verifies chains and plans itself; storing, asking and scheduling are traits.
//!
//! It has no model key and no secret of a skill, follows no redirect, terminates no TLS of others, and decides about no
//! power: that is done when a plan is made. When it shuts down, all open connections are cut.
//!
//! Start reading at [`egress`] for the order of a decision, at [`run_api`] for that of a request, and at [`plans`] for
//! what is allowed. [`cluster`] serves AgentRuns, [`server`] is the program, and [`forward`] is the client for programs
//! that do not support a proxy.

pub mod arguments;
pub mod cluster;
pub mod connection_limits;
pub mod egress;
pub mod events;
pub mod forward;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod metrics;
pub mod network;
pub mod plans;
pub mod rbac;
pub mod resolve;
pub mod run_api;
pub mod server;
pub mod settings;

pub use egress::Gateway;
pub use network::{Network, NetworkAccess};
pub use run_api::RunApi;
pub use settings::Settings;
