//! RBAC rules: which are harmless, which no pack may request, what follows from each, and whether a user who holds some
//! rules may grant another.

mod coverage;
mod escalation;
mod harmless;
mod implication;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use sympozium_api::text::{MAX_NAME, printable, truncate};

pub use coverage::{
    MAX_GRANT_PERMISSIONS, MAX_RULE_PERMISSIONS, TooManyPermissions, check_rule_size, count_permissions, find_uncovered,
};
pub use escalation::{Escalation, escalations};
pub use harmless::{harmless_rules, is_read_only, unlisted_rules};
pub use implication::{Implication, Scope, Weight, implications};

/// One rule, with the fields of a Kubernetes `PolicyRule`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// API groups; the empty text is the core group, `*` any.
    pub api_groups: Vec<String>,
    /// Resources and subresources; `*` is any, `*/scale` any resource with that subresource.
    pub resources: Vec<String>,
    /// Verbs; `*` is any.
    pub verbs: Vec<String>,
    /// Names of objects; empty is any.
    pub resource_names: Vec<String>,
    /// Paths that are not resources, such as `/metrics`.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
}

/// Whether a word of a held rule covers the requested word.
fn word_covers(held: &str, asked: &str) -> bool {
    held == "*" || held == asked
}

/// Whether a resource of a held rule covers the requested one: the same, any, or any with that subresource.
fn resource_covers(held: &str, asked: &str) -> bool {
    if word_covers(held, asked) {
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
    /// Short form for messages: `get secrets`, with the group unless it is the core group.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let resources = if self.resources.is_empty() { &self.non_resource_urls } else { &self.resources };
        let text = format!("{} {}", self.verbs.join(","), resources.join(","));
        write!(f, "{}", printable(truncate(&text, MAX_NAME)))?;
        let groups: Vec<&str> =
            self.api_groups.iter().map(String::as_str).filter(|api_group| !api_group.is_empty()).collect();
        if !groups.is_empty() {
            write!(f, " of {}", printable(truncate(groups.join(","), MAX_NAME)))?;
        }
        if !self.resource_names.is_empty() {
            write!(f, " named {}", printable(truncate(self.resource_names.join(","), MAX_NAME)))?;
        }
        Ok(())
    }
}
