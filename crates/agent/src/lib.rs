//! The agent of a run: the model loop, and the tools that it acts on itself. It holds no power and no credential; everything
//! it does goes over the door to the bridge.
//!
//! * [`program`] is the process: it locks itself down ([`restrict`]), reads its [`view`] and the author's [`settings`], connects to the [`door`].
//! * [`run`] is the loop. [`ask`] puts one question to the model, [`model`] has the two wire formats, [`conversation`] what was
//!   said, [`context`] what of it is said again, [`prompt`] what is said first.
//! * [`calls`] makes the calls of one answer: [`independent`] says which go side by side, [`repeats`] which are made in vain,
//!   [`tools`] has what the agent does itself and how it tells what others did, [`skills`] how it reads the texts of skills.
//! * [`status`] and [`transcript`] are for people; [`time`] and [`backoff`] are about waiting.
//!
//! Start reading at [`run::Run::work`], and at [`program::main`] for how it starts.

#![warn(missing_docs)]

pub mod arguments;
pub mod ask;
pub mod backoff;
pub mod calls;
pub mod context;
pub mod conversation;
pub mod door;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod independent;
pub mod model;
pub mod program;
pub mod prompt;
pub mod repeats;
pub mod restrict;
pub mod run;
pub mod settings;
pub mod skills;
pub mod status;
pub mod time;
pub mod tools;
pub mod transcript;
pub mod view;
