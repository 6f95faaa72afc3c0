//! Denies objects of files that pretend to be in the system namespace.
//!
//! A policy that grants something to a pack by its name alone means the pack of the system namespace: in a cluster only
//! an administrator can write there. On one machine any file can name that namespace, so it counts only for objects
//! that are shipped.

use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::text::quote;
use sympozium_api::{SkillPack, SympoziumPolicy};
use sympozium_manifests::built_in;
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::problem::Problem;
use sympozium_manifests::tree::Mark;
use sympozium_manifests::validate::{Object, ObjectKind, ObjectName, Session};

/// Whether objects of the files claim the system namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceClaims {
    None,
    /// The run is denied: the session has a finding for each claim, up to the limit of findings.
    Denied,
}

/// Denies objects of the files that claim the system namespace and are not shipped, and a run in that namespace, whose
/// own objects would all be the system's. The file with the floor belongs to the machine, not to the run, and is
/// exempt.
///
/// To be called after the flags have selected policies and skills: what was removed then claims nothing.
pub fn check(session: &mut Session<'_>, run: &ObjectName) -> NamespaceClaims {
    let floor = session.floor_file();
    let objects = session.objects().iter().enumerate();
    let claims: Vec<(usize, Mark, String)> = objects
        .filter(|(_, object)| object.name.namespace == SYSTEM_NAMESPACE)
        .filter(|(_, object)| Some(object.file) != floor)
        .filter(|(_, object)| object.name == *run || is_impostor(object))
        .map(|(index, object)| {
            let namespace = object.node.get_path(&["metadata", "namespace"]);
            let at = namespace.map_or(object.node.at, |it| it.at);
            (index, at, message(object, run))
        })
        .collect();
    for (index, at, message) in &claims {
        let problem = Problem::error("shipped-name", *at, message.clone())
            .with_hint(format!("leave `namespace` out, and `-n {SYSTEM_NAMESPACE}`"));
        session.deny(*index, "metadata.namespace", problem);
    }
    match claims.is_empty() {
        true => NamespaceClaims::None,
        false => NamespaceClaims::Denied,
    }
}

fn message(object: &Object, run: &ObjectName) -> String {
    let (kind, name) = (&object.name.kind, quote(&object.name.name));
    match object.name == *run {
        true => format!("on one machine no run is in namespace {SYSTEM_NAMESPACE}"),
        false => format!(
            "{kind} {name} is not shipped: on one machine namespace {SYSTEM_NAMESPACE} has what is shipped and nothing else"
        ),
    }
}

/// Whether it is of a kind that runs of every namespace take from the system namespace, and differs from what is
/// shipped.
fn is_impostor(object: &Object) -> bool {
    let name = object.name.name.as_str();
    let json = || object.node.to_json();
    match object.kind {
        ObjectKind::Sympozium(Kind::SkillPack) => {
            let read = serde_json::from_value::<SkillPack>(json()).ok();
            let shipped = built_in::pack(name).map(|it| it.spec);
            shipped.is_none() || read.map(|it| it.spec) != shipped
        }
        ObjectKind::Sympozium(Kind::SympoziumPolicy) => {
            let read = serde_json::from_value::<SympoziumPolicy>(json()).ok();
            let shipped = built_in::policy(name).map(|it| it.spec);
            shipped.is_none() || read.map(|it| it.spec) != shipped
        }
        // No Model is shipped.
        ObjectKind::Sympozium(Kind::Model) => true,
        ObjectKind::Sympozium(_) | ObjectKind::Other(_) => false,
    }
}
