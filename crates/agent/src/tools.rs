//! Tools that the agent acts on itself, and how the answers of others are told to the model.

pub mod command;
pub mod files;
pub mod native;
pub mod neutral;
pub mod page;

/// Why a tool did not do what it was asked: told to the model, which can often do better.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);
