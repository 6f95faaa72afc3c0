//! Fuzz targets: bytes from a provider, a model, a page or a file. Their bodies are beside the code under test.
//!
//! Three callers share them: coverage-guided fuzzing (`make fuzz`), the replay of the corpora in `make test`, and
//! debugging of a finding. Each target states a property and panics when it does not hold.

pub use crate::model::anthropic::fuzzing::agent_anthropic;
pub use crate::model::openai::fuzzing::{agent_openai, agent_sse};
pub use crate::tools::chat_tokens::fuzzing::neutral_text;
pub use crate::tools::command::fuzzing::command_output;
pub use crate::tools::files::fuzzing::{agent_arguments, agent_edit};
pub use crate::tools::page::fuzzing::page_text;

/// Returns when every property holds for `data`, and panics otherwise.
pub type Body = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Body)] = &[
    ("agent_anthropic", agent_anthropic),
    ("agent_arguments", agent_arguments),
    ("agent_edit", agent_edit),
    ("agent_openai", agent_openai),
    ("agent_sse", agent_sse),
    ("command_output", command_output),
    ("neutral_text", neutral_text),
    ("page_text", page_text),
];

#[cfg(test)]
mod tests;
