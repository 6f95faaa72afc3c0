//! Decides whether an object has the shape of those that we create for runs.
//!
//! Any client that may change an object can set labels and annotations on it; its name, its owner and the target of a
//! binding are set by its author. All of them have to be consistent.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject};
use kube::{Api, Client, Resource, ResourceExt as _};
use sympozium_api::labels::{self, annotation};
use sympozium_plan::render::names::is_run_object_name;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    Ours,
    /// The reason why it is not ours.
    Foreign(&'static str),
}

/// A kind of object that is created for runs.
pub trait RunObject: Resource + Sized {
    const NAME: &'static str;

    /// `None` without the namespace that the kind needs.
    fn api(&self, client: Client) -> Option<Api<Self>>;

    fn is_namespaced() -> bool;

    /// A check that only this kind needs: what is wrong with the object, if anything.
    fn extra_mismatch(&self) -> Option<&'static str> {
        None
    }
}

/// The UID of the run in an object's label.
pub fn run_uid(object: &impl Resource) -> Option<&str> {
    let labels = object.meta().labels.as_ref()?;
    labels.get(labels::RUN_UID).map(String::as_str)
}

/// A UID without its dashes, if it has the form that API servers generate.
pub fn uid_digits(uid: &str) -> Option<String> {
    let groups: Vec<&str> = uid.split('-').collect();
    let lengths = groups.iter().map(|group| group.len());
    let plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_uid = lengths.eq([8, 4, 4, 4, 12]) && groups.iter().all(|group| group.bytes().all(plain));
    is_uid.then(|| groups.concat())
}

pub fn check<K: RunObject>(object: &K) -> Ownership {
    find_mismatch(object).map_or(Ownership::Ours, Ownership::Foreign)
}

fn find_mismatch<K: RunObject>(object: &K) -> Option<&'static str> {
    let labels = object.meta().labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    if label(labels::MANAGED_BY) != Some(labels::MANAGER) {
        return Some("it does not have the label of this controller");
    }
    let Some(uid) = run_uid(object) else {
        return Some("it has no label with the UID of a run");
    };
    let Some(digits) = uid_digits(uid) else {
        return Some("its label for the run is not a UID");
    };
    let name = object.name_any();
    if !is_run_object_name(&name) || name_stem(&name, &digits).is_none() {
        return Some("its name is not that of an object of the run");
    }
    let digest = object.annotations().get(annotation::PLAN_DIGEST);
    if !digest.is_some_and(|digest| is_digest(digest)) {
        return Some("it has no annotation with the digest of a plan");
    }
    let owners = object.owner_references();
    if K::is_namespaced() {
        let [owner] = owners else {
            return Some("it is not owned by exactly one run");
        };
        let is_run = owner.api_version == labels::API_VERSION
            && owner.kind == "AgentRun"
            && owner.uid == uid
            && owner.controller == Some(true);
        if !is_run {
            return Some("it is not owned by that run");
        }
    } else if !owners.is_empty() {
        return Some("it has an owner");
    }
    object.extra_mismatch()
}

/// The common prefix of the names of all objects of a run, if `name` has it.
fn name_stem<'a>(name: &'a str, digits: &str) -> Option<&'a str> {
    let at = name.find(digits)?;
    let (stem, rest) = name.split_at(at + digits.len());
    let dashed = stem[..at].len() > 1 && stem[..at].ends_with('-');
    (dashed && (rest.is_empty() || rest.starts_with('-'))).then_some(stem)
}

fn is_digest(text: &str) -> bool {
    let plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = text.strip_prefix("sha256:");
    digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(plain))
}

/// Our bindings bind a role to the one account of the same name.
fn binding_mismatch(
    object: &impl Resource,
    kind: &str,
    role: &RoleRef,
    subjects: Option<&Vec<Subject>>,
) -> Option<&'static str> {
    let name = object.name_any();
    if role.kind != kind || role.name != name || role.api_group != "rbac.authorization.k8s.io" {
        return Some("it does not bind the role of its name");
    }
    let Some([subject]) = subjects.map(Vec::as_slice) else {
        return Some("it does not bind exactly one ServiceAccount");
    };
    let at_home = object.namespace().is_none_or(|home| subject.namespace == Some(home));
    let is_account = subject.kind == "ServiceAccount"
        && subject.name == name
        && subject.namespace.is_some()
        && subject.api_group.as_deref().unwrap_or_default().is_empty();
    (!is_account || !at_home).then_some("it does not bind the ServiceAccount of its name")
}

macro_rules! namespaced {
    ($($kind:ident),*) => {$(
        impl RunObject for $kind {
            const NAME: &'static str = stringify!($kind);

            fn api(&self, client: Client) -> Option<Api<Self>> {
                Some(Api::namespaced(client, self.metadata.namespace.as_deref()?))
            }

            fn is_namespaced() -> bool {
                true
            }
        }
    )*};
}

namespaced!(Job, ServiceAccount, NetworkPolicy, Role);

impl RunObject for RoleBinding {
    const NAME: &'static str = "RoleBinding";

    fn api(&self, client: Client) -> Option<Api<Self>> {
        Some(Api::namespaced(client, self.metadata.namespace.as_deref()?))
    }

    fn is_namespaced() -> bool {
        true
    }

    fn extra_mismatch(&self) -> Option<&'static str> {
        binding_mismatch(self, "Role", &self.role_ref, self.subjects.as_ref())
    }
}

impl RunObject for ClusterRole {
    const NAME: &'static str = "ClusterRole";

    fn api(&self, client: Client) -> Option<Api<Self>> {
        Some(Api::all(client))
    }

    fn is_namespaced() -> bool {
        false
    }

    fn extra_mismatch(&self) -> Option<&'static str> {
        let aggregated = self.aggregation_rule.is_some();
        aggregated.then_some("it aggregates other roles")
    }
}

impl RunObject for ClusterRoleBinding {
    const NAME: &'static str = "ClusterRoleBinding";

    fn api(&self, client: Client) -> Option<Api<Self>> {
        Some(Api::all(client))
    }

    fn is_namespaced() -> bool {
        false
    }

    fn extra_mismatch(&self) -> Option<&'static str> {
        binding_mismatch(self, "ClusterRole", &self.role_ref, self.subjects.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
    const DIGITS: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";

    fn metadata() -> Value {
        json!({
            "name": format!("alice-{DIGITS}-s1"),
            "labels": {labels::MANAGED_BY: labels::MANAGER, labels::RUN_UID: UID},
            "annotations": {annotation::PLAN_DIGEST: format!("sha256:{}", "0".repeat(64))},
        })
    }

    fn role() -> Value {
        let mut metadata = metadata();
        metadata["namespace"] = json!("team");
        metadata["ownerReferences"] = json!([{
            "apiVersion": labels::API_VERSION, "kind": "AgentRun", "name": "alice", "uid": UID, "controller": true,
        }]);
        json!({"metadata": metadata})
    }

    fn cluster_binding() -> Value {
        let name = format!("alice-{DIGITS}-s1");
        json!({
            "metadata": metadata(),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "team"}],
        })
    }

    fn with(mut value: Value, pointer: &str, change: Value) -> Value {
        *value.pointer_mut(pointer).unwrap() = change;
        value
    }

    fn judged<K: RunObject + serde::de::DeserializeOwned>(value: Value) -> Ownership {
        check(&serde_json::from_value::<K>(value).unwrap())
    }

    #[test]
    fn what_we_make_has_our_form() {
        assert_eq!(judged::<Role>(role()), Ownership::Ours);
        assert_eq!(judged::<ServiceAccount>(role()), Ownership::Ours);
        assert_eq!(judged::<ClusterRoleBinding>(cluster_binding()), Ownership::Ours);
        assert_eq!(judged::<ClusterRole>(json!({"metadata": metadata()})), Ownership::Ours);
        let workload = with(role(), "/metadata/name", json!(format!("alice-{DIGITS}")));
        assert_eq!(judged::<Job>(workload), Ownership::Ours);
    }

    #[test]
    fn whatever_does_not_fit_is_left() {
        let name = |name: &str| with(role(), "/metadata/name", json!(name));
        let other = DIGITS.replace('0', "1");
        for (case, object) in [
            ("a name of its own", name("cluster-admin")),
            ("the digits of another run", name(&format!("alice-{other}-s1"))),
            ("no word before them", name(&format!("-{DIGITS}-s1"))),
            ("digits that go on", name(&format!("alice-{DIGITS}0"))),
            ("two words", name(&format!("alice-{DIGITS}-s1-x"))),
            ("no digest", with(role(), "/metadata/annotations", json!({}))),
            ("half a digest", with(role(), "/metadata/annotations", json!({annotation::PLAN_DIGEST: "sha256:00"}))),
            ("no owner", with(role(), "/metadata/ownerReferences", json!([]))),
            ("another run's", with(role(), "/metadata/ownerReferences/0/uid", json!("x"))),
            ("a Deployment's", with(role(), "/metadata/ownerReferences/0/kind", json!("Deployment"))),
            ("no controller", with(role(), "/metadata/ownerReferences/0/controller", json!(false))),
            ("no labels", with(role(), "/metadata/labels", json!({}))),
            (
                "a UID that is none",
                with(role(), "/metadata/labels", json!({labels::MANAGED_BY: labels::MANAGER, labels::RUN_UID: "all"})),
            ),
        ] {
            assert!(matches!(judged::<Role>(object), Ownership::Foreign(_)), "{case}");
        }
    }

    #[test]
    fn a_binding_that_leads_elsewhere_is_left() {
        for (case, object) in [
            ("another role", with(cluster_binding(), "/roleRef/name", json!("cluster-admin"))),
            ("another kind", with(cluster_binding(), "/roleRef/kind", json!("Role"))),
            ("a person", with(cluster_binding(), "/subjects/0/kind", json!("User"))),
            ("another account", with(cluster_binding(), "/subjects/0/name", json!("default"))),
            ("no subject", with(cluster_binding(), "/subjects", json!([]))),
        ] {
            assert!(matches!(judged::<ClusterRoleBinding>(object), Ownership::Foreign(_)), "{case}");
        }
        let mut owned = json!({"metadata": metadata()});
        owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]);
        assert_eq!(judged::<ClusterRole>(owned), Ownership::Foreign("it has an owner"));
        let aggregated = json!({"metadata": metadata(), "aggregationRule": {}});
        assert!(matches!(judged::<ClusterRole>(aggregated), Ownership::Foreign(_)));
    }

    #[test]
    fn a_binding_in_a_namespace_is_for_an_account_there() {
        let name = format!("alice-{DIGITS}-s1");
        let mut binding = role();
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        binding["subjects"] = json!([{"kind": "ServiceAccount", "name": name, "namespace": "team"}]);
        assert_eq!(judged::<RoleBinding>(binding.clone()), Ownership::Ours);
        let elsewhere = with(binding, "/subjects/0/namespace", json!("other"));
        assert!(matches!(judged::<RoleBinding>(elsewhere), Ownership::Foreign(_)));
    }

    #[test]
    fn uids_are_of_one_form() {
        assert_eq!(uid_digits(UID), Some(DIGITS.to_owned()));
        for wrong in ["", "all", DIGITS, "0A1B2C3D-4e5f-6071-8293-a4b5c6d7e8f9", "a,b", &UID[1..]] {
            assert_eq!(uid_digits(wrong), None, "{wrong}");
        }
    }
}
