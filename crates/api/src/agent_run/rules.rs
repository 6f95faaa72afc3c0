//! The rules of a run's spec, in CEL.

/// Each rule, and what a user is told.
pub const SPEC: &[(&str, &str)] = &[
    (
        "has(self.agentRef) || has(self.instanceRef)",
        "a run needs an agent: set `agentRef` (or `instanceRef`)",
    ),
    (
        "!has(self.agentRef) || !has(self.instanceRef) || self.agentRef == self.instanceRef",
        "`agentRef` and `instanceRef` name the same agent: set one, or both to the same name",
    ),
];
