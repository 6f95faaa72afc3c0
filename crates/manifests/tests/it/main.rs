//! What needs more than one module.

mod fuzz;
