//! Native tools, and how results are rendered for the model.

pub mod chat_tokens;
pub mod command;
pub mod files;
pub mod native;
pub mod page;

/// Why a tool call failed, worded for the model, which can often correct the call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);
