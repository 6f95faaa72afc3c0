//! Objects of a run belong to the controller; all others are left alone.

use parking_lot::Mutex;

use super::*;

const ONLY: &str = "objects of runs are made and changed by the Sympozium controller only; use another name, or leave the label sympozium.ai/managed-by out";

/// An object of each kind that is made for runs, named as a run's.
fn of_a_run() -> Vec<Value> {
    let labelled = |api_version: &str, kind: &str, rest: Value| {
        let mut object = configmap("word", &[]);
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(kind);
        if let Some(object) = object.as_object_mut() {
            object.remove("data");
            object.extend(rest.as_object().cloned().unwrap_or_default());
        }
        object
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a" });
    let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i:1" }] });
    vec![
        labelled("v1", "ConfigMap", json!({})),
        labelled("v1", "Secret", json!({})),
        labelled("v1", "ServiceAccount", json!({})),
        labelled(
            "v1",
            "PersistentVolumeClaim",
            json!({ "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } } }),
        ),
        labelled("batch/v1", "Job", json!({ "spec": { "template": { "spec": pod } } })),
        labelled("networking.k8s.io/v1", "NetworkPolicy", json!({ "spec": { "podSelector": {} } })),
        labelled(rbac, "Role", json!({ "rules": [] })),
        labelled(rbac, "RoleBinding", json!({ "roleRef": role, "subjects": [] })),
    ]
}

#[test]
fn only_the_controller_makes_and_changes_what_belongs_to_a_run() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-objects")? else {
        return Ok(());
    };
    for object in of_a_run() {
        let kind = object["kind"].to_string();
        for user in [ALICE, GATEWAY] {
            let tried = guarded.creates(user, &object)?;
            assert_eq!(tried, Tried::refused(ONLY), "{user} {kind}");
        }
        assert_eq!(guarded.creates(CONTROLLER, &object)?, Tried::Done, "{kind}");
    }
    // Of what starts the run the name ends in the UID.
    let mut job = of_a_run().swap_remove(4);
    job["metadata"]["name"] = json!(format!("a-run-{UID}"));
    assert_eq!(guarded.creates(ALICE, &job)?, Tried::refused(ONLY));

    let role = of_a_run().swap_remove(6);
    guarded.user(CONTROLLER).create(&role)?;
    let name = format!("role/a-run-{UID}-word");
    let patches = [
        json!({ "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }] }),
        // The label cannot be taken off first.
        json!({ "metadata": { "labels": { "sympozium.ai/managed-by": null } } }),
    ];
    for patch in patches {
        let patch = patch.to_string();
        let arguments = ["patch", &name, "--type=merge", "-p", &patch];
        let tried = Tried::of(guarded.user(ALICE).attempt(&arguments)?)?;
        assert_eq!(tried, Tried::refused(ONLY), "{patch}");
    }
    guarded.user(ALICE).run(&["delete", &name])?;
    Ok(())
}

/// An account or a claim that a user made does not become a run's later, and one of a run's gets no identity of a cloud; what
/// platforms write there by themselves passes.
#[test]
fn accounts_and_claims_become_no_run_s_and_change_in_nothing_that_counts() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-updates")? else {
        return Ok(());
    };
    let annotation = |key: &str| json!({ "metadata": { "annotations": { key: "x" } } });
    let labels = |value: Value| json!({ "metadata": { "labels": { "sympozium.ai/managed-by": value } } });
    let patch = |user: &str, name: &str, patch: &Value| -> Result<Tried> {
        let patch = patch.to_string();
        let arguments = ["patch", name, "--type=merge", "-p", &patch];
        Tried::of(guarded.user(user).attempt(&arguments)?)
    };
    for object in of_a_run().drain(2..4) {
        let kind = object["kind"].as_str().context("a kind")?;
        let name = format!("{}/a-run-{UID}-word", kind.to_lowercase());
        let mut unlabelled = object.clone();
        unlabelled["metadata"]["labels"].take();
        guarded.user(ALICE).create(&unlabelled)?;
        assert_eq!(patch(ALICE, &name, &annotation("a.example/b"))?, Tried::Done);
        let adopt = labels(json!("sympozium"));
        assert_eq!(patch(ALICE, &name, &adopt)?, Tried::refused(ONLY), "{kind}");
        guarded.user(ALICE).run(&["delete", &name, "--wait=true"])?;

        guarded.user(CONTROLLER).create(&object)?;
        for change in [
            annotation("eks.amazonaws.com/role-arn"),
            annotation("iam.gke.io/gcp-service-account"),
            annotation("openshift.io.example/x"),
            json!({ "metadata": { "labels": { "azure.workload.identity/use": "true" } } }),
            json!({ "metadata": { "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b",
            }] } }),
            labels(Value::Null),
        ] {
            let tried = patch(ALICE, &name, &change)?;
            assert_eq!(tried, Tried::refused(ONLY), "{kind} {change}");
        }
        for change in [
            annotation("volume.kubernetes.io/selected-node"),
            annotation("openshift.io/internal-registry-pull-secret-ref"),
            json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } }),
        ] {
            assert_eq!(patch(ALICE, &name, &change)?, Tried::Done, "{kind} {change}");
        }
    }
    let account = format!("serviceaccount/a-run-{UID}-word");
    let tokens = json!({ "automountServiceAccountToken": true });
    let mounts = json!({ "automountServiceAccountToken": false });
    // Without a word it is as if it were true.
    assert_eq!(patch(ALICE, &account, &tokens)?, Tried::Done);
    assert_eq!(patch(ALICE, &account, &mounts)?, Tried::refused(ONLY));
    let pulls = json!({ "imagePullSecrets": [{ "name": "p" }] });
    assert_eq!(patch(ALICE, &account, &pulls)?, Tried::Done);
    Ok(())
}

/// A user with full rights in the whole cluster is subject to the policy for objects that are in no namespace.
#[test]
fn objects_of_the_whole_cluster_are_guarded_too() -> Result<()> {
    let _alone = WHOLE_CLUSTER.lock();
    let Some(guarded) = Guarded::open("vap-wide")? else {
        return Ok(());
    };
    let admin = guarded.cluster.kubectl();
    let name = format!("vap-wide-{}", guarded.name());
    let someone = format!("{name}@example.test");
    admin.create(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": someone }],
    }))?;
    let mut role = of_a_run().swap_remove(6);
    role["kind"] = json!("ClusterRole");
    // An error until the API server knows of the binding.
    let tried = eventually("the rights to be known", PATIENCE, || guarded.creates(&someone, &role).map(Some));
    admin.run(&["delete", "clusterrolebinding", &name])?;
    assert_eq!(tried?, Tried::refused(ONLY));
    Ok(())
}

/// Held by tests that make, or count, what concerns objects of the whole cluster: policies of all namespaces are asked about
/// those.
static WHOLE_CLUSTER: Mutex<()> = Mutex::new(());

/// By the API server's own count: ordinary work does not reach the policy at all, and neither do the cluster's controllers.
#[test]
fn nothing_else_is_asked_about() -> Result<()> {
    let _alone = WHOLE_CLUSTER.lock();
    let Some(guarded) = Guarded::open("vap-quiet")? else {
        return Ok(());
    };
    let policy = format!("sympozium-run-objects-{}", guarded.name());
    let asked = || -> Result<f64> {
        let metrics = guarded.cluster.kubectl().run(&["get", "--raw", "/metrics"])?;
        let lines = metrics.lines().filter(|line| {
            line.starts_with("apiserver_validating_admission_policy_check_total{") && line.contains(&policy)
        });
        lines.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
    };
    let before = asked()?;
    ensure!(before >= 1.0, "the count does not know the policy");

    let alice = guarded.user(ALICE);
    for mut object in of_a_run() {
        // The form of the name without the label, and the label without the form.
        let labels = object["metadata"]["labels"].take();
        alice.create(&object)?;
        object["metadata"]["labels"] = labels;
        object["metadata"]["name"] =
            json!(format!("plain-{}", object["kind"].to_string().trim_matches('"').to_lowercase()));
        alice.create(&object)?;
    }
    alice.run(&["create", "deployment", "d", "--image=i:1"])?;
    // The deployment's controller, the job's and the garbage collector all had something to do.
    eventually("the deployment's pods to be refused or made", PATIENCE, || {
        let sets = guarded.admin().json(&["get", "replicasets"])?;
        Ok((sets["items"].as_array().map_or(0, Vec::len) == 1).then_some(()))
    })?;
    alice.run(&["delete", "deployment", "d", "--cascade=foreground"])?;
    assert_eq!(asked()?, before);

    assert_eq!(guarded.creates(ALICE, &configmap("one", &[]))?, Tried::refused(ONLY));
    assert_eq!(asked()?, before + 1.0);
    Ok(())
}
