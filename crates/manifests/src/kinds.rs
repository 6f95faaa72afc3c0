//! The kinds of `sympozium.ai/v1alpha1`, by name.

/// One of our kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Agent,
    SympoziumInstance,
    AgentRun,
    SkillPack,
    SympoziumPolicy,
    SympoziumSchedule,
    Model,
    ToolApproval,
    RunRecord,
}

impl Kind {
    /// In the order in which they are listed.
    pub const ALL: &[Self] = &[
        Self::Agent,
        Self::SympoziumInstance,
        Self::AgentRun,
        Self::SkillPack,
        Self::SympoziumPolicy,
        Self::SympoziumSchedule,
        Self::Model,
        Self::ToolApproval,
        Self::RunRecord,
    ];

    /// The `kind` of manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "Agent",
            Self::SympoziumInstance => "SympoziumInstance",
            Self::AgentRun => "AgentRun",
            Self::SkillPack => "SkillPack",
            Self::SympoziumPolicy => "SympoziumPolicy",
            Self::SympoziumSchedule => "SympoziumSchedule",
            Self::Model => "Model",
            Self::ToolApproval => "ToolApproval",
            Self::RunRecord => "RunRecord",
        }
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
        let definition = all.iter().find(|it| it.spec.names.kind == kind.name());
        let mut definition = serde_json::to_value(definition).unwrap();
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
    }

    #[test]
    fn the_kinds_are_those_that_are_defined() {
        let all = sympozium_api::crds::all();
        let defined: Vec<&str> = all.iter().map(|it| it.spec.names.kind.as_str()).collect();
        let named: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(named, defined);
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
        }
    }
}
