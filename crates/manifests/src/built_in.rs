//! The shipped objects of a default installation: the packs, policies and floor of `config`, as of the build of this
//! program.
//!
//! They are embedded as text and parsed on use, because most commands need none of them.

use serde::de::DeserializeOwned;
use sympozium_api::labels::FLOOR_POLICY;
use sympozium_api::{SkillPack, SympoziumPolicy};

use crate::load::{Budget, load};

/// Name and manifest of each listed file of one directory of `config`.
macro_rules! manifests {
    ($directory:literal: $($name:literal),+ $(,)?) => {
        &[$((
            $name,
            include_str!(concat!("../../../config/", $directory, "/", $name, ".yaml")),
        )),+]
    };
}

pub const PACKS: &[(&str, &str)] = manifests!("skillpacks":
    "code-review",
    "incident-response",
    "k8s-ops",
    "k8s-ops-admin",
    "llmfit",
    "sre-observability",
    "web-endpoint",
);

/// The policies. The floor is one of them.
pub const POLICIES: &[(&str, &str)] = manifests!("policies":
    "default",
    "floor",
    "hardened",
    "permissive",
    "restrictive",
);

pub fn pack_text(name: &str) -> Option<&'static str> {
    find_text(PACKS, name)
}

pub fn policy_text(name: &str) -> Option<&'static str> {
    find_text(POLICIES, name)
}

/// A test checks that every embedded text parses.
pub fn pack(name: &str) -> Option<SkillPack> {
    parse(pack_text(name)?)
}

pub fn policy(name: &str) -> Option<SympoziumPolicy> {
    parse(policy_text(name)?)
}

/// The floor of an unmodified installation.
pub fn floor() -> Option<SympoziumPolicy> {
    policy(FLOOR_POLICY)
}

fn find_text(manifests: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let found = manifests.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

fn parse<K: DeserializeOwned>(text: &str) -> Option<K> {
    let document = load(text, &mut Budget::default()).documents.into_iter().next()?;
    serde_json::from_value(document.to_json()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_the_object_of_its_name() {
        for (name, _) in PACKS {
            let pack = pack(name).unwrap();
            assert_eq!(pack.metadata.name.as_deref(), Some(*name));
        }
        for (name, _) in POLICIES {
            let policy = policy(name).unwrap();
            assert_eq!(policy.metadata.name.as_deref(), Some(*name));
        }
        assert_eq!(floor(), policy("floor"));
        assert_eq!(pack("nothing"), None);
        assert_eq!(policy("k8s-ops"), None);
    }
}
