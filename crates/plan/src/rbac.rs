//! Rules of access to the Kubernetes API: which of them are harmless, which no pack may ask for, what follows from each, and
//! whether somebody who holds some rules may hand out another.

mod ceiling;
mod covers;
mod harmless;
mod implies;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use ceiling::{Escalation, escalations};
pub use covers::{MAX_COMBINATIONS, MAX_GRANT, TooMany, combinations, covers, look_at};
pub use harmless::{harmless, only_reads, unlisted};
pub use implies::{Implication, Scope, Weight, implications};

/// One rule, with the words of a Kubernetes `PolicyRule`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Groups of the resources; the empty text is the core group, `*` any.
    pub api_groups: Vec<String>,
    /// Resources and subresources; `*` is any, `*/scale` any of that subresource.
    pub resources: Vec<String>,
    /// Verbs; `*` is any.
    pub verbs: Vec<String>,
    /// Objects by name; empty is any.
    pub resource_names: Vec<String>,
    /// Paths that are no resources, such as `/metrics`.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
}

/// Whether a word of a rule that is held stands for the word that is asked for.
fn stands_for(held: &str, asked: &str) -> bool {
    held == "*" || held == asked
}

/// Whether a resource of a rule that is held stands for the one that is asked for: the same, any, or any with that
/// subresource.
fn resource_stands_for(held: &str, asked: &str) -> bool {
    if stands_for(held, asked) {
        return true;
    }
    match (held.strip_prefix("*/"), asked.split_once('/')) {
        (Some(held), Some((_, asked))) => held == asked,
        _ => false,
    }
}

impl From<&sympozium_api::rbac::RbacRule> for Rule {
    fn from(rule: &sympozium_api::rbac::RbacRule) -> Self {
        Self {
            api_groups: rule.api_groups.clone(),
            resources: rule.resources.clone(),
            verbs: rule.verbs.clone(),
            resource_names: rule.resource_names.clone(),
            non_resource_urls: Vec::new(),
        }
    }
}

impl std::fmt::Display for Rule {
    /// As a person would say it: `get secrets`, with the group where it is not the core's.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let resources = if self.resources.is_empty() { &self.non_resource_urls } else { &self.resources };
        let text = format!("{} {}", self.verbs.join(","), resources.join(","));
        write!(f, "{}", crate::text::shown(&text))?;
        let groups: Vec<&str> = self.api_groups.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
        if !groups.is_empty() {
            write!(f, " of {}", crate::text::shown(&groups.join(",")))?;
        }
        if !self.resource_names.is_empty() {
            write!(f, " named {}", crate::text::shown(&self.resource_names.join(",")))?;
        }
        Ok(())
    }
}
