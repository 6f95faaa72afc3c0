//! Rights at the Kubernetes API.

use serde_json::{Value, json};

use super::super::objects::{Objects, push, remove, right};
use super::super::{NAMESPACE, SYSTEM_NAMESPACE};
use super::Violation;

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("rbac-escalation", "Secrets", |objects| {
        except(objects, json!([]), json!([]));
        grant(objects, right("", "secrets", "get"))
    }),
    Violation::new("rbac-escalation", "Secrets, excepted by the floor alone", |objects| {
        let secrets = right("", "secrets", "get");
        except(objects, json!([]), json!([secrets]));
        grant(objects, secrets)
    }),
    Violation::new("rbac-escalation", "commands in pods, excepted by the policy alone", |objects| {
        let exec = right("", "pods/exec", "create");
        except(objects, json!([exec]), json!([]));
        grant(objects, exec)
    }),
    Violation::new("rbac-escalation", "everything", |objects| {
        except(objects, json!([]), json!([]));
        grant(objects, right("*", "*", "*"))
    }),
    Violation::new("rbac-unlisted", "Services", |objects| {
        except(objects, json!([]), json!([]));
        grant(objects, right("", "services", "create"))
    }),
    Violation::new("rbac-unlisted", "RuntimeClasses, excepted by the policy alone", |objects| {
        let classes = right("node.k8s.io", "runtimeclasses", "get");
        except(objects, json!([classes]), json!([]));
        grant(objects, classes)
    }),
    Violation::new("rbac-unlisted", "Secrets, excepted by the policy where the floor is silent", |objects| {
        let secrets = right("", "secrets", "get");
        objects.clear_rights();
        objects.policy()["rbacPolicy"] = json!({ "exceptions": [secrets] });
        remove(objects.floor(), &["rbacPolicy"]);
        grant(objects, secrets)
    }),
    Violation::new("rbac-unlisted", "Services for a hook", |objects| {
        except(objects, json!([]), json!([]));
        push(objects.hooks()?, "rbac", right("", "services", "create"));
        Some(())
    }),
    Violation::new("rbac-unlisted", "scaling in the whole cluster", |objects| {
        except(objects, json!([]), json!([]));
        let scale = right("apps", "deployments/scale", "patch");
        push(objects.sidecar()?, "clusterRBAC", scale);
        Some(())
    }),
    Violation::new("rbac-too-large", "a rule of too many rights", |objects| grant(objects, wide(100, 50))),
    Violation::new("grant-too-large", "rules of too many rights together", |objects| {
        (0..5).try_for_each(|_| grant(objects, wide(100, 40)))
    }),
    Violation::new("rbac-incomplete", "a rule without verbs", |objects| {
        grant(objects, json!({ "apiGroups": [""], "resources": ["pods"], "verbs": [] }))
    }),
    Violation::new("rbac-ceiling", "more than the policy's ceiling", |objects| {
        objects.clear_rights();
        objects.policy()["rbacPolicy"]["ceiling"] = json!([right("", "pods", "get")]);
        grant(objects, right("", "services", "get"))
    }),
    Violation::new("rbac-ceiling", "more than the floor's ceiling", |objects| {
        objects.clear_rights();
        objects.floor()["rbacPolicy"]["ceiling"] = json!([right("", "pods", "get")]);
        grant(objects, right("", "services", "get"))
    }),
    Violation::new("rbac-author", "a right of a pack whose author is not trusted", |objects| {
        objects.clear_rights();
        objects.floor()["rbacPolicy"]["clusterRBACNamespaces"] = json!([]);
        push(objects.sidecar_in(NAMESPACE)?, "rbac", right("", "pods", "get"));
        Some(())
    }),
    Violation::new("rbac-author", "a right of hooks whose author is not trusted", |objects| {
        objects.clear_rights();
        objects.floor()["rbacPolicy"]["clusterRBACNamespaces"] = json!([]);
        push(objects.hooks()?, "rbac", right("", "pods", "get"));
        Some(())
    }),
    Violation::new("cluster-rbac-consent", "a right in the whole cluster", |objects| {
        objects.clear_rights();
        objects.floor()["rbacPolicy"]["clusterRBACNamespaces"] = json!([]);
        let sidecar = objects.sidecar_in(SYSTEM_NAMESPACE)?;
        push(sidecar, "clusterRBAC", right("", "nodes", "get"));
        Some(())
    }),
    Violation::new("hook-resource", "what the policy denies to hooks", |objects| {
        objects.policy()["lifecyclePolicy"]["deniedResources"] = json!(["pods"]);
        push(objects.hooks()?, "rbac", right("", "pods/log", "get"));
        Some(())
    }),
    Violation::new("hook-resource", "what the floor denies to hooks", |objects| {
        objects.floor()["lifecyclePolicy"]["deniedResources"] = json!(["pods"]);
        push(objects.hooks()?, "rbac", right("", "pods", "get"));
        Some(())
    }),
];

fn grant(objects: &mut Objects<'_>, rule: Value) -> Option<()> {
    push(objects.sidecar()?, "rbac", rule);
    Some(())
}

fn except(objects: &mut Objects<'_>, by_policy: Value, by_floor: Value) {
    objects.policy()["rbacPolicy"]["exceptions"] = by_policy;
    objects.floor()["rbacPolicy"]["exceptions"] = by_floor;
}

/// A rule with Secrets among many other resources.
fn wide(resources: usize, verbs: usize) -> Value {
    let words = |first: &str, count: usize| -> Vec<String> {
        let more = (1..count).map(|it| format!("word{it}"));
        [first.to_owned()].into_iter().chain(more).collect()
    };
    json!({ "apiGroups": [""], "resources": words("secrets", resources), "verbs": words("get", verbs) })
}
