//! What holds of every plan, and what some plans are.

mod fixed;
pub mod powers;
mod properties;
pub mod world;
