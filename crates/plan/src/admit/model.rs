//! The model of a run, and the addresses of providers.

use sympozium_api::Model;
use sympozium_api::agent_run::RunModel;
use sympozium_api::names::ModelRef;

use super::finding::{Findings, told};
use super::{Case, Input, Subject, address};
use crate::host::{Destination, Endpoint};

/// The default address of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoints {
    /// This host, at this port.
    At(&'static str, u16),
    /// The run must set the address.
    Named,
    /// No address: the bridge answers itself.
    Nowhere,
}

/// The known providers. Others need `baseURL`. Hosts whose names customers choose are not listed as a provider's own:
/// any customer can be behind them.
const PROVIDERS: &[(&str, Endpoints)] = &[
    ("anthropic", Endpoints::At("api.anthropic.com", 443)),
    ("azure", Endpoints::Named),
    ("azure-openai", Endpoints::Named),
    ("bedrock", Endpoints::Named),
    ("deepseek", Endpoints::At("api.deepseek.com", 443)),
    ("gemini", Endpoints::At("generativelanguage.googleapis.com", 443)),
    ("google", Endpoints::At("generativelanguage.googleapis.com", 443)),
    ("groq", Endpoints::At("api.groq.com", 443)),
    ("llama-server", Endpoints::Named),
    ("llamacpp", Endpoints::Named),
    ("lm-studio", Endpoints::Named),
    ("local", Endpoints::Named),
    ("mistral", Endpoints::At("api.mistral.ai", 443)),
    ("ollama", Endpoints::At("ollama.default.svc", 11434)),
    ("openai", Endpoints::At("api.openai.com", 443)),
    ("openrouter", Endpoints::At("openrouter.ai", 443)),
    ("scripted", Endpoints::Nowhere),
    ("unsloth", Endpoints::Named),
    ("vllm", Endpoints::Named),
];

impl Endpoints {
    /// The address of a provider; case is ignored.
    pub fn of(provider: &str) -> Self {
        let found = PROVIDERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(provider));
        found.map_or(Self::Named, |(_, endpoints)| *endpoints)
    }

    /// Whether an address is the provider's own.
    pub(super) fn include(self, endpoint: &Endpoint) -> bool {
        let Self::At(host, port) = self else {
            return false;
        };
        let is_it = Destination::parse(host, Some(port)).is_ok_and(|own| own.allows(&endpoint.host, endpoint.port));
        is_it && (endpoint.encrypted || port != 443)
    }
}

/// Checks the model's name, its namespace and its address.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    let Some(model) = &case.run.spec.model else {
        // Of two agents of one name, neither fills it in; that is reported elsewhere.
        if case.input.agents.agent.is_some() && case.input.agents.instance.is_some() {
            return;
        }
        let remedy = "set `model`, or `agents.default.model` of the agent";
        return findings.deny(&case.subject, told("spec.model", "model-missing", "the run has no model", remedy));
    };
    check_name(case, "spec.model.model", &model.model, findings);
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
fn check_node_selector(case: &Case<'_, '_>, model: &RunModel, findings: &mut Findings) {
    for (key, value) in &model.node_selector {
        if !crate::text::is_label_key(key) || !crate::text::is_label_value(value) {
            let shown = crate::text::shown(key);
            findings.deny(
                &case.subject,
                told(
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
fn check_headers(case: &Case<'_, '_>, model: &RunModel, findings: &mut Findings) {
    for (name, value) in &model.provider_headers {
        let shown = crate::text::shown(name);
        let field = format!("spec.model.providerHeaders.{shown}");
        let is_name =
            !name.is_empty() && name.bytes().all(|it| it.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&it));
        let lower = name.to_ascii_lowercase();
        if !is_name || value.chars().any(char::is_control) || FRAMING.contains(&lower.as_str()) {
            let message = format!("`{shown}` with this value is not one header, or one that is not for you to set");
            findings.deny(&case.subject, told(field, "model-header", message, "remove it"));
        } else if is_credential(name) {
            findings.warn(
                &case.subject,
                told(
                    field,
                    "model-header-credential",
                    format!("`{shown}` is for a credential, and everybody who can read the run reads it"),
                    "put it into the Secret that `authSecretRef` or `providerHeadersSecretRef` names",
                ),
            );
        }
    }
}

/// Headers that decide where a request ends and which host it is for.
const FRAMING: &[&str] = &["connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade"];
/// Whether a header of this name, in any case, holds a credential. Matches parts of names and not a list of headers:
/// each provider has its own (`x-goog-api-key`, `ocp-apim-subscription-key`, `x-auth-token`).
pub(super) fn is_credential(header: &str) -> bool {
    let lower = header.to_ascii_lowercase();
    CREDENTIAL_PARTS.iter().any(|part| lower.contains(part))
}

/// Parts of the names of headers that hold credentials.
const CREDENTIAL_PARTS: &[&str] = &["auth", "cookie", "credential", "key", "password", "secret", "token"];

fn check_name(case: &Case<'_, '_>, field: &str, name: &str, findings: &mut Findings) {
    let allowed = &case.policy.models;
    if !allowed.allows(|pattern| pattern.is_about(name)) {
        findings.deny(
            &case.subject,
            told(
                field,
                "model-not-allowed",
                format!("the policy allows the models {}, not `{}`", allowed.listed_text(), crate::text::shown(name)),
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
pub fn resolved_model<'r, 'a: 'r>(input: &Input<'a>, reference: &'r ModelRef) -> Option<ResolvedModel<'r, 'a>> {
    let named = reference.as_str().split_once('/');
    let (namespace, name) = named.unwrap_or((input.namespace, reference.as_str()));
    let own = input.models.own.map(|it| (namespace, it));
    let system = input.models.system.filter(|_| named.is_none());
    let system = system.map(|it| (input.settings.system_namespace.as_str(), it));
    let (namespace, model) = own.or(system)?;
    Some(ResolvedModel { model, name, namespace })
}

/// Checks a `Model` of the cluster: it exists, and the policy allows it and its namespace. Returns whether the
/// namespace is allowed.
fn check_reference(case: &Case<'_, '_>, model: &RunModel, reference: &ModelRef, findings: &mut Findings) -> bool {
    let field = "spec.model.modelRef";
    let Some(found) = resolved_model(case.input, reference) else {
        let named = reference.as_str().split_once('/');
        let (namespace, name) = named.unwrap_or((case.input.namespace, reference.as_str()));
        findings.deny_missing(
            &case.subject,
            told(
                field,
                "model-ref-missing",
                format!("there is no Model `{}`", crate::text::shown(reference.as_str())),
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
            told(
                field,
                "model-namespace",
                format!(
                    "the policy allows Models of the namespaces {}, not `{}`",
                    case.policy.model_namespaces.listed_text(),
                    crate::text::shown(found_in)
                ),
                "choose another Model, or add the namespace to `modelPolicy.allowedNamespaces`",
            ),
        );
    }
    check_name(case, field, found.name, findings);
    if model.base_url.is_some() {
        let message = "`baseURL` means nothing beside `modelRef`, which has an address of its own";
        findings.warn(&case.subject, told("spec.model.baseURL", "model-url-unused", message, "remove it"));
    }
    is_allowed
}
