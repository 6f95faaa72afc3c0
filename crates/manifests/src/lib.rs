//! Manifests and skills as users write them, from files to plans.
//!
//! * [`sources`] finds and reads files, directories and standard input within the bounds that hostile input needs;
//!   [`load`] parses YAML and JSON into the [`tree`] that knows the line of each field.
//! * [`agent_skill`] makes a SkillPack of a directory with `SKILL.md`.
//! * [`validate`] checks objects against schemas, resolves what they name, and has their runs admitted.
//! * [`planning`] plans the runs that were admitted.
//! * [`built_in`] has what an installation ships; [`kinds`] names our kinds.
//!
//! It must never print, talk to a cluster, or decide about powers: `sympozium-plan` does. Start reading at
//! [`validate::Session`].

pub mod agent_skill;
pub mod built_in;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod invisible_chars;
pub mod kinds;
pub mod limits;
pub mod load;
pub mod planning;
pub mod problem;
mod scalars;
pub mod sources;
pub mod tree;
pub mod validate;
