//! What holds of every plan, and what some plans are.

mod fixed;
mod limits;
pub mod powers;
mod properties;
mod provenance;
mod stored;
pub mod world;
