//! The gateway: the only way out of a run.
//!
//! A part of a run connects to it as to an HTTP proxy, says who it is by its [credential](sympozium_ipc::credential),
//! and may reach what its run's plan lists for it. Names are resolved here, every address is checked, and the connection
//! goes to a checked address; a run needs no DNS and has none. Each decision is an [event](events).
//!
//! It holds no key of a provider and no secret of a skill, follows no redirect, ends no TLS of others, and decides about
//! no power: that is done when a plan is made. When it ends, everything that is open ends.
//!
//! Start reading at [`egress`] for the order of a decision and at [`plans`] for what is allowed; [`server`] is the
//! program around it, and [`forward`] the other end for programs that know no proxy.

#![warn(missing_docs)]

pub mod arguments;
pub mod egress;
pub mod events;
pub mod forward;
#[doc(hidden)]
pub mod fuzzing;
pub mod outside;
pub mod plans;
pub mod resolve;
pub mod server;
pub mod settings;

pub use egress::Gateway;
pub use outside::{Network, Outside};
pub use settings::Settings;
