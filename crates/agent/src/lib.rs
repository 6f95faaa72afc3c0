//! The agent of a run: the model loop, and the tools that it acts on itself. It holds no power and no credential; everything
//! it does goes over the door to the bridge.

#![warn(missing_docs)]

pub mod conversation;
pub mod model;
pub mod prompt;
pub mod skills;
pub mod tools;
