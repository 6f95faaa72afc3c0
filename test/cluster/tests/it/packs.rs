//! The packs that we ship, on a real API server: it stores them, and their rights are enough for their tools and no more.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_api::SkillPack;
use sympozium_api::rbac::RbacRule;
use sympozium_testkit::cluster::{Cluster, Kubectl, Namespace, Security, Tier, eventually};
use sympozium_testkit::command;
use sympozium_testkit::static_build::workspace_root;

use crate::kinds::with_kinds;

const PATIENCE: Duration = Duration::from_secs(180);

/// The documents of a directory's manifests, with the name of the file of each.
fn documents(directory: &str) -> Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(workspace_root().join(directory))? {
        let path = entry?.path();
        if path.extension().is_none_or(|it| it != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
        let name = path.display().to_string();
        found.extend(documents.into_iter().map(|it| (name.clone(), it)));
    }
    Ok(found)
}

#[test]
fn packs_policies_and_samples_are_stored_as_they_are() -> Result<()> {
    let Some(cluster) = with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("shipped", Security::Restricted)?;
    let mut count = 0;
    for directory in ["config/skillpacks", "config/policies", "config/samples"] {
        for (file, mut object) in documents(directory)? {
            let metadata = object["metadata"].as_object_mut().context("no metadata")?;
            metadata.remove("namespace");
            let arguments = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"];
            let printed = namespace.kubectl().feed(&arguments, &object)?;
            ensure!(printed.success, "{file}: {}", printed.stderr);
            count += 1;
        }
    }
    ensure!(count > 40, "{count} objects");
    Ok(())
}

#[test]
fn tools_have_the_rights_that_they_need_and_no_more() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::ControlPlane)? else {
        return Ok(());
    };
    if !Path::new("/usr/bin/jq").exists() {
        sympozium_testkit::skips::record("no jq");
        return Ok(());
    }
    let namespace = cluster.namespace("packs", Security::Restricted)?;
    let pod = workload(&namespace)?;
    let packs = packs()?;
    let mut grants = Vec::new();
    for (name, pack) in &packs {
        grants.push(Grant::new(&namespace, name, pack)?);
    }
    let mut called = 0;
    for (pack, tool, arguments) in [
        ("k8s-ops", "list-unhealthy-pods.sh", &["*"][..]),
        ("k8s-ops", "list-unhealthy-pods.sh", &["NAMESPACE"]),
        ("k8s-ops", "recent-events.sh", &["*", "warnings"]),
        ("k8s-ops", "recent-events.sh", &["NAMESPACE", "all"]),
        ("k8s-ops", "describe-object.sh", &["NAMESPACE", "pod", "POD"]),
        ("k8s-ops", "describe-object.sh", &["NAMESPACE", "deployment", "web"]),
        ("k8s-ops", "describe-object.sh", &["any", "namespace", "NAMESPACE"]),
        ("k8s-ops", "pod-logs.sh", &["POD", "", "current", "10"]),
        ("k8s-ops", "scale-workload.sh", &["deployment", "web", "1", "2"]),
        ("k8s-ops", "rollout-status.sh", &["NAMESPACE", "deployment", "web"]),
        ("sre-observability", "container-usage.sh", &[]),
        ("sre-observability", "error-lines.sh", &["app=web", "5"]),
        ("llmfit", "model-fit.sh", &["8", "4", "8192", "1"]),
        ("incident-response", "incident-snapshot.sh", &["slow"]),
        ("incident-response", "recent-changes.sh", &["24"]),
        // Before rollouts replace it.
        ("k8s-ops-admin", "delete-pod.sh", &["POD"]),
        ("k8s-ops-admin", "restart-workload.sh", &["deployment", "web"]),
        ("k8s-ops-admin", "set-image.sh", &["deployment", "web", "app", "example.test/web:2"]),
        ("k8s-ops-admin", "undo-rollout.sh", &["deployment", "web", "0"]),
    ] {
        let scripts = Scripts::of(&namespace, &packs[pack])?;
        if tool == "undo-rollout.sh" {
            // There is something to go back to once the controller manager has seen the changes before.
            eventually("a revision to go back to", PATIENCE, || {
                let sets = namespace.kubectl().json(&["get", "replicasets"])?;
                Ok((sets["items"].as_array().map_or(0, Vec::len) >= 2).then_some(()))
            })?;
        }
        let filled = arguments.iter().map(|it| it.replace("NAMESPACE", namespace.name()).replace("POD", &pod));
        let output = command("/bin/sh")
            .arg(scripts.directory.join(tool))
            .args((!arguments.is_empty()).then_some("--"))
            .args(filled)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", scripts.programs.display()))
            .current_dir(scripts.root.path())
            .output()?;
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{pack}/{tool}: {told}");
        ensure!(!told.to_lowercase().contains("forbidden"), "{pack}/{tool}: {told}");
        called += 1;
    }
    ensure!(called == 19, "{called} calls");
    for name in packs.keys() {
        let user = format!("system:serviceaccount:{}:{name}", namespace.name());
        let kubectl = namespace.kubectl().clone().impersonating(&user);
        for refused in [
            &["get", "secrets"][..],
            &["create", "pods"],
            &["create", "pods", "--subresource=exec"],
            &["get", "configmaps", "--namespace=kube-system"],
            &["get", "pods", "--subresource=log", "--namespace=kube-system"],
            &["create", "rolebindings"],
            &["create", "agentruns.sympozium.ai"],
        ] {
            let printed = kubectl.attempt(&[&["auth", "can-i"], refused].concat())?;
            ensure!(!printed.success, "{name} can {refused:?}");
        }
    }
    drop(grants);
    Ok(())
}

/// The packs that have rights, by name.
fn packs() -> Result<BTreeMap<String, SkillPack>> {
    let mut packs = BTreeMap::new();
    for (_, object) in documents("config/skillpacks")? {
        let pack: SkillPack = serde_json::from_value(object)?;
        let sidecar = pack.spec.sidecar.as_ref();
        if sidecar.is_some_and(|it| !it.rbac.is_empty() || !it.cluster_rbac.is_empty()) {
            packs.insert(pack.metadata.name.clone().context("no name")?, pack);
        }
    }
    ensure!(packs.len() == 5, "{:?}", packs.keys());
    Ok(packs)
}

/// Something to look at; gives the name of its pod, which never runs.
fn workload(namespace: &Namespace) -> Result<String> {
    namespace.create(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    // No node has it: where the cluster has nodes, the pod must wait as well.
                    "nodeSelector": {"example.test/none": "true"},
                    "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "app",
                        "image": "example.test/web:1",
                        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                    }],
                },
            },
        },
    }))?;
    eventually("a pod of the workload", PATIENCE, || {
        let pods = namespace.kubectl().json(&["get", "pods"])?;
        Ok(pods["items"][0]["metadata"]["name"].as_str().map(str::to_owned))
    })
}

/// A pack's scripts, and a `kubectl` with the pack's rights and no others.
struct Scripts {
    root: tempfile::TempDir,
    directory: PathBuf,
    programs: PathBuf,
}

impl Scripts {
    fn of(namespace: &Namespace, pack: &SkillPack) -> Result<Self> {
        let name = pack.metadata.name.as_deref().context("no name")?;
        let root = tempfile::tempdir()?;
        let (directory, programs) = (root.path().join("scripts"), root.path().join("bin"));
        for created in [&directory, &programs] {
            fs::create_dir(created)?;
        }
        for file in pack.spec.skills.iter().flat_map(|skill| &skill.files) {
            let name = file.path.as_str().rsplit('/').next().unwrap_or_default();
            fs::write(directory.join(name), file.content.as_deref().unwrap_or_default())?;
        }
        let user = format!("system:serviceaccount:{}:{name}", namespace.name());
        let kubectl = namespace.kubectl().clone().impersonating(&user).command(&[]);
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_string_lossy());
        let settings = kubectl.get_envs().filter_map(|(name, value)| {
            let value = quoted(value?);
            Some(format!("export {}={value}\n", name.to_string_lossy()))
        });
        let arguments: Vec<String> = kubectl.get_args().map(quoted).collect();
        let program = programs.join("kubectl");
        // With our own path again: the program may be a plain name, and the first of that name is this one.
        let path = quoted(&std::env::var_os("PATH").unwrap_or_default());
        let text = format!(
            "#!/bin/sh\nexport PATH={path}\n{}exec {} {} \"$@\"\n",
            settings.collect::<String>(),
            quoted(kubectl.get_program()),
            arguments.join(" ")
        );
        fs::write(&program, text)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { root, directory, programs })
    }
}

/// What the controller will make of a pack's rules: roles and bindings for an account of its own. Those of the cluster,
/// which do not go with the namespace, go with this.
struct Grant {
    kubectl: Kubectl,
    wide: String,
}

impl Grant {
    fn new(namespace: &Namespace, pack: &str, object: &SkillPack) -> Result<Self> {
        let sidecar = object.spec.sidecar.as_ref().context("no sidecar")?;
        apply(namespace, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": pack}}))?;
        apply_role(namespace, "Role", pack, pack, &sidecar.rbac)?;
        let grant = Self {
            kubectl: namespace.kubectl().clone(),
            // No other test has this namespace.
            wide: format!("{}-{pack}", namespace.name()),
        };
        let rules = &sidecar.cluster_rbac;
        apply_role(namespace, "ClusterRole", &grant.wide, pack, rules)?;
        Ok(grant)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let kinds = "clusterrolebindings,clusterroles";
        let name = &self.wide;
        // Nothing can be done about a failure here; the cluster ends soon.
        let _ = self.kubectl.attempt(&["delete", kinds, name, "--ignore-not-found"]);
    }
}

fn apply_role(namespace: &Namespace, kind: &str, name: &str, account: &str, rules: &[RbacRule]) -> Result<()> {
    const VERSION: &str = "rbac.authorization.k8s.io/v1";
    apply(namespace, &json!({"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "rules": rules}))?;
    apply(
        namespace,
        &json!({
            "apiVersion": VERSION,
            "kind": format!("{kind}Binding"),
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace.name()}],
        }),
    )?;
    match rules.first() {
        Some(rule) => wait_until_known(namespace, account, rule),
        None => Ok(()),
    }
}

/// Waits until the API server lets an account do what it has been granted: it learns of roles and bindings a moment after they are made.
fn wait_until_known(namespace: &Namespace, account: &str, rule: &RbacRule) -> Result<()> {
    let (resource, subresource) = rule.resources[0].split_once('/').unwrap_or((&rule.resources[0], ""));
    let mut object = match rule.api_groups[0].as_str() {
        "" => resource.to_owned(),
        group => format!("{resource}.{group}"),
    };
    if let Some(name) = rule.resource_names.first() {
        object = format!("{object}/{name}");
    }
    let subresource = format!("--subresource={subresource}");
    let user = format!("system:serviceaccount:{}:{account}", namespace.name());
    let kubectl = namespace.kubectl().clone().impersonating(&user);
    let ask = ["auth", "can-i", &rule.verbs[0], &object, &subresource];
    eventually(&format!("{account} to have its rights"), PATIENCE, || Ok(kubectl.attempt(&ask)?.success.then_some(())))
}

fn apply(namespace: &Namespace, object: &Value) -> Result<()> {
    let arguments = ["apply", "--server-side", "-f", "-"];
    let printed = namespace.kubectl().feed(&arguments, object)?;
    ensure!(printed.success, "{}", printed.stderr);
    Ok(())
}
