//! Which objects are adopted, and which are not.

use serde_json::json;

use super::*;

const RUN: &str = "0c8d5f0e-7a3b-4c1d-9e2f-60718293a4b5";
const DIGEST: &str = "sha256:1";

fn object(kind: &str, rest: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {
            "name": "a-run-x", "namespace": "team",
            "labels": { labels::MANAGED_BY: labels::MANAGER, labels::RUN_UID: RUN },
            "annotations": { annotation::PLAN_DIGEST: DIGEST },
            "ownerReferences": [{
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "name": "a", "uid": RUN,
            }],
        },
    });
    merge(&mut object, rest);
    object
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// For each kind: the object as it is sent, and with the defaults of the API server and the platform.
fn samples() -> Vec<(Value, Value)> {
    let pod = json!({
        "serviceAccountName": "a", "automountServiceAccountToken": false, "restartPolicy": "Never",
        "hostNetwork": false,
        "containers": [{
            "name": "c", "image": "i:1", "resources": { "limits": { "memory": "1024Mi", "cpu": "1000m" } },
            "securityContext": { "privileged": false, "allowPrivilegeEscalation": false },
            "volumeMounts": [{ "name": "v", "mountPath": "/v", "readOnly": false }],
        }],
        "volumes": [{ "name": "v", "secret": { "secretName": "s" } }],
    });
    let template = json!({ "metadata": { "labels": { "a": "b" } }, "spec": pod });
    let spec = json!({ "backoffLimit": 0, "suspend": true, "template": template });
    let job = object("Job", json!({ "spec": spec }));
    let mut job_there = job.clone();
    let completed = json!({ "spec": {
        "completionMode": "NonIndexed", "completions": 1, "parallelism": 1, "manualSelector": false,
        "selector": { "matchLabels": { "batch.kubernetes.io/controller-uid": "u" } },
        "template": {
            "metadata": { "creationTimestamp": null, "labels": { "job-name": "a", "controller-uid": "u" } },
            "spec": {
                "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "securityContext": {},
                "serviceAccount": "a", "terminationGracePeriodSeconds": 30,
                "volumes": [{ "name": "v", "secret": { "secretName": "s", "defaultMode": 420 } }],
                "containers": [{
                    "name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent",
                    "resources": { "limits": { "memory": "1Gi", "cpu": "1" } },
                    "securityContext": { "privileged": false, "allowPrivilegeEscalation": false },
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
                }],
            },
        },
    } });
    merge(&mut job_there, completed);
    if let Some(pod) = job_there.pointer_mut("/spec/template/spec") {
        pod.as_object_mut().expect("a map").remove("hostNetwork");
    }

    // The API server sets few defaults in a custom resource: it does not know that it contains a pod.
    let pod = job.pointer("/spec/template/spec").cloned().unwrap_or_default();
    let sandbox = json!({ "spec": { "replicas": 1, "podTemplate": { "spec": pod } } });
    let sandbox = object("Sandbox", sandbox);
    let mut sandbox_there = sandbox.clone();
    merge(&mut sandbox_there, json!({ "spec": { "shutdownPolicy": "Retain" } }));

    let claim = json!({ "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1024Mi" } },
    } });
    let claim = object("PersistentVolumeClaim", claim);
    let mut claim_there = claim.clone();
    let completed = json!({
        "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n" } },
        "spec": {
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "standard", "volumeMode": "Filesystem",
        },
        "status": { "phase": "Pending" },
    });
    merge(&mut claim_there, completed);

    let account = object("ServiceAccount", json!({ "automountServiceAccountToken": false }));
    let mut account_there = account.clone();
    let completed = json!({
        "metadata": { "annotations": { "openshift.io/internal-registry-pull-secret-ref": "p" } },
        "imagePullSecrets": [{ "name": "p" }],
    });
    merge(&mut account_there, completed);

    let secret = object("Secret", json!({ "type": "Opaque", "stringData": { "k": "v" } }));
    let secret_there = object("Secret", json!({ "type": "Opaque", "data": { "k": "b2xk" } }));
    vec![
        (job, job_there),
        (claim, claim_there),
        (account, account_there),
        (secret, secret_there),
        (sandbox, sandbox_there),
    ]
}

/// Why an object is not adopted.
fn why(wanted: &Value, mut there: Value, change: Value, uid: Option<&str>) -> Option<String> {
    merge(&mut there, json!({ "metadata": { "uid": "own" } }));
    merge(&mut there, change);
    let kind = wanted["kind"].as_str().expect("a kind");
    let there: DynamicObject = serde_json::from_value(there).expect("an object");
    let expected = Expected { run_uid: RUN, uid };
    let compared = compare(kind, "a-run-x", wanted, &there, expected);
    compared.err().map(|error| match error {
        Error::Foreign { why, .. } => why.to_owned(),
        other => other.to_string(),
    })
}

#[test]
fn what_we_made_is_found_again_whatever_the_platform_adds() {
    for (wanted, there) in samples() {
        for uid in [None, Some("own")] {
            assert_eq!(why(&wanted, there.clone(), json!({}), uid), None, "{wanted}");
        }
    }
}

#[test]
fn one_of_another_uid_is_never_adopted() {
    for (wanted, there) in samples() {
        assert_eq!(
            why(&wanted, there, json!({}), Some("recorded")),
            Some("it was deleted and created again by another client".to_owned())
        );
    }
}

#[test]
fn an_object_of_another_author_is_not_adopted() {
    let annotated = "it has annotations that are not ours";
    let labelled = "it has labels that are not ours";
    let different = "its content differs";
    let annotations = |key: &str| json!({ "metadata": { "annotations": { key: "x" } } });
    let template = |change: Value| json!({ "spec": { "template": { "spec": change } } });
    for (kind, change, expected) in [
        ("ServiceAccount", annotations("eks.amazonaws.com/role-arn"), annotated),
        ("ServiceAccount", annotations("iam.gke.io/gcp-service-account"), annotated),
        ("ServiceAccount", annotations("azure.workload.identity/client-id"), annotated),
        ("ServiceAccount", json!({ "metadata": { "labels": { "azure.workload.identity/use": "true" } } }), labelled),
        ("ServiceAccount", json!({ "automountServiceAccountToken": true }), different),
        ("PersistentVolumeClaim", annotations("k8s.io/CloneRequest"), annotated),
        ("PersistentVolumeClaim", json!({ "spec": { "volumeName": "planted" } }), different),
        (
            "PersistentVolumeClaim",
            json!({ "spec": { "dataSource": { "kind": "PersistentVolumeClaim", "name": "theirs" } } }),
            different,
        ),
        ("PersistentVolumeClaim", json!({ "spec": { "accessModes": ["ReadWriteMany"] } }), different),
        ("Secret", json!({ "type": "kubernetes.io/service-account-token" }), different),
        ("Secret", json!({ "immutable": true }), different),
        ("Job", template(json!({ "hostNetwork": true })), different),
        ("Job", template(json!({ "hostPID": true })), different),
        ("Job", template(json!({ "serviceAccountName": "theirs", "serviceAccount": "theirs" })), different),
        ("Job", template(json!({ "securityContext": { "runAsUser": 0 } })), different),
        ("Job", template(json!({ "initContainers": [{ "name": "i", "image": "theirs:1" }] })), different),
        ("Job", template(json!({ "containers": [{ "name": "c", "image": "theirs:1" }] })), different),
        ("Job", json!({ "spec": { "manualSelector": true } }), different),
        ("Job", json!({ "spec": { "suspend": false } }), different),
        ("Sandbox", json!({ "spec": { "podTemplate": { "spec": { "hostNetwork": true } } } }), different),
        (
            "Sandbox",
            json!({ "spec": { "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "theirs:1" }] } } } }),
            different,
        ),
        ("Sandbox", json!({ "spec": { "shutdownPolicy": "Delete" } }), different),
    ] {
        let all = samples();
        let sample = all.iter().find(|(wanted, _)| wanted["kind"] == kind);
        let (wanted, there) = sample.expect("a sample");
        assert_eq!(why(wanted, there.clone(), change.clone(), None).as_deref(), Some(expected), "{kind} {change}");
    }
}

#[test]
fn one_of_a_kind_that_cannot_be_compared_is_known_by_its_uid_only() {
    let wanted = object("Gadget", json!({ "spec": { "a": "b" } }));
    assert_eq!(
        why(&wanted, wanted.clone(), json!({}), None).as_deref(),
        Some("nothing proves that it belongs to the run")
    );
    assert_eq!(why(&wanted, wanted.clone(), json!({}), Some("own")), None);
}

#[test]
fn a_claim_of_ours_may_be_bound() {
    let (wanted, there) = samples().swap_remove(1);
    let bound = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
        "spec": { "volumeName": "pv-1" },
    });
    assert_eq!(why(&wanted, there, bound, Some("own")), None);
}

#[test]
fn nothing_is_adopted_that_is_not_the_run_s() {
    let changes = [
        (json!({ "metadata": { "ownerReferences": [] } }), "the run does not own it"),
        (json!({ "metadata": { "labels": { labels::MANAGED_BY: "helm" } } }), "it was not created by this controller"),
        (
            json!({ "metadata": { "annotations": { annotation::PLAN_DIGEST: "sha256:2" } } }),
            "it was created for another plan",
        ),
        (
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            "waiting until an object with the same name is deleted",
        ),
    ];
    for (wanted, there) in samples() {
        for (change, expected) in &changes {
            for uid in [None, Some("own")] {
                let refused = why(&wanted, there.clone(), change.clone(), uid);
                assert_eq!(refused.as_deref(), Some(*expected), "{wanted}");
            }
        }
    }
}
