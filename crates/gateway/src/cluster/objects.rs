//! What all objects of the gateway have in common: names, labels, and the run as owner.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sympozium_api::digest;
use sympozium_api::installation::GATEWAY;
use sympozium_api::labels;
use sympozium_api::run_plan::RunIdentity;
use sympozium_api::tool_approval::RunReference;
use sympozium_plan::render::names::{label_value, object_name};

/// Maximum number of characters of a question's ID in an object name.
const MAX_ID_CHARS: usize = 64;
/// The domain of hashes that replace an ID.
const APPROVAL_NAME_DOMAIN: &str = "sympozium.ai/approval-name/v1";
/// Digits of such a hash.
const HASH_DIGITS: usize = 32;

/// Name, labels and owner. Without the label of objects that the controller deletes: these live as long as their run.
pub(super) fn object_meta(run: &RunIdentity, name: String) -> ObjectMeta {
    let labels = [
        (labels::RUN, label_value(run.name.as_str())),
        (labels::RUN_UID, label_value(run.uid.as_str())),
        (labels::AGENT, label_value(run.agent.as_str())),
        (labels::PART_OF, labels::MANAGER.to_owned()),
        (labels::APP_MANAGED_BY, GATEWAY.to_owned()),
    ];
    let labels: BTreeMap<String, String> = labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    ObjectMeta {
        name: Some(name),
        namespace: Some(run.namespace.as_str().to_owned()),
        labels: Some(labels),
        owner_references: Some(vec![OwnerReference {
            api_version: labels::API_VERSION.to_owned(),
            kind: "AgentRun".to_owned(),
            name: run.name.as_str().to_owned(),
            uid: run.uid.as_str().to_owned(),
            controller: Some(true),
            // The deletion of the run need not wait for them, and setting it would require a permission on the run.
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}

/// Refers to the run by UID, so not to another one of the same name.
pub(super) fn run_reference(run: &RunIdentity) -> RunReference {
    RunReference { name: run.name.clone(), uid: run.uid.clone() }
}

/// The name of the `ToolApproval` of a question: from the bridge's ID if that is valid in a name, else from its hash.
pub(super) fn approval_name(run: &RunIdentity, approval: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if !approval.is_empty() && approval.len() <= MAX_ID_CHARS && approval.bytes().all(plain) {
        return object_name(run, approval);
    }
    let hash = digest::digest_canonical(APPROVAL_NAME_DOMAIN, approval.as_bytes());
    let digits: String = hash.as_str().chars().skip("sha256:".len()).take(HASH_DIGITS).collect();
    // The dash does not occur in IDs that are used directly.
    object_name(run, &format!("q-{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::RunFacts;

    #[test]
    fn a_question_has_one_name_and_no_two_have_the_same() {
        let facts = RunFacts::example(|_| {});
        let name = |approval: &str| approval_name(&facts.run, approval);
        let stem = name("0a1b");
        assert!(stem.ends_with("-0a1b"), "{stem}");
        let odd = ["A", "a-b", "a b", "../x", &"x".repeat(65)].map(name);
        for (place, one) in odd.iter().enumerate() {
            assert!(one.len() < 253 && !odd[..place].contains(one), "{one}");
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(one.bytes().all(plain), "{one}");
        }
    }

    #[test]
    fn the_run_owns_what_is_made_for_it() {
        let facts = RunFacts::example(|_| {});
        let made = object_meta(&facts.run, "name".to_owned());
        let owners = made.owner_references.unwrap_or_default();
        let owners: Vec<_> = owners.iter().map(|owner| (owner.kind.as_str(), owner.uid.as_str())).collect();
        assert_eq!(owners, [("AgentRun", facts.uid())]);
        assert_eq!(made.namespace.as_deref(), Some(facts.run.namespace.as_str()));
        let labels = made.labels.unwrap_or_default();
        assert_eq!(labels.get(labels::RUN_UID).map(String::as_str), Some(facts.uid()));
        assert_eq!(labels.get(labels::MANAGED_BY), None);
    }
}
