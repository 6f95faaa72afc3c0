//! Bounds on what is read of a skill's directory. Skills are downloaded from untrusted sources.

use sympozium_api::limits;

/// Bytes of `SKILL.md` and of each other file: the maximum of a field of a SkillPack.
pub const MAX_FILE_BYTES: usize = limits::LONG_TEXT;

/// Bytes of a binary file: in Base64 three bytes become four.
pub const MAX_BINARY_BYTES: usize = MAX_FILE_BYTES / 4 * 3;

/// Bytes of everything in one skill, as a pack counts them.
pub const MAX_SKILL_BYTES: usize = sympozium_plan::admit::MAX_PACK_BYTES;

/// Files in addition to `SKILL.md`.
pub const MAX_FILES: usize = limits::SKILL_FILES;

/// Entries of a skill's directory that are examined, whatever they are.
pub const MAX_ENTRIES: usize = 1_000;

/// Levels of directories within a skill's directory, and above it in a search.
pub const MAX_DEPTH: usize = 6;

/// Directories that are searched for skills.
pub const MAX_DIRECTORIES: usize = 2_000;

/// Skills of one directory that are read into one pack.
pub const MAX_SKILLS: usize = limits::SKILL_TEXTS;

/// Characters of a description.
pub const MAX_DESCRIPTION: usize = limits::SHORT_TEXT;

/// Bytes of an annotation: all of an object's have 256 KiB, so that 64 skills with three each fit.
pub const MAX_ANNOTATION_BYTES: usize = 1_024;

/// Tools that `allowed-tools` may name.
pub const MAX_TOOLS: usize = limits::NAMES;

/// Programs that a skill may need.
pub const MAX_PROGRAMS: usize = limits::NAMES;

/// Characters of the version and of the category.
pub const MAX_WORD: usize = limits::WORD;
