//! A run in a cluster as the API server tells it: whether it is over, and what is left of it.

use anyhow::Result;
use serde_json::Value;

use super::Kubectl;

/// The phases that a run does not leave.
const OVER: [&str; 4] = ["Succeeded", "Failed", "Skipped", "Cancelled"];
/// Every kind of which something is made for a run.
const KINDS: &str = "pods,jobs,configmaps,secrets,serviceaccounts,persistentvolumeclaims,networkpolicies,\
    roles,rolebindings,clusterroles,clusterrolebindings,runrecords,toolapprovals";

/// Whether a run is over and, where anything was made for it, all of that was taken back.
pub fn is_over(run: &Value) -> bool {
    let status = &run["status"];
    let phase = status["phase"].as_str().unwrap_or_default();
    let began = !status["planDigest"].is_null();
    OVER.contains(&phase) && (!began || condition(run, "Revoked")["status"] == "True")
}

/// A condition of a run; null where it has none of this type.
pub fn condition<'r>(run: &'r Value, kind: &str) -> &'r Value {
    let conditions = run["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.find(|it| it["type"] == kind).unwrap_or(&Value::Null)
}

/// Everything that bears the UID of a run, in all namespaces, cluster-wide kinds included; `more` are kinds besides the
/// usual ones.
///
/// # Errors
///
/// When the API server does not list it.
pub fn objects_of(kubectl: &Kubectl, run: &Value, more: &[&str]) -> Result<Vec<Value>> {
    let uid = run["metadata"]["uid"].as_str().unwrap_or_default();
    anyhow::ensure!(!uid.is_empty(), "a run without a UID: {run}");
    let selector = format!("--selector=sympozium.ai/run-uid={uid}");
    let kinds = [&[KINDS], more].concat().join(",");
    let mut found = kubectl.json(&["get", &kinds, "-A", &selector])?;
    Ok(serde_json::from_value(found["items"].take())?)
}

/// The same by the API, without a process; `more` are paths of collections besides the usual ones.
///
/// # Errors
///
/// When the API server does not list it.
#[cfg(feature = "kube")]
pub fn listed_of(api: &super::api::Api, run: &Value, more: &[String]) -> Result<Vec<Value>> {
    let uid = run["metadata"]["uid"].as_str().unwrap_or_default();
    anyhow::ensure!(!uid.is_empty(), "a run without a UID: {run}");
    let usual = KINDS.split(',').map(collection);
    let mut found = Vec::new();
    for path in usual.chain(more.iter().cloned()) {
        let selected = format!("{path}?labelSelector=sympozium.ai%2Frun-uid%3D{uid}");
        found.extend(api.list(&selected)?);
    }
    Ok(found)
}

/// The path of a collection of [`KINDS`], in all namespaces.
#[cfg(feature = "kube")]
fn collection(plural: &str) -> String {
    let version = match plural {
        "jobs" => "apis/batch/v1",
        "networkpolicies" => "apis/networking.k8s.io/v1",
        "roles" | "rolebindings" | "clusterroles" | "clusterrolebindings" => "apis/rbac.authorization.k8s.io/v1",
        "runrecords" | "toolapprovals" => "apis/sympozium.ai/v1alpha1",
        _ => "api/v1",
    };
    format!("/{version}/{plural}")
}

/// Those of these objects that should be gone when their run is over, by kind and name: everything but the plan, the
/// records and the questions.
pub fn leftovers(objects: &[Value]) -> Vec<String> {
    let is_kept = |object: &Value| match object["kind"].as_str().unwrap_or_default() {
        "RunRecord" | "ToolApproval" => true,
        "ConfigMap" => object["metadata"]["labels"]["sympozium.ai/component"] == "plan",
        _ => false,
    };
    let left = objects.iter().filter(|it| !is_kept(it));
    left.map(|object| {
        let ending = &object["metadata"]["deletionTimestamp"];
        let how = if ending.is_null() { "" } else { ", which is being deleted" };
        format!("{} {}{how}", object["kind"], object["metadata"]["name"])
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_is_over_when_nothing_of_it_is_left() {
        let run = |phase: &str, plan: Value, revoked: &str| {
            let conditions = json!([{ "type": "Revoked", "status": revoked }]);
            json!({ "status": { "phase": phase, "planDigest": plan, "conditions": conditions } })
        };
        let plan = json!("sha256:0");
        assert!(is_over(&run("Succeeded", plan.clone(), "True")));
        assert!(!is_over(&run("Succeeded", plan.clone(), "False")));
        assert!(!is_over(&run("Running", plan.clone(), "True")));
        // Nothing was ever made for it.
        assert!(is_over(&run("Failed", Value::Null, "Unknown")));
        let unchecked = json!({ "status": { "phase": "Succeeded", "planDigest": plan } });
        assert!(!is_over(&unchecked));
        assert!(!is_over(&json!({})));
    }

    #[test]
    fn the_plan_records_and_questions_are_kept_and_nothing_else() {
        let object = |kind: &str, component: &str| {
            let labels = json!({ "sympozium.ai/component": component });
            json!({ "kind": kind, "metadata": { "name": "x", "labels": labels } })
        };
        let mut going = object("Pod", "agent-run");
        going["metadata"]["deletionTimestamp"] = json!("2026-11-17T00:00:00Z");
        let objects = [
            object("ConfigMap", "plan"),
            object("ConfigMap", "skills"),
            object("RunRecord", "receipts"),
            object("ToolApproval", ""),
            object("Secret", "plan"),
            going,
        ];
        assert_eq!(
            leftovers(&objects),
            ["\"ConfigMap\" \"x\"", "\"Secret\" \"x\"", "\"Pod\" \"x\", which is being deleted",]
        );
    }
}
