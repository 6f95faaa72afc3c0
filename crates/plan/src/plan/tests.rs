//! What holds of every plan, and what some plans are.

mod fixed;
mod properties;
pub mod world;
