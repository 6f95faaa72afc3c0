//! The list of powers.

use sympozium_api::rbac::RbacRule;

use super::{MAX_SINGLE_PERMISSIONS, Power, Section};
use crate::explain::grants::{Grant, IdentityInfo};
use crate::rbac::{Rule, Scope, Weight, implications};

/// Adds the permissions of a grant one by one, because two rules can express what one rule did before.
pub fn add_grant(list: &mut PowerList, identity: &IdentityInfo, grant: &Grant) {
    // No pack can have this name.
    let owner = identity.pack.as_deref().unwrap_or("the hooks");
    let rule = &grant.rule;
    let names = rule.resource_names.len().max(1);
    let count = [&rule.api_groups, &rule.resources, &rule.verbs]
        .iter()
        .map(|words| words.len())
        .fold(names, usize::saturating_mul);
    if count > MAX_SINGLE_PERMISSIONS {
        list.add_permission(owner, grant.scope, &grant.words, &Rule::from(rule));
        return;
    }
    for verb in &rule.verbs {
        for resource in &rule.resources {
            for group in &rule.api_groups {
                let named = rule.resource_names.iter().map(Some);
                let all = rule.resource_names.is_empty().then_some(None);
                for name in named.chain(all) {
                    let single = Rule::from(&RbacRule {
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        verbs: vec![verb.clone()],
                        resource_names: name.cloned().into_iter().collect(),
                    });
                    let group = match group.as_str() {
                        "" => String::new(),
                        group => format!(" ({group})"),
                    };
                    let name = name.map_or_else(String::new, |name| format!(", only {name}"));
                    let words = format!("{verb} {resource}{group}{name}");
                    list.add_permission(owner, grant.scope, &words, &single);
                }
            }
        }
    }
}

/// Collects powers.
#[derive(Default)]
pub struct PowerList(pub Vec<Power>);

impl PowerList {
    pub fn add(&mut self, section: Section, of: &str, what: &str) {
        self.0.push(Power {
            section,
            is_severe: false,
            of: of.to_owned(),
            what: what.to_owned(),
            value: None,
            means: Vec::new(),
            rank: None,
            is_detail: false,
        });
    }

    /// Adds a value that is printed only when it changes. Any change of it may be more power.
    pub fn add_detail(&mut self, section: Section, of: &str, what: &str, value: &str) {
        self.add_value(section, of, what, value, None);
        if let Some(power) = self.0.last_mut() {
            power.is_detail = true;
        }
    }

    pub fn add_value(&mut self, section: Section, of: &str, what: &str, value: &str, rank: Option<u128>) {
        self.add(section, of, what);
        if let Some(power) = self.0.last_mut() {
            power.value = Some(value.to_owned());
            power.rank = rank;
        }
    }

    /// Adds a limit. No limit is more than any number.
    pub fn add_limit(&mut self, section: Section, of: &str, what: &str, number: Option<u64>) {
        let value = number.map_or_else(|| "no limit".to_owned(), |number| number.to_string());
        let rank = number.map_or(u128::MAX, u128::from);
        self.add_value(section, of, what, &value, Some(rank));
    }

    fn add_permission(&mut self, of: &str, scope: Scope, words: &str, rule: &Rule) {
        let place = match scope {
            Scope::Namespace => "in the namespace",
            Scope::Cluster => "in the whole cluster",
        };
        self.add(Section::Kubernetes, of, &format!("{words}, {place}"));
        let follows = implications(rule, scope);
        if let Some(power) = self.0.last_mut() {
            power.is_severe = follows.iter().any(|implication| implication.weight == Weight::MoreRights);
            power.means = follows.into_iter().map(|implication| implication.consequence).collect();
        }
    }
}
