//! The reference monitor of a run: every call of a tool passes here, and nobody goes round it.
//!
//! * [`table`] looks a call up: is there such a tool, is it open, do the arguments fit, who acts?
//! * [`command`] makes of a call exactly what a sidecar is asked to run.
//! * [`pace`] counts: how many at a time, how many in a minute, how many at all.
//!
//! Start reading at [`table::Table::look_up`].

#![warn(missing_docs)]

pub mod command;
pub mod pace;
pub mod table;
