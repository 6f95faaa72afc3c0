//! What a run may do: [`admit`](admit::admit) says yes or no, in the webhook, in the controller and on the command line.
//!
//! Pure: values in, values out. No I/O, no clock, no randomness, no async; who calls has fetched what is looked at, and
//! says what time it is where that matters. Nothing here talks to a cluster, and nothing decides about powers after it.
//!
//! * [`admit`] is the decision, one file per family of rules, every rule with a name that stays the same.
//! * [`plan`](plan::plan) makes of an admitted run the plan that every backend realises.
//! * [`render`](render::render) writes a plan down as objects of Kubernetes.
//! * [`explain`](explain::explain) says in words what a plan can touch, and what a change to it adds.
//! * [`prices`] says what a run cost, by a table that an operator gives.
//! * [`policy`] is what a run is held to, as one value; policies are combined by a meet, which only takes away.
//! * The other modules read texts as what they mean, so that rules compare values: [`image`], [`quantity`],
//!   [`duration`], [`host`], [`path`], [`environment`], [`rbac`].
//!
//! Start reading at [`admit::admit`]; `tests/cases` has every rule with what passes and what fails.

#![warn(missing_docs)]

pub mod admit;
pub mod duration;
pub mod environment;
pub mod explain;
#[cfg(test)]
mod fields;
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
mod text;
