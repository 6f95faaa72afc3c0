//! The gateway: the only way out of a run.
//!
//! A part of a run connects to it as to an HTTP proxy, says who it is by its [credential](sympozium_ipc::credential),
//! and may reach what its run's plan lists for it. Names are resolved here, every address is checked, and the connection
//! goes to a checked address; a run needs no DNS and has none. Each decision is an [event](events).
//!
//! On the same address a run reports what happened, has a person asked, and has things done later or elsewhere: the
//! [run API](run_api). What follows from what, and what the plan has, is checked here; who keeps, asks and does is a
//! trait each.
//!
//! It holds no key of a provider and no secret of a skill, follows no redirect, ends no TLS of others, and decides about
//! no power: that is done when a plan is made. When it ends, everything that is open ends.
//!
//! Start reading at [`egress`] for the order of a decision, at [`run_api`] for that of a request, and at [`plans`] for what
//! is allowed; [`cluster`] is what makes runs of AgentRuns, [`server`] is the program around it, and [`forward`] the other end for programs that know no proxy.

#![warn(missing_docs)]

pub mod admission;
pub mod arguments;
pub mod cluster;
pub mod egress;
pub mod events;
pub mod forward;
#[doc(hidden)]
pub mod fuzzing;
pub mod metrics;
pub mod outside;
pub mod plans;
pub mod resolve;
pub mod rights;
pub mod run_api;
pub mod server;
pub mod settings;

pub use egress::Gateway;
pub use outside::{Network, Outside};
pub use run_api::RunApi;
pub use settings::Settings;
