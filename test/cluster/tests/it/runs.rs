//! Whole runs in a cluster with an installation of ours: what a user writes with `kubectl`, and what comes of it.

mod endings;
mod faults;
mod gateway;
mod harness;
mod host;
mod names;
mod network;
mod program;
mod rights;
pub mod seed;
