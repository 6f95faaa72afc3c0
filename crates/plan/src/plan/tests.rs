//! Properties of every plan, and some fixed plans.

mod fixed;
mod limits;
pub mod powers;
mod properties;
mod provenance;
mod stored;
pub mod world;
