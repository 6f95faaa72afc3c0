//! What a run may do: [`admit`] says yes or no, in the webhook, in the controller and on the command line.
#![warn(missing_docs)]

pub mod admit;
pub mod duration;
pub mod environment;
pub mod fuzzing;
pub mod host;
pub mod image;
pub mod path;
pub mod policy;
pub mod quantity;
pub mod rbac;
mod text;
