//! The policies that an installation has: the files of `config/policies`, as they were when this program was built.

use sympozium_api::SympoziumPolicy;

use crate::manifests::load::{Budget, load};

/// By name.
pub const POLICIES: &[(&str, &str)] = &[
    (
        "default",
        include_str!("../../../../../config/policies/default.yaml"),
    ),
    (
        "hardened",
        include_str!("../../../../../config/policies/hardened.yaml"),
    ),
    (
        "permissive",
        include_str!("../../../../../config/policies/permissive.yaml"),
    ),
    (
        "restrictive",
        include_str!("../../../../../config/policies/restrictive.yaml"),
    ),
];

/// A policy as its text says; a test reads them all.
pub fn read(text: &str) -> Option<SympoziumPolicy> {
    let document = load(text, &mut Budget::default())
        .documents
        .into_iter()
        .next()?;
    serde_json::from_value(document.to_json()).ok()
}
