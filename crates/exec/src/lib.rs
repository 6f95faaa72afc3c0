//! Run one command: bounded, killable, isolated; and report what was really live.
//!
//! Everything in the system that acts does it here. This crate never decides *whether* a command may
//! run, and it knows nothing of skills, agents or Kubernetes.

#![warn(missing_docs)]

pub mod beneath;
pub mod cgroup;
pub mod environment;
pub mod features;
pub mod guarantee;
pub mod lookup;
pub mod report;
