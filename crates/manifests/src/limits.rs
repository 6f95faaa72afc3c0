//! Bounds on what is read. Files are untrusted: they may come from a pull request, a download or a broken generator.
//! What users write stays far below each bound.

/// Bytes of one file. The API server accepts 3 MiB in one request and etcd 1.5 MiB in one object, so this is several
/// objects of the largest kind.
pub const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of all files together.
pub const MAX_TOTAL_BYTES: u64 = 64 * 1024 * 1024;

/// Files, whether named or found in directories.
pub const MAX_FILES: usize = 10_000;

/// Directory entries that are examined, whatever they are.
pub const MAX_DIRECTORY_ENTRIES: usize = 100_000;

/// Levels of nested directories.
pub const MAX_DIRECTORY_DEPTH: usize = 32;

/// Documents of all files together.
pub const MAX_DOCUMENTS: usize = 10_000;

/// Levels of nested collections; our own kinds need 14.
pub const MAX_DEPTH: usize = 64;

/// Values of all files together; what an alias or a merge copies counts as if it were written out.
pub const MAX_NODES: usize = 1_000_000;

/// Bytes of one text.
pub const MAX_SCALAR_BYTES: usize = 1024 * 1024;

/// Bytes of texts that aliases and merges copy, in all files together.
pub const MAX_COPIED_BYTES: usize = 8 * 1024 * 1024;

/// Characters of a mapping's key. The parser looks no further for the colon.
pub const MAX_KEY_LENGTH: usize = 1024;

/// Findings that are listed; further ones are counted.
pub const MAX_FINDINGS: usize = 1_000;

/// Runs that are checked, including those that were made up for an agent. Each may repeat everything that its agent
/// has, so this bounds time where the number of documents does not.
pub const MAX_RUNS: usize = 2_000;
