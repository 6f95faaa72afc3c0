//! Changes of manifests, each of which one rule of admission denies.
//!
//! A run has at most one of them: where two rules deny a run, it is still denied when one of the rules is gone.

mod isolation;
mod model;
mod node;
mod packs;
mod rights;
mod secrets;
mod variables;
mod volumes;

use serde_json::Value;

use super::objects::Objects;

/// A change of manifests that one rule of admission denies.
pub struct Violation {
    /// The rule.
    pub rule: &'static str,
    /// What is asked for against it.
    pub what: &'static str,
    apply: fn(&mut Objects<'_>) -> Option<()>,
}

impl Violation {
    const fn new(rule: &'static str, what: &'static str, apply: fn(&mut Objects<'_>) -> Option<()>) -> Self {
        Self { rule, what, apply }
    }

    /// Makes the change; nothing where the run has no place for it.
    pub fn apply(&self, mut objects: Vec<Value>) -> Option<Vec<Value>> {
        (self.apply)(&mut Objects(&mut objects))?;
        Some(objects)
    }
}

/// All of them.
pub fn violations() -> impl Iterator<Item = &'static Violation> {
    let families = [
        isolation::VIOLATIONS,
        model::VIOLATIONS,
        node::VIOLATIONS,
        packs::VIOLATIONS,
        rights::VIOLATIONS,
        secrets::VIOLATIONS,
        variables::VIOLATIONS,
        volumes::VIOLATIONS,
    ];
    families.into_iter().flatten()
}
