//! The model of a run, and where its requests go.

use sympozium_api::Model;
use sympozium_api::agent_run::RunModel;
use sympozium_api::names::ModelRef;

use super::finding::{Findings, told};
use super::{Case, Input, Subject};
use crate::host::{Destination, Endpoint};

/// Where a provider's requests go when nobody says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoints {
    /// To these hosts, at this port.
    At(&'static str, u16),
    /// To an address that the run must name.
    Named,
    /// Nowhere: the bridge answers itself.
    Nowhere,
}

/// The providers that are known. Others need `baseURL`. Of hosts that a provider lets its customers name, none is its own:
/// anybody can be behind them.
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
    /// Those of a provider, in any case.
    pub fn of(provider: &str) -> Self {
        let found = PROVIDERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(provider));
        found.map_or(Self::Named, |(_, endpoints)| *endpoints)
    }

    /// Whether an address is one of the provider's own.
    fn include(self, endpoint: &Endpoint) -> bool {
        let Self::At(host, port) = self else {
            return false;
        };
        let is_it = Destination::parse(host, Some(port)).is_ok_and(|own| own.allows(&endpoint.host, endpoint.port));
        is_it && (endpoint.encrypted || port != 443)
    }
}

/// Names, namespaces, addresses.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    let Some(model) = &case.run.spec.model else {
        // Of two agents of one name neither fills it in; that is said already.
        if case.input.agents.agent.is_some() && case.input.agents.instance.is_some() {
            return;
        }
        let remedy = "set `model`, or `agents.default.model` of the agent";
        return findings.deny(&case.subject, told("spec.model", "model-missing", "the run has no model", remedy));
    };
    match &model.model_ref {
        Some(reference) => check_reference(case, model, reference, findings),
        None => {
            check_name(case, "spec.model.model", &model.model, findings);
            check_endpoint(case, model, findings);
        }
    }
    check_headers(case, model, findings);
    check_node_selector(case, model, findings);
}

/// That every label of a node is one.
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

/// Headers go out with every request: each is one header, and none is a place for a secret.
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
        } else if CREDENTIALS.contains(&lower.as_str()) {
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

/// Headers that say where a request ends and whom it is for.
const FRAMING: &[&str] = &["connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade"];
/// Headers that hold credentials.
const CREDENTIALS: &[&str] = &["api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"];

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

/// A `Model` that a run names, and where it was found.
#[derive(Debug, Clone, Copy)]
pub struct ResolvedModel<'r, 'a> {
    /// The model.
    pub model: &'a Model,
    /// Its name.
    pub name: &'r str,
    /// Its namespace.
    pub namespace: &'r str,
}

/// The `Model` that a reference means: in the namespace that it names, or else in the run's own, or else in the system's.
pub fn resolved_model<'r, 'a: 'r>(input: &Input<'a>, reference: &'r ModelRef) -> Option<ResolvedModel<'r, 'a>> {
    let named = reference.as_str().split_once('/');
    let (namespace, name) = named.unwrap_or((input.namespace, reference.as_str()));
    let own = input.models.own.map(|it| (namespace, it));
    let system = input.models.system.filter(|_| named.is_none());
    let system = system.map(|it| (input.settings.system_namespace.as_str(), it));
    let (namespace, model) = own.or(system)?;
    Some(ResolvedModel { model, name, namespace })
}

/// A `Model` of the cluster: that it is there, and that the policy allows it and its namespace.
fn check_reference(case: &Case<'_, '_>, model: &RunModel, reference: &ModelRef, findings: &mut Findings) {
    let field = "spec.model.modelRef";
    let Some(found) = resolved_model(case.input, reference) else {
        let named = reference.as_str().split_once('/');
        let (namespace, name) = named.unwrap_or((case.input.namespace, reference.as_str()));
        return findings.deny_missing(
            &case.subject,
            told(
                field,
                "model-ref-missing",
                format!("there is no Model `{}`", crate::text::shown(reference.as_str())),
                "create it, or correct the name",
            ),
            Subject::new("Model", Some(namespace), name),
        );
    };
    let found_in = found.namespace;
    if !case.policy.model_namespaces.covers(&found_in.to_owned()) {
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
}

fn check_endpoint(case: &Case<'_, '_>, model: &RunModel, findings: &mut Findings) {
    let field = "spec.model.baseURL";
    let own = Endpoints::of(&model.provider);
    let Some(url) = &model.base_url else {
        if own == Endpoints::Named {
            findings.deny(
                &case.subject,
                told(
                    field,
                    "model-url-missing",
                    format!("no address is known for provider `{}`", crate::text::shown(&model.provider)),
                    "set `baseURL`, or correct `provider`",
                ),
            );
        }
        return;
    };
    let endpoint = match Endpoint::parse(url) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let message = format!("the address cannot be used: {error}");
            let remedy = "write it as `https://host/path`, with credentials in `authSecretRef`";
            return findings.deny(&case.subject, told(field, "model-url", message, remedy));
        }
    };
    let Endpoint { host, port, encrypted, .. } = &endpoint;
    if host.is_metadata() {
        let message = format!("`{host}` answers with the credentials of the machine");
        findings.deny(&case.subject, told(field, "model-url-link-local", message, "use the provider's address"));
    }
    let policy = case.policy;
    let is_listed = policy.endpoints.allows(|it| it.allows(host, *port));
    let may = own.include(&endpoint) || (is_listed && policy.reach.reaches(host, *port));
    if policy.bound && !may {
        findings.deny(
            &case.subject,
            told(
                field,
                "model-endpoint",
                format!(
                    "`{host}:{port}` is not an address of provider `{}`, and the policy does not list it",
                    crate::text::shown(&model.provider)
                ),
                "remove `baseURL`, or add host and port to `networkPolicy.allowedEgress`",
            ),
        );
    }
    let has_key = model.auth_secret_ref.as_ref().is_some_and(|it| !it.as_str().is_empty());
    if !encrypted && has_key && host.is_public() {
        findings.warn(
            &case.subject,
            told(field, "model-url-plain", "the key goes over the network unencrypted", "use `https://`"),
        );
    }
}
