//! Locates the field of a violation: in the run, or in the agent that the run inherits it from.

use std::collections::HashMap;

use sympozium_plan::admit::Violation;

use super::super::object::Object;
use crate::kinds::Kind;
use crate::tree::Mark;

/// The fields that a run inherits from its agent: the run's field, and the agent's. Longer ones first.
const INHERITED_FIELDS: &[(&str, &str)] = &[
    ("spec.model.authSecretRef", "spec.authRefs"),
    ("spec.model.baseURL", "spec.agents.default.baseURL"),
    ("spec.model.nodeSelector", "spec.agents.default.nodeSelector"),
    ("spec.model.providerHeaders", "spec.agents.default.providerHeaders"),
    ("spec.model.providerHeadersSecretRef", "spec.agents.default.providerHeadersSecretRef"),
    ("spec.model.thinking", "spec.agents.default.thinking"),
    ("spec.model.model", "spec.agents.default.model"),
    ("spec.model", "spec.agents.default.model"),
    ("spec.agentSandbox", "spec.agents.default.agentSandbox"),
    ("spec.env", "spec.agents.default.env"),
    ("spec.lifecycle", "spec.agents.default.lifecycle"),
    ("spec.sandbox", "spec.agents.default.sandbox"),
    ("spec.timeout", "spec.agents.default.runTimeout"),
    ("spec.imagePullSecrets", "spec.imagePullSecrets"),
    ("spec.skills", "spec.skills"),
    ("spec.volumeMounts", "spec.volumeMounts"),
    ("spec.volumes", "spec.volumes"),
];

/// The fields of a run that name its agent.
const AGENT_FIELDS: &[&str] = &["spec.agentRef", "spec.instanceRef"];

/// The objects that a decision was about.
pub struct FieldLocator {
    /// The object that was checked, or the agent that a run was made up for.
    main: usize,
    /// The run's agent, if it is among the files.
    agent: Option<usize>,
    /// Whether the files have no such run.
    is_assumed: bool,
}

pub type ObjectKey<'a> = (&'a str, &'a str, &'a str);

/// The index of each object; of two objects with one name, the first.
pub fn index_by_name(objects: &[Object]) -> HashMap<ObjectKey<'_>, usize> {
    let mut by_name = HashMap::new();
    for (index, object) in objects.iter().enumerate() {
        let name = &object.name;
        let key = (name.kind.as_str(), name.namespace.as_str(), name.name.as_str());
        by_name.entry(key).or_insert(index);
    }
    by_name
}

/// An object, one of its fields, and the position of that field.
pub struct FieldLocation {
    pub object: usize,
    pub field: String,
    pub at: Mark,
}

impl FieldLocator {
    pub fn new(main: usize) -> Self {
        Self { main, agent: None, is_assumed: false }
    }

    pub fn with_agent(mut self, agent: Option<usize>) -> Self {
        self.agent = agent;
        self
    }

    /// For a run that was made up for an agent.
    pub fn for_agent(agent: usize) -> Self {
        Self { main: agent, agent: Some(agent), is_assumed: true }
    }

    pub fn is_assumed(&self) -> bool {
        self.is_assumed
    }

    /// Whether a violation is certain. For a run without its agent only violations of its own fields are, and that it
    /// names no agent: other fields may be set by the agent.
    pub fn is_certain(&self, reason: &Violation, objects: &[Object]) -> bool {
        let is_run_alone = self.agent.is_none() && objects[self.main].is_kind(Kind::AgentRun);
        let is_about_agent = AGENT_FIELDS.contains(&reason.field.as_str());
        !is_run_alone || is_about_agent || objects[self.main].node.find(&reason.field).is_some()
    }

    pub fn locate(
        &self,
        reason: &Violation,
        objects: &[Object],
        by_name: &HashMap<ObjectKey<'_>, usize>,
    ) -> FieldLocation {
        if reason.subject.kind == Kind::AgentRun.name() {
            return self.locate_in_run(&reason.field, objects);
        }
        let subject = &reason.subject;
        let own = objects[self.main].name.namespace.as_str();
        let namespace = subject.namespace.as_deref().unwrap_or(own);
        match by_name.get(&(subject.kind, namespace, &subject.name)) {
            Some(object) => field_location(*object, &reason.field, objects),
            // It is about a shipped object: the object that names it is the one to change.
            None => FieldLocation { object: self.main, field: String::new(), at: objects[self.main].node.at },
        }
    }

    fn locate_in_run(&self, field: &str, objects: &[Object]) -> FieldLocation {
        let run = &objects[self.main];
        if !self.is_assumed && run.node.find(field).is_some() {
            return field_location(self.main, field, objects);
        }
        if let (Some(agent), Some(taken)) = (self.agent, inherited_field(field))
            && (self.is_assumed || objects[agent].node.find(&taken).is_some())
        {
            return field_location(agent, &taken, objects);
        }
        field_location(self.main, field, objects)
    }
}

fn field_location(object: usize, field: &str, objects: &[Object]) -> FieldLocation {
    FieldLocation { object, field: field.to_owned(), at: objects[object].node.locate(field) }
}

/// The agent's field that a field of the run is inherited from.
fn inherited_field(field: &str) -> Option<String> {
    INHERITED_FIELDS.iter().find_map(|(of_run, of_agent)| {
        let rest = field.strip_prefix(of_run)?;
        let ends = rest.is_empty() || rest.starts_with(['.', '[']);
        ends.then(|| format!("{of_agent}{rest}"))
    })
}
