//! Roles for users, to be bound by the administrator of the cluster.

use serde_json::{Value, json};
use sympozium_api::labels::{GROUP, PART_OF};

use super::{Document, PRODUCT};

/// What every user who may view a namespace may see.
const KINDS: &[&str] = &[
    "agentruns",
    "agents",
    "models",
    "runrecords",
    "skillpacks",
    "sympoziuminstances",
    "sympoziumpolicies",
    "sympoziumschedules",
    "toolapprovals",
];
/// What an author writes. Not policies: those bound authors.
const AUTHORED: &[&str] = &["agents", "models", "skillpacks", "sympoziuminstances", "sympoziumschedules"];
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "patch", "update"];

/// Where rules of ours are added to the roles that every cluster has.
#[derive(Clone, Copy)]
enum Aggregated {
    /// To `view`, and by way of it to `edit` and `admin`.
    ToView,
    /// Nowhere: it has to be given by name.
    No,
}

pub fn documents() -> Vec<Document> {
    vec![
        role(
            "sympozium-viewer",
            "Read all Sympozium objects in a namespace: runs with their results, records, open requests for approval.\n\
             \n\
             Aggregated to `view`, and so to `edit` and `admin`. That is safe because it only reads, and because the contents of\n\
             records were printed by pods, whose logs `view` may read anyway.",
            Aggregated::ToView,
            &[rule(KINDS, READ)],
        ),
        role(
            "sympozium-runner",
            "Start, cancel and remove runs.\n\
             \n\
             Not aggregated. Creating a run is as powerful as creating a pod with the permissions of the run's packs. If the floor\n\
             permits grants in the whole cluster, these reach beyond the namespace, unlike `edit`. Bind this role deliberately.",
            Aggregated::No,
            &[rule(KINDS, READ), rule(&["agentruns"], &["create", "delete", "patch", "update"])],
        ),
        role(
            "sympozium-approver",
            "Answer requests for approval.\n\
             \n\
             Not aggregated, and never to `edit`: users who start runs usually have `edit`, and approvals by the author of a run are\n\
             worthless. The admission policies verify who voted.",
            Aggregated::No,
            &[rule(KINDS, READ), rule(&["toolapprovals/status"], &["get", "patch", "update"])],
        ),
        role(
            "sympozium-author",
            "Write agents, packs, models and schedules, but not policies, which bound authors.\n\
             \n\
             Not aggregated: an agent decides which packs its runs have, and so what runners of the namespace can do.",
            Aggregated::No,
            &[rule(KINDS, READ), rule(AUTHORED, WRITE)],
        ),
    ]
}

fn rule(resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [GROUP], "resources": resources, "verbs": verbs })
}

fn role(name: &str, comment: &'static str, aggregated: Aggregated, rules: &[Value]) -> Document {
    let mut labels = json!({ (PART_OF): PRODUCT });
    if let Aggregated::ToView = aggregated {
        for role in ["view", "edit", "admin"] {
            labels[format!("rbac.authorization.k8s.io/aggregate-to-{role}")] = json!("true");
        }
    }
    Document::new(
        comment,
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": name, "labels": labels }, "rules": rules,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_see_every_kind() {
        let mut plurals: Vec<_> =
            sympozium_api::crds::all().into_iter().map(|definition| definition.spec.names.plural).collect();
        plurals.sort_unstable();
        assert_eq!(KINDS, plurals);
    }
}
