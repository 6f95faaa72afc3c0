//! Admission, planning, rendering and explanation of runs: [`admit`](admit::admit) decides whether a run may exist, in
//! the webhook, in the controller and on the command line.
//!
//! Everything here is pure: no I/O, no clock, no randomness, no async. The caller fetches the objects and passes the
//! current time where it matters. Nothing here talks to a cluster, and no later step decides about powers.
//!
//! * [`resolve`](resolve::resolve) finds the objects that a run names, in the caches or files of its caller.
//! * [`admit`] is the decision, with one file per family of rules. Names of rules are stable.
//! * [`plan`](plan::plan) builds the plan of an admitted run, which every backend realises.
//! * [`render`](render::render) writes a plan as Kubernetes objects.
//! * [`explain`](explain::explain) describes in words what a plan can touch, and what a change to it adds.
//! * [`prices`] computes the cost of a run from the operator's price table.
//! * [`policy`] combines all policies of a run into one value. Policies are combined by a meet, which only restricts.
//! * The other modules parse texts, so that rules compare values: [`image`], [`quantity`], [`duration`], [`host`],
//!   [`path`], [`environment`], [`rbac`].
//!
//! Start reading at [`admit::admit`]; `tests/cases` has a passing and a failing case for every rule.

#![warn(missing_docs)]

pub mod admit;
pub mod duration;
pub mod environment;
pub mod explain;
#[cfg(test)]
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod host;
pub mod image;
pub mod path;
pub mod plan;
pub mod policy;
pub mod prices;
pub mod quantity;
pub mod rbac;
pub mod render;
pub mod resolve;
mod text;
