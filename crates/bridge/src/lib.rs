//! The reference monitor of a run: every call of a tool passes here, and nobody goes round it.
//!
//! * [`table`] looks a call up: is there such a tool, is it open, do the arguments fit, who acts?
//! * [`command`] makes of a call exactly what a sidecar is asked to run.
//! * [`pace`] counts: how many at a time, how many in a minute, how many at all.
//! * [`program`] is the process around it: what it reads ([`inputs`], [`key`]) and what it gives up before it serves.
//! * [`check_network`] is what runs before everything else in a pod: is the run held in by its NetworkPolicy?
//! * [`outward`] is the way out: to the gateway, and through it.
//!
//! * [`session`] holds one run; [`door`] is where its agent speaks, [`calls`] what becomes of a call, [`ask`] how a person is
//!   asked, [`permits`] how the agent may act itself, `active_skill` what its
//!   skill leaves of that, [`work`] what is done, [`skill`] the bridge's end of a skill's volume.
//! * [`records`] keeps receipts until [`reporter`] has carried them out through [`upward`]; [`clock`] counts the run's time.
//! * [`model`] and [`scripted`] are the model as the agent sees it; [`fetch`] reads pages of the web.
//! * [`bridge`] puts all of it together and brings it to its end.
//!
//! Start reading at [`table::Table::look_up`], and at [`program::main`] for how it starts.

#![warn(missing_docs)]

mod active_skill;
pub mod arguments;
pub mod ask;
pub mod bridge;
pub mod calls;
pub mod check_network;
pub mod clock;
pub mod command;
pub mod door;
pub mod fetch;
pub mod floor;
mod found;
#[doc(hidden)]
pub mod fuzzing;
pub mod inputs;
pub mod key;
pub mod model;
pub mod outward;
pub mod pace;
pub mod permits;
pub mod program;
pub mod records;
pub mod reporter;
pub mod scripted;
pub mod session;
pub mod skill;
pub mod table;
pub mod upward;
pub mod work;
