//! The kinds of `sympozium.ai/v1alpha1`: one row for each, with what reading and validating its manifests needs.

use crate::validate::references::Target;
use crate::validate::rules::{self, Rule};

/// What is known about a kind.
pub(crate) struct KindRow {
    /// The `kind` of manifests.
    name: &'static str,
    /// What its definition says about values, as JSON.
    pub schema: &'static str,
    /// The fields that name other objects; `[]` stands for each element of a list.
    pub references: &'static [(&'static str, Target)],
    /// The rules of its definition that admission does not repeat.
    pub rule: Option<Rule>,
    /// Whether its `spec.skills` may have the short form.
    pub has_skill_list: bool,
    /// Whether it decides about runs that other objects describe. With an error, what it allows is unknown.
    pub decides_about_others: bool,
}

/// Defines the kinds, in the order in which they are listed, and the row of each.
macro_rules! kinds {
    ($($kind:ident { schema: $schema:literal, $($field:ident: $value:expr),* $(,)? })+) => {
        /// One of our kinds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($kind),+
        }

        impl Kind {
            /// In the order in which they are listed.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            pub(crate) const fn row(self) -> &'static KindRow {
                match self {
                    $(Self::$kind => {
                        const ROW: &KindRow = &KindRow {
                            name: stringify!($kind),
                            schema: include_str!(concat!("../schemas/", $schema, ".json")),
                            $($field: $value,)*
                            ..KindRow::EMPTY
                        };
                        ROW
                    })+
                }
            }
        }
    };
}

kinds! {
    Agent { schema: "Agent", references: AGENT_REFERENCES, has_skill_list: true }
    // Two names for one thing: their schemas are the same.
    SympoziumInstance { schema: "Agent", references: AGENT_REFERENCES, has_skill_list: true }
    AgentRun {
        schema: "AgentRun",
        references: &[
            ("spec.agentRef", Target::Agent),
            ("spec.instanceRef", Target::Agent),
            ("spec.skills[].skillPackRef", Target::SkillPack),
            ("spec.skills[].configMapRef", Target::ConfigMap),
            ("spec.imagePullSecrets[].name", Target::Secret),
            ("spec.model.authSecretRef", Target::Secret),
            ("spec.model.providerHeadersSecretRef", Target::Secret),
            ("spec.model.modelRef", Target::Model),
            ("spec.parent.runName", Target::Run),
        ],
        has_skill_list: true,
    }
    SkillPack { schema: "SkillPack", references: &[("spec.sidecar.secretRef", Target::Secret)] }
    SympoziumPolicy { schema: "SympoziumPolicy", decides_about_others: true }
    SympoziumSchedule {
        schema: "SympoziumSchedule",
        references: &[("spec.agentRef", Target::Agent), ("spec.instanceRef", Target::Agent)],
        rule: Some(rules::check_schedule),
    }
    Model {
        schema: "Model",
        references: &[("spec.inference.huggingFaceTokenSecret", Target::Secret)],
        rule: Some(rules::check_model),
        decides_about_others: true,
    }
    // The gateway creates objects of the last two, not a user: their rules are not repeated.
    ToolApproval { schema: "ToolApproval", references: &[("spec.run.name", Target::Run)] }
    RunRecord { schema: "RunRecord", references: &[("spec.run.name", Target::Run)] }
}

const AGENT_REFERENCES: &[(&str, Target)] = &[
    ("spec.skills[].skillPackRef", Target::SkillPack),
    ("spec.skills[].configMapRef", Target::ConfigMap),
    ("spec.imagePullSecrets[].name", Target::Secret),
    ("spec.policyRef", Target::Policy),
    ("spec.authRefs[].secret", Target::Secret),
    ("spec.channels[].configRef.secret", Target::Secret),
    ("spec.mcpServers[].authSecret", Target::Secret),
    ("spec.observability.headersSecretRef", Target::Secret),
    ("spec.webEndpoint.authSecretRef", Target::Secret),
    ("spec.agents.default.providerHeadersSecretRef", Target::Secret),
];

impl KindRow {
    const EMPTY: Self =
        Self { name: "", schema: "", references: &[], rule: None, has_skill_list: false, decides_about_others: false };
}

impl Kind {
    /// The `kind` of manifests.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The schema of a kind, from its definition.
    pub fn schema(kind: Kind) -> serde_json::Value {
        let all = sympozium_api::crds::all();
        let definition = all.iter().find(|crd| crd.spec.names.kind == kind.name());
        let mut definition = serde_json::to_value(definition).unwrap();
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
    }

    #[test]
    fn the_kinds_are_those_that_are_defined() {
        let all = sympozium_api::crds::all();
        let defined: Vec<&str> = all.iter().map(|crd| crd.spec.names.kind.as_str()).collect();
        let named: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(named, defined);
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
        }
    }
}
