//! Invariant 2, power by power: plan ⊆ admitted ⊆ policy.

use std::collections::BTreeSet;

use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::builtin_tool::LOAD_SKILL;
use sympozium_api::environment::EnvVar;
use sympozium_api::provider::{DefaultEndpoint, Provider};
use sympozium_api::quantity::Quantity;
use sympozium_api::run_plan::Gate;
use sympozium_api::run_plan::{Part, ResourcesPlan, Role, VolumeSource};
use sympozium_api::skill_pack::Sidecar;

use crate::admit::{Admitted, Input, subagent_bounds};
use crate::host::{Destination, Endpoint};
use crate::policy::allowed::{Allowed, HostDirectory};
use crate::policy::isolation::SeccompFilter;
use crate::policy::packs::PackId;
use crate::quantity::ExactQuantity;
use crate::rbac::{Rule, Scope, unlisted_rules};

/// A plan beside the input that it was made from.
pub struct Powers<'p, 'a> {
    pub plan: &'p RunPlan,
    pub admitted: &'p Admitted<'a>,
    pub input: &'p Input<'a>,
}

pub fn secret_of(variable: &EnvVar) -> Option<&str> {
    let from = variable.value_from.as_ref()?;
    Some(from.secret_key_ref.as_ref()?.name.as_str())
}

/// Every Secret that a part reads as variables or files.
pub fn secrets_of<'p>(plan: &'p RunPlan, part: &'p Part) -> BTreeSet<&'p str> {
    let mut secrets: BTreeSet<&str> = part.env.iter().filter_map(secret_of).collect();
    for mount in &part.mounts {
        match &plan.volume(&mount.volume).expect("a volume").source {
            VolumeSource::Secret { secret } => drop(secrets.insert(secret.as_str())),
            VolumeSource::Declared { volume } => {
                secrets.extend(volume.secrets().iter().filter_map(|secret| secret.name));
            }
            _ => {}
        }
    }
    secrets
}

impl<'p> Powers<'p, '_> {
    /// Checks all powers.
    pub fn only_shrink(&self) {
        self.rights();
        self.reach();
        self.tools();
        self.secrets();
        self.node();
        self.isolation();
        self.approval();
        self.subagents();
        self.amounts();
    }

    fn sidecar(&self, pack: &str) -> Option<&'p Sidecar> {
        let mut packs = self.admitted.packs.iter();
        packs.find(|candidate| candidate.name == pack)?.sidecar()
    }

    fn sidecar_of(&self, part: &Part) -> Option<&'p Sidecar> {
        match &part.role {
            Role::Skill { pack } => Some(self.sidecar(pack.as_str()).expect("a sidecar")),
            _ => None,
        }
    }

    fn rights(&self) {
        for identity in &self.plan.identities {
            let (own, cluster) = match &identity.pack {
                Some(pack) => {
                    let sidecar = self.sidecar(pack).expect("the pack has a sidecar");
                    (sidecar.rbac.clone(), sidecar.cluster_rbac.clone())
                }
                None => {
                    let hooks = self.admitted.run.spec.lifecycle.as_ref();
                    (hooks.expect("hooks").rbac.clone(), Vec::new())
                }
            };
            assert_eq!(identity.namespace_rules, own);
            assert_eq!(identity.cluster_rules, cluster);
            let own_rules = own.iter().map(|rule| (rule, Scope::Namespace));
            for (rule, scope) in own_rules.chain(cluster.iter().map(|rule| (rule, Scope::Cluster))) {
                for (_, right) in crate::rbac::escalations(&Rule::from(rule)) {
                    assert!(self.admitted.policy.grants.excepts(&right, scope), "{right}");
                }
            }
            for (rules, scope) in [(&own, Scope::Namespace), (&cluster, Scope::Cluster)] {
                let rights = rules.iter().flat_map(|rule| unlisted_rules(&Rule::from(rule), scope));
                for right in rights {
                    let grants = &self.admitted.policy.grants;
                    assert!(grants.consents_to(&right, scope), "{right}");
                }
            }
            let parts = self.plan.parts.iter();
            let holders: Vec<_> = parts.filter(|part| part.identity.as_ref() == Some(&identity.name)).collect();
            assert!(!holders.is_empty());
            for holder in holders {
                assert_eq!(holder.role.pack(), identity.pack.as_deref());
                assert!(identity.pack.is_some() || holder.role.is_hook());
            }
        }
    }

    fn reach(&self) {
        let policy = &self.admitted.policy;
        for credential in &self.plan.credentials {
            let reach = &credential.reach;
            assert!(!reach.public || policy.egress.public);
            if credential.name == "model" {
                assert!(!reach.public);
                let hosts: Vec<_> = reach
                    .destinations
                    .iter()
                    .map(|destination| (destination.host.as_str(), destination.port))
                    .collect();
                assert_eq!(hosts, [self.model_address()]);
                continue;
            }
            for destination in &reach.destinations {
                let asked = Destination::parse(&destination.host, destination.port).expect("a host");
                assert!(policy.egress.covers(&asked), "{asked}");
            }
        }
    }

    /// The model's address: that of the `Model`, one that the policy lists, or the provider's own.
    fn model_address(&self) -> (&'p str, Option<u16>) {
        let model = self.admitted.run.spec.model.as_ref().expect("a model");
        let planned = self.plan.model.endpoint.as_ref().expect("an address");
        if model.model_ref.is_some() {
            let served = self.input.models.own.expect("a Model");
            let known = served.status.as_ref().and_then(|status| status.endpoint.as_ref());
            let policy = &self.admitted.policy;
            match known {
                Some(url) => {
                    let asked = Endpoint::parse(url).expect("an address");
                    assert_eq!(planned.host, asked.host.to_string());
                    assert!(policy.egress.allows(&asked.host, asked.port));
                    assert!(
                        policy.model_endpoints.allows(|model_endpoint| model_endpoint.allows(&asked.host, asked.port))
                    );
                }
                None => {
                    let namespace = self.input.namespace;
                    assert_eq!(planned.host, format!("model-served.{namespace}.svc"));
                    assert!(policy.model_services.covers(&namespace.to_owned()));
                }
            }
        } else if let Some(url) = &model.base_url {
            let asked = Endpoint::parse(url).expect("an address");
            assert_eq!((planned.host.clone(), planned.port), (asked.host.to_string(), asked.port));
            assert!(
                self.admitted
                    .policy
                    .model_endpoints
                    .allows(|model_endpoint| model_endpoint.allows(&asked.host, asked.port))
            );
        } else {
            assert_eq!(
                Provider::find(&model.provider).endpoint,
                match planned.host.as_str() {
                    "api.openai.com" => DefaultEndpoint::Fixed("api.openai.com", planned.port),
                    "api.anthropic.com" => DefaultEndpoint::Fixed("api.anthropic.com", planned.port),
                    "api.groq.com" => DefaultEndpoint::Fixed("api.groq.com", planned.port),
                    other => panic!("{other} is no provider's"),
                }
            );
        }
        (&planned.host, Some(planned.port))
    }

    fn tools(&self) {
        for tool in &self.plan.tools {
            let mut decisions = self.admitted.tools.iter();
            let decision = decisions.find(|decision| decision.name == tool.name && decision.pack == tool.pack);
            let allowed = decision.map_or_else(
                || {
                    assert_eq!(tool.name, LOAD_SKILL);
                    Gate::Allow
                },
                |decision| decision.action,
            );
            let gate = allowed;
            assert!(tool.gate <= gate, "{} is {:?}, and {gate:?} was decided", tool.name, tool.gate);
        }
    }

    /// Each part reads the Secrets that were admitted for it, and only the bridge those of the model.
    fn secrets(&self) {
        let model = &self.plan.model;
        let of_model: BTreeSet<&str> = (model.keys.iter().map(|key| key.secret.as_str()))
            .chain(model.headers_secret.iter().map(|headers_secret| headers_secret.as_str()))
            .collect();
        for part in &self.plan.parts {
            let seen = secrets_of(self.plan, part);
            let admitted: BTreeSet<&str> = match (&part.role, self.sidecar_of(part)) {
                (Role::Bridge, _) => of_model.clone(),
                (_, Some(sidecar)) => {
                    let mounted =
                        |name: &str| sidecar.volume_mounts.iter().any(|volume_mount| volume_mount.name == name);
                    let volumes = sidecar.volumes.iter().filter(|volume| mounted(volume.name.as_str()));
                    (sidecar.secret_ref.iter().map(|secret_ref| secret_ref.as_str()))
                        .chain(sidecar.env.iter().filter_map(secret_of))
                        .chain(volumes.flat_map(|volume| volume.secrets()).filter_map(|secret| secret.name))
                        .collect()
                }
                _ => BTreeSet::new(),
            };
            assert_eq!(seen, admitted, "{}", part.name);
            assert!(part.role == Role::Bridge || seen.is_disjoint(&of_model), "{}", part.name);
        }
    }

    /// A part has the access to the node that its pack requested, and the policy allows all of it.
    fn node(&self) {
        let host = &self.admitted.policy.host_access;
        for part in &self.plan.parts {
            let sidecar = self.sidecar_of(part);
            let asked =
                sidecar.and_then(|sidecar| sidecar.host_access.clone()).filter(|host_access| host_access.enabled);
            assert_eq!(part.host_access, asked);
            let mut packs = self.admitted.packs.iter();
            let found = packs.find(|pack| Some(pack.name.as_str()) == part.role.pack());
            let is_given = found.is_some_and(|pack| {
                host.includes_pack(PackId {
                    namespace: &pack.namespace,
                    name: pack.name.as_str(),
                    is_system: pack.namespace == self.input.settings.system_namespace,
                })
            });
            if let Some(access) = &part.host_access {
                assert!(is_given);
                assert!(!access.host_network || host.host_network);
                assert!(!access.host_pid || host.host_pid);
                assert!(!access.privileged || host.privileged);
                assert!(!access.run_as_root || host.run_as_root);
            }
            for mount in &part.mounts {
                let path = match &self.plan.volume(&mount.volume).expect("a volume").source {
                    VolumeSource::Host { path } => {
                        let mut asked = asked.iter().flat_map(|mount| &mount.mounts);
                        assert!(asked.any(|asked| asked.host_path == *path
                            && asked.mount_path == mount.path
                            && asked.read_only == mount.read_only));
                        path.as_str()
                    }
                    VolumeSource::Declared { volume } => {
                        let Some(path) = volume.source.get("hostPath") else {
                            continue;
                        };
                        let declared = sidecar.expect("a pack's");
                        assert!(declared.volumes.contains(volume));
                        path.get("path").and_then(Value::as_str).expect("a path")
                    }
                    _ => continue,
                };
                let directory = HostDirectory { path: path.to_owned(), writable: !mount.read_only };
                assert!(host.allow_mounts && is_given && host.directories.covers(&directory), "{path}");
            }
        }
    }

    fn isolation(&self) {
        let policy = &self.admitted.policy.isolation;
        let planned = &self.plan.isolation;
        let floor: BTreeSet<_> = planned.floor.iter().copied().collect();
        assert!(floor.is_superset(&policy.guarantees));
        let filter = SeccompFilter::from_profile(&planned.seccomp).expect("a filter that is one");
        assert!(policy.seccomp.covers(&filter), "{filter}");
        if let Some(class) = &planned.runtime_class {
            assert!(policy.runtime_classes.covers(&class.as_str().to_owned()));
        }
    }

    fn approval(&self) {
        let (planned, policy) = (&self.plan.approval, &self.admitted.policy.approval);
        match &policy.approvers {
            Allowed::All => assert_eq!(planned.approvers, None),
            Allowed::Only(approvers) => {
                let planned: BTreeSet<_> = planned.approvers.iter().flatten().cloned().collect();
                assert_eq!(planned, *approvers);
            }
        }
        assert!(planned.required >= policy.required_votes);
        assert!(!planned.run_scope || policy.allow_run_scope);
        assert!(!planned.run_author || policy.allow_run_author);
        assert!(self.plan.deadlines.approval_seconds <= u64::from(policy.expiry_or_default()));
    }

    fn subagents(&self) {
        let (planned, policy) = (&self.plan.subagents, &self.admitted.policy);
        let bounds = subagent_bounds(policy, self.input.agents.spec());
        let parent = self.admitted.run.spec.parent.as_ref();
        let above = parent.map_or(0, |parent| u32::try_from(parent.spawn_depth).expect("a depth"));
        assert_eq!(planned.levels + above, bounds.depth);
        assert!(policy.max_depth.is_none_or(|most| planned.levels + above <= most));
        assert!(policy.max_concurrent.is_none_or(|most| planned.concurrent <= most));
        assert!(planned.children <= bounds.children);
    }

    /// Concurrent parts have no more resources than were admitted, and these are no more than the policy allows.
    fn amounts(&self) {
        let read = |quantity: &Quantity| ExactQuantity::parse(&quantity.text()).expect("an amount");
        let of = |amounts: &ResourcesPlan| {
            let cpu = (read(&amounts.cpu_request), read(&amounts.cpu_limit));
            let memory = (read(&amounts.memory_request), read(&amounts.memory_limit));
            assert!(cpu.0 <= cpu.1 && memory.0 <= memory.1);
            assert!(cpu.1 > ExactQuantity::ZERO && memory.1 > ExactQuantity::ZERO);
            (cpu.1, memory.1)
        };
        let (mut cpu, mut memory) = (ExactQuantity::ZERO, ExactQuantity::ZERO);
        for part in &self.plan.parts {
            let (own_cpu, own_memory) = of(&part.amounts);
            if !part.role.is_hook() {
                (cpu, memory) = (cpu.saturating_add(own_cpu), memory.saturating_add(own_memory));
            }
            assert!(own_cpu <= self.admitted.resources.cpu && own_memory <= self.admitted.resources.memory);
        }
        assert!(cpu <= self.admitted.resources.cpu && memory <= self.admitted.resources.memory);
        let most = &self.admitted.policy.isolation;
        assert!(most.max_cpu.is_none_or(|most| self.admitted.resources.cpu <= most));
        assert!(most.max_memory.is_none_or(|most| self.admitted.resources.memory <= most));
    }
}
