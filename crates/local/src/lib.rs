//! The local backend: runs on one machine, without cluster, daemon or container runtime.
//!
//! A plan is realised as processes, each part in a sandbox of `sympozium-exec` with the same paths as in a pod. The
//! gateway runs in this process and is reached through a Unix socket. Everything that is stored of a run is in one
//! directory ([`state`]); what is needed only while it runs is below `live` in it, and is removed with the run.

pub mod binaries;
pub mod bounded_lines;
pub mod control;
pub mod forward;
pub mod keys;
pub mod lazy_network;
pub mod leftovers;
pub mod logs;
pub mod parts;
pub mod prepared_run;
pub mod realise;
pub mod receipts;
pub mod record;
pub mod remove;
pub mod reporting;
pub mod sandbox_spec;
pub mod secrets;
pub mod sockets;
pub mod state;
pub mod store;
pub mod supervise;
pub mod sweep;
pub mod unprivileged;
pub mod volumes;
