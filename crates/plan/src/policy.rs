//! The policy that applies to a run, as one value. Policies are combined by [`EffectivePolicy::meet`], which allows
//! nothing that one of them does not allow.
//!
//! Some sections of a policy restrict (a list of registries, a ceiling). Others open what is closed by default (access
//! to the node, private hosts, exceptions from the ceiling of grants, seccomp profiles of the node). An absent section
//! restricts nothing and opens nothing. So *no policy* is not the top of the order but [`EffectivePolicy::base`], the
//! policy of an agent that names none. The policy floor bounds and does not grant: what it does not mention, it leaves
//! to the other policy.

mod allowances;
pub mod allowed;
pub mod approval;
pub mod egress;
pub mod grants;
pub mod host_access;
pub mod isolation;
pub mod packs;
#[cfg(test)]
pub(crate) mod tests;
pub mod tools;

use std::collections::BTreeSet;

use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::names::{ImageRef, ObjectName};
use sympozium_api::policy::SandboxPolicy;
use sympozium_api::sandbox::SeccompProfile;
use sympozium_api::text::{MAX_NAME, printable, truncate};
use sympozium_api::{Feature, SympoziumPolicySpec};

use crate::host::Destination;
use crate::image::RegistryPattern;
use allowed::{Allowed, ModelPattern};
use approval::ApprovalBounds;
use egress::EgressBounds;
use grants::GrantBounds;
use host_access::HostPowers;
use isolation::{IsolationBounds, SeccompFilter};
use tools::Gates;

/// The policy that applies to a run. The order is `a <= b` when `a` allows nothing that `b` does not; see
/// [`Self::is_at_most`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectivePolicy {
    /// Whether any policy or policy floor applies. Some rules are stricter then.
    pub has_policy: bool,
    /// Required isolation, and maximum resources.
    pub isolation: IsolationBounds,
    /// The seccomp profile files of the node that a run may choose. Separate from [`Self::isolation`], because a
    /// profile on the node may filter nothing: naming one is more than not forbidding it.
    pub seccomp_choices: Allowed<SeccompFilter>,
    /// Maximum depth of runs below the first.
    pub max_depth: Option<u32>,
    /// Maximum number of concurrent runs in a tree.
    pub max_concurrent: Option<u32>,
    /// The gates of tools.
    pub gates: Gates,
    /// Features that are disabled.
    pub disabled_features: BTreeSet<Feature>,
    /// Unknown names of features that a policy disables: under such a policy every run is denied.
    pub unknown_features: BTreeSet<String>,
    /// The hosts that a run may reach.
    pub egress: EgressBounds,
    /// The hosts that may serve models in addition to the providers' own addresses, within [`Self::reach`]. Separate
    /// from that, because the model key is sent there: listing a host is more than not forbidding it.
    pub model_endpoints: Allowed<Destination>,
    /// Whether the event bus may be used.
    pub event_bus: bool,
    /// Namespaces whose Models may be used.
    pub model_namespaces: Allowed<String>,
    /// Namespaces, in addition to the system namespace, whose Models may be used at the address of their Service, which
    /// no list has. Separate from [`Self::model_namespaces`], because the model key is sent there: users who may write
    /// Services in a namespace decide where such a name leads.
    pub model_services: Allowed<String>,
    /// Models that may be used.
    pub models: Allowed<ModelPattern>,
    /// Registries that images may come from.
    pub registries: Allowed<RegistryPattern>,
    /// Resources that no hook may access, in lower case.
    pub denied_hook_resources: BTreeSet<String>,
    /// Bounds of grants at the Kubernetes API.
    pub grants: GrantBounds,
    /// Access to the node.
    pub host_access: HostPowers,
    /// Packs that may be used, each as `namespace/name`.
    pub packs: Allowed<String>,
    /// Whether packs of the system namespace may be used.
    pub system_packs: bool,
    /// Whether a pack of the run's namespace may shadow one of the system namespace.
    pub shadowing: bool,
    /// Who approves calls of tools whose gate is `ask`.
    pub approval: ApprovalBounds,
}

/// What policies fill in where a run sets nothing. Not part of the order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyDefaults {
    /// The image of the container `sandbox`.
    pub sandbox_image: Option<ImageRef>,
    /// The RuntimeClass of a run in agent-sandbox.
    pub runtime_class: Option<ObjectName>,
    /// The seccomp profile.
    pub seccomp: Option<SeccompProfile>,
}

/// An invalid entry of a policy. It opens nothing; where it was meant to restrict, it allows nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEntry {
    /// The field, relative to the spec.
    pub field: String,
    /// Why it is invalid.
    pub reason: String,
    /// Its effect as it stands, as the end of a sentence.
    pub effect: &'static str,
}

/// The role of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A policy that an agent names: it grants what it lists.
    Named,
    /// The policy floor: it bounds what other policies grant.
    Floor,
}

impl EffectivePolicy {
    /// The policy of a run: the floor and the policy that its agent names, or their defaults. Packs that a policy names
    /// without a namespace are those of the system namespace.
    pub fn from_specs(
        floor: Option<&SympoziumPolicySpec>,
        named: Option<&SympoziumPolicySpec>,
        system_namespace: &str,
    ) -> Self {
        let floor = floor.map_or_else(Self::without_floor, |floor| Self::from_floor(floor, system_namespace));
        let named = named.map_or_else(Self::base, |named| Self::from_named(named, system_namespace));
        floor.meet(&named)
    }

    /// Allows everything: the top of the order.
    pub fn top() -> Self {
        Self {
            has_policy: false,
            isolation: IsolationBounds::unrestricted(),
            seccomp_choices: Allowed::All,
            max_depth: None,
            max_concurrent: None,
            gates: Gates::default(),
            disabled_features: BTreeSet::new(),
            unknown_features: BTreeSet::new(),
            egress: EgressBounds::unrestricted(),
            model_endpoints: Allowed::All,
            event_bus: true,
            model_namespaces: Allowed::All,
            model_services: Allowed::All,
            models: Allowed::All,
            registries: Allowed::All,
            denied_hook_resources: BTreeSet::new(),
            grants: GrantBounds::unrestricted(),
            host_access: HostPowers::all(),
            packs: Allowed::All,
            system_packs: true,
            shadowing: true,
            approval: ApprovalBounds::unrestricted(),
        }
    }

    /// The policy of an agent that names none: nothing is restricted, nothing is opened.
    pub fn base() -> Self {
        Self {
            seccomp_choices: Allowed::none(),
            egress: EgressBounds::public_only(),
            model_endpoints: Allowed::none(),
            model_services: Allowed::none(),
            grants: GrantBounds::without_exceptions(),
            host_access: HostPowers::none(),
            shadowing: false,
            approval: ApprovalBounds::per_action(),
            ..Self::top()
        }
    }

    /// The default without a policy floor: there is no consent to cluster-wide grants, to permissions that are not
    /// known to be harmless, or to access to the node for packs outside of the system namespace.
    pub fn without_floor() -> Self {
        let mut policy = Self::top();
        policy.grants = GrantBounds::without_consent();
        policy.host_access.namespaces = Allowed::none();
        policy
    }

    /// From a policy that an agent names.
    pub fn from_named(spec: &SympoziumPolicySpec, system_namespace: &str) -> Self {
        Self::from_spec(spec, Role::Named, system_namespace, &mut Vec::new())
    }

    /// From the policy floor.
    pub fn from_floor(spec: &SympoziumPolicySpec, system_namespace: &str) -> Self {
        Self::from_spec(spec, Role::Floor, system_namespace, &mut Vec::new())
    }

    /// The invalid entries of a policy.
    pub fn invalid_entries(spec: &SympoziumPolicySpec) -> Vec<InvalidEntry> {
        let mut invalid = Vec::new();
        Self::from_spec(spec, Role::Named, SYSTEM_NAMESPACE, &mut invalid);
        invalid
    }

    fn from_spec(
        spec: &SympoziumPolicySpec,
        role: Role,
        system_namespace: &str,
        invalid: &mut Vec<InvalidEntry>,
    ) -> Self {
        let mut policy = match role {
            Role::Named => Self::base(),
            Role::Floor => Self::without_floor(),
        };
        let mut note = |field: String, why: String, effect| {
            invalid.push(InvalidEntry { field, reason: why, effect });
        };
        policy.has_policy = true;
        policy.gates = Gates::from_policy(spec.tool_gating.as_ref());
        if let Some(sandbox) = &spec.sandbox_policy {
            let (isolation, amounts) = IsolationBounds::from_policy(sandbox);
            policy.isolation = isolation;
            for (field, error) in amounts {
                note(format!("sandboxPolicy.{field}"), error.to_string(), "it allows nothing");
            }
            if let Some(agent_sandbox) = &sandbox.agent_sandbox_policy
                && let Some(class) = &agent_sandbox.default_runtime_class
                && !policy.isolation.runtime_classes.covers(&class.as_str().to_owned())
            {
                let why = "it is not one of `allowedRuntimeClasses`".to_owned();
                note(
                    "sandboxPolicy.agentSandboxPolicy.defaultRuntimeClass".to_owned(),
                    why,
                    "runs that leave their class to it are denied",
                );
            }
            if let Some(profile) = &sandbox.seccomp_profile
                && SeccompFilter::from_profile(profile).is_none()
            {
                let why = "it is not a filter; `RuntimeDefault` is one".to_owned();
                note("sandboxPolicy.seccompProfile".to_owned(), why, "it allows nothing");
            }
        }
        if let Some(subagents) = &spec.subagent_policy {
            let number = |number: i32| Some(u32::try_from(number).unwrap_or(0));
            policy.max_depth = number(subagents.max_depth);
            policy.max_concurrent = number(subagents.max_concurrent);
        }
        for (name, open) in &spec.feature_gates {
            match Feature::ALL.iter().find(|feature| feature.as_str() == name) {
                Some(feature) if !open => {
                    policy.disabled_features.insert(*feature);
                }
                Some(_) => {}
                None => {
                    let effect = if *open {
                        "it opens nothing"
                    } else {
                        policy.unknown_features.insert(name.clone());
                        "every run under the policy is denied"
                    };
                    let name = printable(truncate(name, MAX_NAME));
                    let known = crate::text::quote_list(Feature::ALL.map(Feature::as_str));
                    note(
                        format!("featureGates.{name}"),
                        format!("there is no such feature; there are {known}"),
                        effect,
                    );
                }
            }
        }
        if let Some(network) = &spec.network_policy {
            let (listed, hosts) = egress::parse_egress_list(network);
            policy.egress = EgressBounds::from_policy(network, listed.clone());
            // A floor that allows public hosts leaves it to the other policy to list them.
            policy.model_endpoints = match role {
                Role::Floor if !network.deny_all => Allowed::All,
                _ => listed,
            };
            policy.event_bus = network.allow_event_bus;
            for (index, why) in hosts {
                note(format!("networkPolicy.allowedEgress[{index}]"), why, "it allows nothing");
            }
        }
        if let Some(models) = &spec.model_policy {
            let namespaces = models.allowed_namespaces.as_ref();
            policy.model_namespaces =
                Allowed::from_list(namespaces.map(|namespaces| namespaces.iter().map(|name| name.as_str().to_owned())));
            let names = models.allowed_models.as_ref();
            policy.models = Allowed::from_list(names.map(|names| names.iter().map(|name| ModelPattern::new(name))));
        }
        if let Some(registries) =
            spec.image_policy.as_ref().and_then(|image_policy| image_policy.allowed_registries.as_ref())
        {
            let mut entries = Vec::new();
            for (index, entry) in registries.iter().enumerate() {
                match RegistryPattern::parse(entry) {
                    Ok(entry) => entries.push(entry),
                    Err(error) => {
                        note(format!("imagePolicy.allowedRegistries[{index}]"), error.to_string(), "it allows nothing")
                    }
                }
            }
            policy.registries = Allowed::only(entries);
        }
        if let Some(lifecycle) = &spec.lifecycle_policy {
            let denied = lifecycle.denied_resources.iter();
            policy.denied_hook_resources = denied.map(|denied_resource| denied_resource.to_ascii_lowercase()).collect();
        }
        policy.set_allowances(spec, role, system_namespace);
        policy
    }

    /// What both allow: the greatest lower bound.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let least = |left: Option<u32>, right| [left, right].into_iter().flatten().min();
        Self {
            has_policy: self.has_policy || other.has_policy,
            isolation: self.isolation.meet(&other.isolation),
            seccomp_choices: self.seccomp_choices.meet(&other.seccomp_choices),
            max_depth: least(self.max_depth, other.max_depth),
            max_concurrent: least(self.max_concurrent, other.max_concurrent),
            gates: self.gates.meet(&other.gates),
            disabled_features: self.disabled_features.union(&other.disabled_features).copied().collect(),
            unknown_features: self.unknown_features.union(&other.unknown_features).cloned().collect(),
            egress: self.egress.meet(&other.egress),
            model_endpoints: self.model_endpoints.meet(&other.model_endpoints),
            event_bus: self.event_bus && other.event_bus,
            model_namespaces: self.model_namespaces.meet(&other.model_namespaces),
            model_services: self.model_services.meet(&other.model_services),
            models: self.models.meet(&other.models),
            registries: self.registries.meet(&other.registries),
            denied_hook_resources: self.denied_hook_resources.union(&other.denied_hook_resources).cloned().collect(),
            grants: self.grants.meet(&other.grants),
            host_access: self.host_access.meet(&other.host_access),
            packs: self.packs.meet(&other.packs),
            system_packs: self.system_packs && other.system_packs,
            shadowing: self.shadowing && other.shadowing,
            approval: self.approval.meet(&other.approval),
        }
    }

    /// The order of the lattice: whether `self` allows nothing that `other` does not.
    pub fn is_at_most(&self, other: &Self) -> bool {
        self.meet(other) == *self
    }
}

impl PolicyDefaults {
    /// The defaults of the named policy; where it has none, those of the floor.
    pub fn from_specs(floor: Option<&SympoziumPolicySpec>, named: Option<&SympoziumPolicySpec>) -> Self {
        let parts: Vec<&SandboxPolicy> =
            [named, floor].into_iter().flatten().filter_map(|spec| spec.sandbox_policy.as_ref()).collect();
        let agent_sandbox = |part: &&SandboxPolicy| part.agent_sandbox_policy.clone();
        Self {
            sandbox_image: parts.iter().find_map(|part| part.default_image.clone()),
            runtime_class: parts.iter().filter_map(agent_sandbox).find_map(|part| part.default_runtime_class),
            seccomp: parts.iter().find_map(|part| part.seccomp_profile.clone()),
        }
    }
}
