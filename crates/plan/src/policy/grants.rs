//! What skills and hooks may be granted at the Kubernetes API.

use std::collections::BTreeSet;

use sympozium_api::policy::RbacPolicy;
use sympozium_api::rbac::RbacRule;

use super::allowed::Allowed;
use crate::rbac::{Rule, TooMany, covers};

/// Bounds of grants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grants {
    /// Sets of rules, each of which every granted rule must be within.
    ceilings: BTreeSet<BTreeSet<Rule>>,
    /// What is granted although more rights follow from it: what every one of these sets has, or everything.
    exceptions: Exceptions,
    /// Namespaces whose runs may be granted something in the whole cluster.
    pub cluster_namespaces: Allowed<String>,
}

/// What the policies that hold list as exceptions. All of them must.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Exceptions {
    Any,
    InEach(BTreeSet<BTreeSet<Rule>>),
}

impl Grants {
    /// No bounds.
    pub fn anything() -> Self {
        Self { ceilings: BTreeSet::new(), exceptions: Exceptions::Any, cluster_namespaces: Allowed::All }
    }

    /// What holds when a policy says nothing: no exceptions.
    pub fn usual() -> Self {
        Self { exceptions: Exceptions::InEach([BTreeSet::new()].into()), ..Self::anything() }
    }

    /// What a policy says.
    pub fn of(policy: &RbacPolicy) -> Self {
        let rules = |rules: &[RbacRule]| rules.iter().map(Rule::from).collect();
        let namespaces = policy.cluster_rbac_namespaces.as_ref();
        Self {
            ceilings: policy.ceiling.as_deref().map(rules).into_iter().collect(),
            exceptions: Exceptions::InEach([rules(&policy.exceptions)].into()),
            cluster_namespaces: Allowed::listed(namespaces.map(|it| it.iter().map(|name| name.as_str().to_owned()))),
        }
    }

    /// What both permit.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let exceptions = match (&self.exceptions, &other.exceptions) {
            (Exceptions::Any, other) => other.clone(),
            (this, Exceptions::Any) => this.clone(),
            (Exceptions::InEach(these), Exceptions::InEach(those)) => {
                Exceptions::InEach(these.union(those).cloned().collect())
            }
        };
        Self {
            ceilings: self.ceilings.union(&other.ceilings).cloned().collect(),
            exceptions,
            cluster_namespaces: self.cluster_namespaces.meet(&other.cluster_namespaces),
        }
    }

    /// Whether a right from which more rights follow is listed by every policy that holds.
    pub fn excepts(&self, right: &Rule) -> bool {
        match &self.exceptions {
            Exceptions::Any => true,
            Exceptions::InEach(sets) => {
                sets.iter().all(|set| covers(&set.iter().cloned().collect::<Vec<_>>(), right) == Ok(None))
            }
        }
    }

    /// A single right of a rule that a ceiling does not have; nothing when all are within all ceilings.
    pub fn beyond_ceiling(&self, rule: &Rule) -> Result<Option<Rule>, TooMany> {
        for ceiling in &self.ceilings {
            let ceiling: Vec<_> = ceiling.iter().cloned().collect();
            if let Some(missing) = covers(&ceiling, rule)? {
                return Ok(Some(missing));
            }
        }
        Ok(None)
    }
}
