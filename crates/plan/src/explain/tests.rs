//! Every power of a plan is explained, a comparison loses none, and remarks occur where they apply.

mod bounds;
mod differences;
mod plans;
mod properties;
mod remarks;
