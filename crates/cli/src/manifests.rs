//! Manifests as users write them: files, directories and standard input, YAML and JSON, read within the bounds that
//! hostile input needs, into trees that know the line of each field.

pub mod agent_skill;
pub mod invisible_chars;
pub mod limits;
pub mod load;
pub mod problem;
pub mod scalars;
pub mod sources;
pub mod tree;
