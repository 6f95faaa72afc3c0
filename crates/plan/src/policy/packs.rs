//! Packs as policies name them.
//!
//! A pack's name alone says nothing about its author: any user who may write packs in a namespace can use any name. So
//! a rule that grants something means the pack of the system namespace, unless it is written `namespace/name`.

use std::fmt;

use sympozium_api::names::PackRef;

use super::allowed::Allowed;

/// A pack, with the namespace that it was found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackId<'a> {
    /// The namespace of the pack.
    pub namespace: &'a str,
    /// The name of the pack.
    pub name: &'a str,
    /// Whether it is the system namespace.
    pub is_system: bool,
}

impl fmt::Display for PackId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The packs that a policy lists, each as `namespace/name`; all when there is no list.
pub fn allowed_packs(packs: Option<&[PackRef]>, system_namespace: &str) -> Allowed<String> {
    let qualified = |pack: &PackRef| match pack.as_str() {
        name if name.contains('/') => name.to_owned(),
        name => format!("{system_namespace}/{name}"),
    };
    Allowed::from_list(packs.map(|packs| packs.iter().map(qualified)))
}
