//! What our programs may do: ServiceAccounts, and rules from the programs' own `rights`.
//!
//! The programs are asked, by an example of each crate, and not linked: the tooling would otherwise have to build a
//! Kubernetes client before it could do anything, and would not build while they do not.

use anyhow::{Context as _, Result};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use serde_json::{Value, json};
use sympozium_api::installation::{CONTROLLER, GATEWAY};
use sympozium_api::labels::SYSTEM_NAMESPACE;

use super::{Document, cluster_wide, in_system};
use crate::process::{build_directory, cargo, command, output};

/// What a program may do.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rights {
    /// In the whole cluster.
    cluster: Vec<PolicyRule>,
    /// In the system namespace only.
    #[serde(default)]
    system: Vec<PolicyRule>,
    /// In the namespace `default` only.
    #[serde(default)]
    default: Vec<PolicyRule>,
}

impl Rights {
    fn ask(example: &str) -> Result<Self> {
        // Of the whole workspace: a package alone would have other features, and everything below it would be compiled again.
        let arguments = ["build", "--quiet", "--locked", "--workspace", "--example"];
        output(cargo(&arguments).arg(example))?;
        let program = build_directory("debug")?.join("examples").join(example);
        let printed = output(&mut command(program))?;
        serde_json::from_str(&printed).with_context(|| format!("reading what {example} printed"))
    }
}

pub fn documents() -> Result<Vec<Document>> {
    let controller = Rights::ask("controller-rights")?;
    let gateway = Rights::ask("gateway-rights")?;
    let mut documents = vec![
        account(
            CONTROLLER,
            "The controller creates the objects of runs, with the permissions of their skills, and revokes and removes them.",
        ),
        account(GATEWAY, "The gateway serves runs. It cannot create pods or RBAC objects, nor read Secrets."),
    ];
    documents.extend(cluster_role(
        CONTROLLER,
        "In every namespace, because runs are in every namespace. `escalate` and `bind` are needed because skills get permissions\n\
         that the controller does not have. Policies and the floor decide which, not the author of a run.",
        &controller.cluster,
    ));
    documents.extend(role(
        CONTROLLER,
        SYSTEM_NAMESPACE,
        "Permissions in its own namespace only: its Lease, and the Secrets of the gateway.",
        &controller.system,
    ));
    documents.extend(role(
        CONTROLLER,
        "default",
        "To find the API server: the Service `kubernetes` and its endpoints are in this namespace in every cluster.",
        &controller.default,
    ));
    documents.extend(cluster_role(
        GATEWAY,
        "To read plans and runs, write reports and requests for approval, and review tokens of pods.",
        &gateway.cluster,
    ));
    Ok(documents)
}

fn account(name: &str, comment: &'static str) -> Document {
    Document::new(
        comment,
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": in_system(name),
        }),
    )
}

fn cluster_role(name: &str, comment: &'static str, rules: &[PolicyRule]) -> [Document; 2] {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": cluster_wide(name), "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": cluster_wide(name),
        "roleRef": role_reference("ClusterRole", name), "subjects": [subject(name)],
    });
    [Document::new(comment, role), Document::new("", binding)]
}

fn role(name: &str, namespace: &str, comment: &'static str, rules: &[PolicyRule]) -> [Document; 2] {
    let mut metadata = in_system(name);
    metadata["namespace"] = json!(namespace);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": metadata, "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": role_reference("Role", name), "subjects": [subject(name)],
    });
    [Document::new(comment, role), Document::new("", binding)]
}

fn role_reference(kind: &str, name: &str) -> Value {
    json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name })
}

fn subject(name: &str) -> Value {
    json!({ "kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE })
}
