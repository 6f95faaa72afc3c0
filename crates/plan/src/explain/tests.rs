//! Every power of a plan is explained, and a comparison loses none.

mod plans;
mod properties;
