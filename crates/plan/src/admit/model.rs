//! The model of a run.

use sympozium_api::Model;
use sympozium_api::agent_run::RunModel;
use sympozium_api::names::ModelRef;
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::violation::{Findings, violation};
use super::{Input, RuleContext, Subject, address};

/// Checks the model's name, its namespace and its address.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let Some(model) = &case.run.spec.model else {
        // Of two agents of one name, neither fills it in; that is reported elsewhere.
        if case.input.agents.agent.is_some() && case.input.agents.instance.is_some() {
            return;
        }
        let remedy = "set `model`, or `agents.default.model` of the agent";
        return findings.deny(&case.subject, violation("spec.model", "model-missing", "the run has no model", remedy));
    };
    check_model_name(case, "spec.model.model", &model.model, findings);
    let is_allowed = match &model.model_ref {
        Some(reference) => check_reference(case, model, reference, findings),
        None => true,
    };
    // The address of a Model that the run may not use does not matter.
    if is_allowed {
        address::check(case, model, findings);
    }
    check_headers(case, model, findings);
    check_node_selector(case, model, findings);
}

/// Checks that every entry of the node selector is a valid label.
fn check_node_selector(case: &RuleContext<'_, '_>, model: &RunModel, findings: &mut Findings) {
    for (key, value) in &model.node_selector {
        if !crate::text::is_label_key(key) || !crate::text::is_label_value(value) {
            let shown = printable(truncate(key, MAX_NAME));
            findings.deny(
                &case.subject,
                violation(
                    format!("spec.model.nodeSelector.{shown}"),
                    "node-selector",
                    format!("`{shown}` with this value is no label of a node"),
                    "write it as `kubectl get nodes --show-labels` prints it",
                ),
            );
        }
    }
}

/// Headers are sent with every request: each must be a single header, and must not hold a secret.
fn check_headers(case: &RuleContext<'_, '_>, model: &RunModel, findings: &mut Findings) {
    for (name, value) in &model.provider_headers {
        let shown = printable(truncate(name, MAX_NAME));
        let field = format!("spec.model.providerHeaders.{shown}");
        let is_name = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
        let lower = name.to_ascii_lowercase();
        if !is_name || value.chars().any(char::is_control) || FRAMING_HEADERS.contains(&lower.as_str()) {
            let message = format!("`{shown}` with this value is not one header, or one that is not for you to set");
            findings.deny(&case.subject, violation(field, "model-header", message, "remove it"));
        } else if is_credential_header(name) {
            findings.warn(
                &case.subject,
                violation(
                    field,
                    "model-header-credential",
                    format!("`{shown}` is for a credential, and every user who can read the run reads it"),
                    "put it into the Secret that `authSecretRef` or `providerHeadersSecretRef` names",
                ),
            );
        }
    }
}

/// Headers that decide where a request ends and which host it is for.
const FRAMING_HEADERS: &[&str] =
    &["connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade"];
/// Whether a header of this name, in any case, holds a credential. Matches parts of names and not a list of headers:
/// each provider has its own (`x-goog-api-key`, `ocp-apim-subscription-key`, `x-auth-token`).
pub(super) fn is_credential_header(header: &str) -> bool {
    let lower = header.to_ascii_lowercase();
    CREDENTIAL_PARTS.iter().any(|part| lower.contains(part))
}

/// Parts of the names of headers that hold credentials.
const CREDENTIAL_PARTS: &[&str] = &["auth", "cookie", "credential", "key", "password", "secret", "token"];

fn check_model_name(case: &RuleContext<'_, '_>, field: &str, name: &str, findings: &mut Findings) {
    let allowed = &case.policy.models;
    if !allowed.allows(|pattern| pattern.matches(name)) {
        findings.deny(
            &case.subject,
            violation(
                field,
                "model-not-allowed",
                format!("the policy allows the models {}, not {}", allowed.quote_members(), quote(name)),
                "choose one of them, or add it to `modelPolicy.allowedModels`",
            ),
        );
    }
}

/// A `Model` that a run names, and the namespace that it was found in.
#[derive(Debug, Clone, Copy)]
pub struct ResolvedModel<'r, 'a> {
    /// The Model object.
    pub model: &'a Model,
    /// The name of the Model.
    pub name: &'r str,
    /// The namespace of the Model.
    pub namespace: &'r str,
}

/// The `Model` of a reference: in the namespace that it names, or else in the run's, or else in the system namespace.
pub fn resolve_model<'r, 'a: 'r>(input: &Input<'a>, reference: &'r ModelRef) -> Option<ResolvedModel<'r, 'a>> {
    let named = reference.as_str().split_once('/');
    let (namespace, name) = named.unwrap_or((input.namespace, reference.as_str()));
    let own = input.models.own.map(|model| (namespace, model));
    let system = input.models.system.filter(|_| named.is_none());
    let system = system.map(|model| (input.settings.system_namespace.as_str(), model));
    let (namespace, model) = own.or(system)?;
    Some(ResolvedModel { model, name, namespace })
}

/// Checks a `Model` of the cluster: it exists, and the policy allows it and its namespace. Returns whether the
/// namespace is allowed.
fn check_reference(
    case: &RuleContext<'_, '_>,
    model: &RunModel,
    reference: &ModelRef,
    findings: &mut Findings,
) -> bool {
    let field = "spec.model.modelRef";
    let Some(found) = resolve_model(case.input, reference) else {
        let named = reference.as_str().split_once('/');
        let (namespace, name) = named.unwrap_or((case.input.namespace, reference.as_str()));
        findings.deny_missing(
            &case.subject,
            violation(
                field,
                "model-ref-missing",
                format!("there is no Model {}", quote(reference.as_str())),
                "create it, or correct the name",
            ),
            Subject::new("Model", Some(namespace), name),
        );
        return false;
    };
    let found_in = found.namespace;
    let is_allowed = case.policy.model_namespaces.covers(&found_in.to_owned());
    if !is_allowed {
        findings.deny(
            &case.subject,
            violation(
                field,
                "model-namespace",
                format!(
                    "the policy allows Models of the namespaces {}, not {}",
                    case.policy.model_namespaces.quote_members(),
                    quote(found_in)
                ),
                "choose another Model, or add the namespace to `modelPolicy.allowedNamespaces`",
            ),
        );
    }
    check_model_name(case, field, found.name, findings);
    if model.base_url.is_some() {
        let message = "`baseURL` means nothing beside `modelRef`, which has an address of its own";
        findings.warn(&case.subject, violation("spec.model.baseURL", "model-url-unused", message, "remove it"));
    }
    is_allowed
}
