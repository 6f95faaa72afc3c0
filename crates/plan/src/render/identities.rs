//! Identities of parts at the Kubernetes API, and their permissions.
//!
//! The order is that of creation. Grants are revoked from the end: bindings first, which takes effect at once.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use sympozium_api::labels::component;
use sympozium_api::rbac::RbacRule;
use sympozium_api::run_plan::Identity;

use super::inputs::{empty_secret, key};
use super::metadata::{ObjectPurpose, RenderContext};
use super::names::suffix;
use super::{CreationStep, Output, PendingSecret, RenderError, SecretPurpose};

/// The suffix of the ServiceAccount of the run's pods. It has no permissions, and no container has its token for the
/// API server.
pub const POD_SUFFIX: &str = "pod";
/// The keys of a token's Secret, which are the files that clients look for.
pub const TOKEN_KEYS: &[&str] = &[key::API_SERVER_CERTIFICATE, key::NAMESPACE, key::IDENTITY_TOKEN];
const GROUP: &str = "rbac.authorization.k8s.io";

/// Adds the pod's own ServiceAccount, and every identity with its permissions.
pub fn render(run: &RenderContext<'_>, output: &mut Output) -> Result<(), RenderError> {
    output.add(CreationStep::Grants, service_account(run, POD_SUFFIX, component::AGENT_RUN.into()));
    for identity in &run.plan.identities {
        render_identity(run, identity, output)?;
    }
    Ok(())
}

/// The name of the Secret with an identity's token.
pub fn token_secret(run: &RenderContext<'_>, identity: &Identity) -> Result<String, RenderError> {
    Ok(run.names.with_suffix(&token_suffix(identity)?))
}

fn token_suffix(identity: &Identity) -> Result<String, RenderError> {
    suffix("an identity", &format!("{}token", identity.name))
}

fn render_identity(run: &RenderContext<'_>, identity: &Identity, output: &mut Output) -> Result<(), RenderError> {
    let name = suffix("an identity", &identity.name.0)?;
    let about = ObjectPurpose {
        component: match identity.pack {
            Some(_) => component::GRANT,
            None => component::LIFECYCLE,
        },
        pack: identity.pack.as_deref(),
    };
    output.add(CreationStep::Grants, service_account(run, &name, about));
    let token_word = token_suffix(identity)?;
    let secret = empty_secret(run, &token_word, about.component, about.pack);
    output.pending_secrets.push(PendingSecret {
        secret: run.names.with_suffix(&token_word),
        purpose: SecretPurpose::Token {
            identity: identity.name.clone(),
            service_account: run.names.with_suffix(&name),
            seconds: identity.token_seconds,
        },
        keys: TOKEN_KEYS.iter().map(|key| (*key).to_owned()).collect(),
    });
    output.add(CreationStep::Grants, secret);
    if !identity.namespace_rules.is_empty() {
        let role =
            Role { metadata: run.namespaced_metadata(&name, about), rules: Some(rules(&identity.namespace_rules)) };
        let binding = RoleBinding {
            metadata: run.namespaced_metadata(&name, about),
            role_ref: role_ref(run, "Role", &name),
            subjects: Some(vec![subject(run, &name)]),
        };
        output.add(CreationStep::Grants, role);
        output.add(CreationStep::Grants, binding);
    }
    if !identity.cluster_rules.is_empty() {
        let role = ClusterRole {
            metadata: run.cluster_metadata(&name, about),
            rules: Some(rules(&identity.cluster_rules)),
            aggregation_rule: None,
        };
        let binding = ClusterRoleBinding {
            metadata: run.cluster_metadata(&name, about),
            role_ref: role_ref(run, "ClusterRole", &name),
            subjects: Some(vec![subject(run, &name)]),
        };
        output.add(CreationStep::Grants, role);
        output.add(CreationStep::Grants, binding);
    }
    Ok(())
}

/// Pods that use it get no token automatically: the plan says which parts have one.
fn service_account(run: &RenderContext<'_>, word: &str, about: ObjectPurpose<'_>) -> ServiceAccount {
    ServiceAccount {
        metadata: run.namespaced_metadata(word, about),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

fn rules(rules: &[RbacRule]) -> Vec<PolicyRule> {
    let rule = |rule: &RbacRule| PolicyRule {
        api_groups: Some(rule.api_groups.clone()),
        resources: Some(rule.resources.clone()),
        verbs: rule.verbs.clone(),
        resource_names: (!rule.resource_names.is_empty()).then(|| rule.resource_names.clone()),
        non_resource_urls: None,
    };
    rules.iter().map(rule).collect()
}

fn role_ref(run: &RenderContext<'_>, kind: &str, word: &str) -> RoleRef {
    RoleRef { api_group: GROUP.to_owned(), kind: kind.to_owned(), name: run.names.with_suffix(word) }
}

fn subject(run: &RenderContext<'_>, word: &str) -> Subject {
    Subject {
        api_group: None,
        kind: "ServiceAccount".to_owned(),
        name: run.names.with_suffix(word),
        namespace: Some(run.plan.run.namespace.as_str().to_owned()),
    }
}
