//! A run with all its objects, made from one piece of YAML.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::names::SkillPackName;
use sympozium_api::{
    Agent, AgentRun, AgentRunSpec, AgentSpec, Model, ModelSpec, SkillPack, SkillPackSpec, SympoziumInstance,
    SympoziumPolicy, SympoziumPolicySpec,
};

use crate::admit::{
    Agents, Candidates, Decision, Facts, Input, PackCandidates, PackObject, Permissions, RuntimeClasses, Services,
    Settings, Violation, admit,
};
use crate::rbac::Rule;

/// The run's namespace.
pub const NAMESPACE: &str = "team";

/// The base of every case: a run that is admitted without warnings.
const BASE: &str = "
run:
  agentRef: a
  task: Say hello.
  model: {provider: openai, model: gpt-4o-mini, authSecretRef: a-key}
agent:
  agents: {default: {model: gpt-4o-mini}}
";

/// The YAML of a harness.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct HarnessSpec {
    run: Value,
    agent: Option<AgentSpec>,
    instance: Option<AgentSpec>,
    own: BTreeMap<String, SkillPackSpec>,
    system: BTreeMap<String, SkillPackSpec>,
    policy: Option<SympoziumPolicySpec>,
    system_policy: Option<SympoziumPolicySpec>,
    floor: Option<SympoziumPolicySpec>,
    own_model: bool,
    system_model: bool,
    author: Option<PermissionsSpec>,
    agent_author: Option<PermissionsSpec>,
    pack_author: Option<PermissionsSpec>,
    runs_in_tree: Option<u32>,
    siblings: Option<u32>,
    parent_depth: Option<u32>,
    default_runtime_class: Option<String>,
    /// Whether the installation has every service.
    serves_all: bool,
    runtime_classes: RuntimeClasses,
    kernel_handlers: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PermissionsSpec {
    may_escalate: bool,
    namespace: Vec<Rule>,
    cluster: Vec<Rule>,
}

impl From<PermissionsSpec> for Permissions {
    fn from(rights: PermissionsSpec) -> Self {
        Self { may_escalate: rights.may_escalate, namespace: rights.namespace, cluster: rights.cluster }
    }
}

/// A run with all its objects.
#[derive(Debug, Clone)]
pub struct Harness {
    pub run: AgentRun,
    pub agent: Option<Agent>,
    pub instance: Option<SympoziumInstance>,
    pub own: Vec<SkillPack>,
    pub system: Vec<SkillPack>,
    pub policy: Option<SympoziumPolicy>,
    pub system_policy: Option<SympoziumPolicy>,
    pub floor: Option<SympoziumPolicySpec>,
    pub own_model: Option<Model>,
    pub system_model: Option<Model>,
    pub author: Option<Permissions>,
    pub agent_author: Option<Permissions>,
    pub pack_author: Option<Permissions>,
    pub facts: Facts,
    pub settings: Settings,
    pub runtime_classes: RuntimeClasses,
}

impl Harness {
    /// The base with changes, merged as by `kubectl patch --type=merge`.
    pub fn new(changes: &str) -> Self {
        Self::read(merged([yaml(changes)])).expect("a harness")
    }

    /// Reads a whole harness.
    pub fn read(written: Value) -> serde_json::Result<Self> {
        let written: HarnessSpec = serde_json::from_value(written)?;
        let policy_ref = (written.policy.is_some() || written.system_policy.is_some()).then(|| "p".into());
        let bound = |mut spec: AgentSpec| {
            spec.policy_ref = spec.policy_ref.or_else(|| policy_ref.clone());
            spec
        };
        let pack = |(name, spec): (String, SkillPackSpec)| SkillPack::new(&name, spec);
        let policy = |spec| SympoziumPolicy::new("p", spec);
        let model = |is: bool| is.then(|| Model::new("m", json_as::<ModelSpec>(json!({ "source": {} }))));
        let spec: AgentRunSpec = serde_json::from_value(written.run)?;
        let mut settings = Settings {
            default_runtime_class: written.default_runtime_class.map(Into::into),
            services: if written.serves_all {
                Services { channels: true, schedules: true, subagents: true, warm_pools: true, server_mode: true }
            } else {
                Services::default()
            },
            ..Settings::default()
        };
        if let Some(handlers) = written.kernel_handlers {
            settings.kernel_handlers = handlers.into_iter().collect();
        }
        Ok(Self {
            run: AgentRun::new("r", spec),
            agent: written.agent.map(bound).map(|spec| Agent::new("a", spec)),
            instance: written.instance.map(bound).map(|spec| SympoziumInstance::new("a", spec)),
            own: written.own.into_iter().map(pack).collect(),
            system: written.system.into_iter().map(pack).collect(),
            policy: written.policy.map(policy),
            system_policy: written.system_policy.map(policy),
            floor: written.floor,
            own_model: model(written.own_model),
            system_model: model(written.system_model),
            author: written.author.map(Into::into),
            agent_author: written.agent_author.map(Into::into),
            pack_author: written.pack_author.map(Into::into),
            facts: Facts {
                runs_in_tree: written.runs_in_tree,
                siblings: written.siblings,
                parent_depth: written.parent_depth,
            },
            settings,
            runtime_classes: written.runtime_classes,
        })
    }

    pub fn packs(&self) -> BTreeMap<SkillPackName, PackCandidates<'_>> {
        let mut packs: BTreeMap<SkillPackName, PackCandidates<'_>> = BTreeMap::new();
        let author = self.pack_author.as_ref();
        let name = |pack: &SkillPack| SkillPackName::new(pack.metadata.name.clone().unwrap_or_default());
        for pack in &self.own {
            packs.entry(name(pack)).or_default().own = Some(PackObject { pack, author });
        }
        for pack in &self.system {
            packs.entry(name(pack)).or_default().system = Some(PackObject { pack, author });
        }
        packs
    }

    pub fn input<'a>(&'a self, packs: &'a BTreeMap<SkillPackName, PackCandidates<'a>>) -> Input<'a> {
        Input {
            run: &self.run,
            namespace: NAMESPACE,
            agents: Agents {
                agent: self.agent.as_ref(),
                instance: self.instance.as_ref(),
                author: self.agent_author.as_ref(),
            },
            packs,
            policies: Candidates { own: self.policy.as_ref(), system: self.system_policy.as_ref() },
            floor: self.floor.as_ref(),
            models: Candidates { own: self.own_model.as_ref(), system: self.system_model.as_ref() },
            author: self.author.as_ref(),
            runtime_classes: &self.runtime_classes,
            facts: self.facts,
            settings: &self.settings,
        }
    }

    /// The violations, the warnings, and the run as it is when it is admitted.
    pub fn decide(&self) -> (Vec<Violation>, Vec<Violation>, Option<AgentRun>) {
        match admit(&self.input(&self.packs())) {
            Decision::Admitted(admitted) => (Vec::new(), admitted.warnings, Some(admitted.run)),
            Decision::Denied(denied) => (denied.violations, denied.warnings, None),
        }
    }
}

/// The base with changes, one after the other.
pub fn merged(changes: impl IntoIterator<Item = Value>) -> Value {
    let mut harness: Value = yaml(BASE);
    for changes in changes {
        merge(&mut harness, changes);
    }
    harness
}

/// Reads YAML as Kubernetes does, to which `y` is a text.
pub fn yaml<T: DeserializeOwned>(text: &str) -> T {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn json_as<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("it has the form")
}

/// RFC 7386.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        if !patch.is_null() {
            *target = patch;
        }
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(target) = target.as_object_mut() else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}
