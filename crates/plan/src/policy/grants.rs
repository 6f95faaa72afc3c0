//! Bounds of what skills and hooks may be granted at the Kubernetes API.

use std::collections::BTreeSet;

use sympozium_api::policy::RbacPolicy;
use sympozium_api::rbac::RbacRule;

use super::allowed::Allowed;
use crate::rbac::{Rule, Scope, TooManyPermissions, find_uncovered, is_read_only};

/// Bounds of grants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantBounds {
    /// Sets of rules. Each of them must cover every granted rule.
    ceilings: BTreeSet<BTreeSet<Rule>>,
    /// Escalations that are granted nevertheless: those in every one of these sets, or all.
    exceptions: Exceptions,
    /// What is granted although it is not known to be harmless.
    consents: Exceptions,
    /// Namespaces whose runs may have cluster-wide grants.
    pub cluster_namespaces: Allowed<String>,
}

/// The exceptions of all policies that apply. An exception counts only when all of them list it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Exceptions {
    Any,
    InAll(BTreeSet<BTreeSet<Rule>>),
}

impl Exceptions {
    fn meet(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Any, other) => other.clone(),
            (this, Self::Any) => this.clone(),
            (Self::InAll(these), Self::InAll(those)) => Self::InAll(these.union(those).cloned().collect()),
        }
    }

    /// Whether every one of the sets covers a permission.
    fn covers(&self, right: &Rule) -> bool {
        match self {
            Self::Any => true,
            Self::InAll(sets) => {
                sets.iter().all(|set| find_uncovered(&set.iter().cloned().collect::<Vec<_>>(), right) == Ok(None))
            }
        }
    }
}

impl GrantBounds {
    /// No bounds.
    pub fn unrestricted() -> Self {
        Self {
            ceilings: BTreeSet::new(),
            exceptions: Exceptions::Any,
            consents: Exceptions::Any,
            cluster_namespaces: Allowed::All,
        }
    }

    /// The default of a floor without this section, and of no floor: there is no consent to anything.
    pub fn without_consent() -> Self {
        Self {
            consents: Exceptions::InAll([BTreeSet::new()].into()),
            cluster_namespaces: Allowed::none(),
            ..Self::unrestricted()
        }
    }

    /// The default of a policy without this section: no exceptions.
    pub fn without_exceptions() -> Self {
        Self { exceptions: Exceptions::InAll([BTreeSet::new()].into()), ..Self::unrestricted() }
    }

    /// From a floor. It consents to its exceptions, and to cluster-wide grants for the namespaces that it lists. Not
    /// mentioning them is not consent.
    pub fn from_floor(policy: &RbacPolicy) -> Self {
        let mut grants = Self::from_policy(policy);
        grants.consents = grants.exceptions.clone();
        if policy.cluster_rbac_namespaces.is_none() {
            grants.cluster_namespaces = Allowed::none();
        }
        grants
    }

    /// From the section of a policy.
    pub fn from_policy(policy: &RbacPolicy) -> Self {
        let rules = |rules: &[RbacRule]| rules.iter().map(Rule::from).collect();
        let namespaces = policy.cluster_rbac_namespaces.as_ref();
        Self {
            ceilings: policy.ceiling.as_deref().map(rules).into_iter().collect(),
            exceptions: Exceptions::InAll([rules(&policy.exceptions)].into()),
            consents: Exceptions::Any,
            cluster_namespaces: Allowed::from_list(
                namespaces.map(|namespaces| namespaces.iter().map(|name| name.as_str().to_owned())),
            ),
        }
    }

    /// What both permit.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self {
            ceilings: self.ceilings.union(&other.ceilings).cloned().collect(),
            exceptions: self.exceptions.meet(&other.exceptions),
            consents: self.consents.meet(&other.consents),
            cluster_namespaces: self.cluster_namespaces.meet(&other.cluster_namespaces),
        }
    }

    /// Whether a right from which more rights follow is listed by every policy that holds. A floor that says nothing about rights does
    /// not hold it back here; it has [not consented](Self::consents_to) either.
    pub fn excepts(&self, right: &Rule, scope: Scope) -> bool {
        can_be_excepted(right, scope) && self.exceptions.covers(right)
    }

    /// Whether the floor lists a permission that is not known to be harmless. A policy cannot consent in its place: an
    /// author of policies in one namespace would consent for the cluster.
    pub fn consents_to(&self, right: &Rule, scope: Scope) -> bool {
        can_be_excepted(right, scope) && self.consents.covers(right)
    }

    /// A single permission of a rule that a ceiling does not cover; `None` when every ceiling covers all of them.
    pub fn find_beyond_ceiling(&self, rule: &Rule) -> Result<Option<Rule>, TooManyPermissions> {
        for ceiling in &self.ceilings {
            let ceiling: Vec<_> = ceiling.iter().cloned().collect();
            if let Some(missing) = find_uncovered(&ceiling, rule)? {
                return Ok(Some(missing));
            }
        }
        Ok(None)
    }
}

/// Whether an exception can cover a permission. Exceptions do not say where they apply, and their author has the
/// namespace of a run in mind: cluster-wide they cover reads and no writes.
pub fn can_be_excepted(right: &Rule, scope: Scope) -> bool {
    scope == Scope::Namespace || is_read_only(right)
}
