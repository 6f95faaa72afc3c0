//! The control-plane tier: who called what, what is refused, and when a token dies.

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::json;
use sympozium_testkit::cluster::{Cluster, Security, Tier, eventually};

use crate::pods::{self, PATIENCE};

#[test]
fn the_audit_log_says_which_calls_were_made_by_whom() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::ControlPlane)? else {
        return Ok(());
    };
    let Some(audit) = cluster.audit() else {
        return Ok(());
    };
    let namespace = cluster.namespace("audit", Security::Restricted)?;
    let mark = audit.mark()?;

    let account = format!("system:serviceaccount:{}:default", namespace.name());
    namespace.kubectl().run(&["create", "configmap", "seen"])?;
    let refused = namespace.kubectl().clone().impersonating(&account).attempt(&["get", "secret", "hidden"])?;
    assert!(!refused.success, "a service account without rights read a secret");

    let calls: Vec<_> = audit.since(mark)?.into_iter().filter(|call| call.namespace == namespace.name()).collect();
    let ours: Vec<_> = calls
        .iter()
        .filter(|call| call.user == "admin")
        .map(|call| {
            let by = call.impersonated.clone().unwrap_or_else(|| call.user.clone());
            (by, call.verb.as_str(), call.resource.as_str(), call.name.as_str(), call.code)
        })
        .collect();
    let expected =
        [("admin".to_owned(), "create", "configmaps", "seen", 201), (account, "get", "secrets", "hidden", 403)];
    assert_eq!(ours, expected, "all calls in the namespace: {calls:#?}");
    Ok(())
}

#[test]
fn the_restricted_level_rejects_what_it_should() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::ControlPlane)? else {
        return Ok(());
    };
    let namespace = cluster.namespace("restricted", Security::Restricted)?;
    let sound = pods::pod("sound", pods::spec(&[pods::container("main", "sympozium.test/none:1", "true")]));
    namespace.create(&sound)?;

    // Each takes one thing away from, or adds one to, the pod that was accepted.
    let spoilt = [
        ("allowPrivilegeEscalation", "/spec/containers/0/securityContext/allowPrivilegeEscalation", json!(true)),
        ("unrestricted capabilities", "/spec/containers/0/securityContext/capabilities", json!({})),
        ("runAsNonRoot", "/spec/securityContext/runAsNonRoot", json!(null)),
        ("seccompProfile", "/spec/securityContext/seccompProfile", json!(null)),
        ("runAsUser=0", "/spec/securityContext/runAsUser", json!(0)),
        ("hostPath", "/spec/volumes", json!([{"name": "v", "hostPath": {"path": "/"}}])),
        ("hostNetwork", "/spec/hostNetwork", json!(true)),
    ];
    for (reason, pointer, value) in spoilt {
        let mut object = sound.clone();
        object["metadata"]["name"] = json!("spoilt");
        let (parent, key) = pointer.rsplit_once('/').context("a pointer has a parent")?;
        object.pointer_mut(parent).context("the pod has that part")?[key] = value;
        let refused = namespace.kubectl().feed(&["create", "-f", "-"], &object)?;
        assert!(!refused.success, "a pod with {reason} was admitted");
        assert!(refused.stderr.contains("violates PodSecurity"), "{reason}: {}", refused.stderr);
        assert!(refused.stderr.contains(reason), "{reason} is not the reason given: {}", refused.stderr);
    }
    Ok(())
}

/// Revocation as the design has it: bindings first (at once), then the Secret that the token is bound to (after the
/// API server's token cache of 10 s).
#[test]
fn a_token_bound_to_a_secret_dies_with_it() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::ControlPlane)? else {
        return Ok(());
    };
    let namespace = cluster.namespace("token", Security::Restricted)?;
    let admin = namespace.kubectl();
    admin.run(&["create", "serviceaccount", "skill"])?;
    admin.run(&["create", "role", "reader", "--verb=list", "--resource=configmaps"])?;
    let subject = format!("--serviceaccount={}:skill", namespace.name());
    admin.run(&["create", "rolebinding", "reader", "--role=reader", &subject])?;
    admin.run(&["create", "secret", "generic", "anchor"])?;
    let bound =
        ["create", "token", "skill", "--duration=600s", "--bound-object-kind=Secret", "--bound-object-name=anchor"];
    let token = admin.run(&bound)?;
    let kubeconfig = Bearer::new(cluster, &token)?;

    let list = || kubeconfig.list_config_maps(namespace.name());
    eventually("the token to work", PATIENCE, || Ok((list()? == 200).then_some(())))?;

    admin.run(&["delete", "rolebinding", "reader"])?;
    let start = Instant::now();
    eventually("the right to be gone", PATIENCE, || Ok((list()? == 403).then_some(())))?;
    let unbound = start.elapsed();

    admin.run(&["delete", "secret", "anchor"])?;
    let start = Instant::now();
    eventually("the token to be dead", PATIENCE, || Ok((list()? == 401).then_some(())))?;
    eprintln!("403 after {unbound:?}, 401 after {:?}", start.elapsed());
    Ok(())
}

/// A client with nothing but a token.
struct Bearer {
    folder: tempfile::TempDir,
    cluster: &'static Cluster,
}

impl Bearer {
    fn new(cluster: &'static Cluster, token: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut config = cluster.kubectl().json(&["config", "view", "--raw", "--minify"])?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        std::fs::write(folder.path().join("config"), config.to_string())?;
        Ok(Self { folder, cluster })
    }

    /// The HTTP status of the answer.
    fn list_config_maps(&self, namespace: &str) -> Result<u16> {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let mut command = self.cluster.kubectl().command(&["get", "--raw", &path]);
        let output = command.env("KUBECONFIG", self.folder.path().join("config")).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        Ok(match (output.status.success(), said.contains("Forbidden"), said.contains("Unauthorized")) {
            (true, ..) => 200,
            (_, true, _) => 403,
            (_, _, true) => 401,
            _ => anyhow::bail!("neither refused nor answered: {said}"),
        })
    }
}
