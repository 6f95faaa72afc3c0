//! Properties of every plan, and some fixed plans.

mod fixed;
pub mod harness;
mod limits;
pub mod powers;
mod properties;
mod provenance;
mod stored;
