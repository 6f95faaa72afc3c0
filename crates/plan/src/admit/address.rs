//! The address that the requests of a run's model go to, with its key. One function resolves it, for admission and for
//! the plan.

use sympozium_api::agent_run::RunModel;
use sympozium_api::provider::{DefaultEndpoint, Provider};
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::model::{ResolvedModel, is_credential_header, resolve_model};
use super::violation::{Findings, violation};
use super::{Input, RuleContext};
use crate::host::{Endpoint, Host, InvalidHost};

/// The address of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAddress {
    /// Where requests go.
    pub endpoint: Endpoint,
    /// Which field or object sets the address.
    pub source: AddressSource,
}

/// What sets the address of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressSource {
    /// The run, in `baseURL`.
    BaseUrl,
    /// The provider has one address for all customers.
    Provider,
    /// The Service of a `Model` in this namespace.
    Service {
        /// The namespace of the `Model`.
        namespace: String,
    },
    /// The status of a `Model`.
    Status,
}

/// The address of a run's model. `None` where it has none: a scripted model, or a missing `Model` or `baseURL`.
///
/// # Errors
///
/// When the configured address is not a URL.
pub fn model_address(input: &Input<'_>, model: &RunModel) -> Option<Result<ModelAddress, InvalidHost>> {
    if let Some(reference) = &model.model_ref {
        let found = resolve_model(input, reference)?;
        return Some(served_address(&found));
    }
    let at = |endpoint, source| ModelAddress { endpoint, source };
    if let Some(url) = &model.base_url {
        return Some(Endpoint::parse(url).map(|endpoint| at(endpoint, AddressSource::BaseUrl)));
    }
    match Provider::find(&model.provider).endpoint {
        DefaultEndpoint::Fixed(host, port) => {
            let endpoint = |host: Host| Endpoint { encrypted: port == 443, host, port, path: String::new() };
            Some(Host::parse(host).map(|host| at(endpoint(host), AddressSource::Provider)))
        }
        DefaultEndpoint::Required | DefaultEndpoint::Internal => None,
    }
}

/// The URL of a `Model`: the one in its status, or else its Service at the port of its spec.
pub fn model_url(found: &ResolvedModel<'_, '_>) -> String {
    let status = found.model.status.as_ref();
    let known = status.and_then(|status| status.endpoint.clone());
    known.unwrap_or_else(|| service_url(found))
}

fn service_url(found: &ResolvedModel<'_, '_>) -> String {
    let port = found.model.spec.inference.port();
    let (name, namespace) = (found.name, found.namespace);
    format!("http://model-{name}.{namespace}.svc:{port}/v1")
}

fn served_address(found: &ResolvedModel<'_, '_>) -> Result<ModelAddress, InvalidHost> {
    let endpoint = Endpoint::parse(&model_url(found))?;
    let service = Endpoint::parse(&service_url(found))?;
    // A Model whose name has dots would lead to the Service of another name.
    let is_service = service.host.is_service() && (&service.host, service.port) == (&endpoint.host, endpoint.port);
    let source = if is_service {
        AddressSource::Service { namespace: found.namespace.to_owned() }
    } else {
        AddressSource::Status
    };
    Ok(ModelAddress { endpoint, source })
}

/// Checks that requests, and the model key with them, may go to the model's address.
pub fn check(case: &RuleContext<'_, '_>, model: &RunModel, findings: &mut Findings) {
    let provider = Provider::find(&model.provider);
    let field = match (&model.model_ref, &model.base_url) {
        (Some(_), _) => "spec.model.modelRef",
        (None, Some(_)) => "spec.model.baseURL",
        (None, None) => "spec.model.authSecretRef",
    };
    let address = match model_address(case.input, model) {
        Some(Ok(address)) => address,
        Some(Err(error)) => {
            let message = format!("the address cannot be used: {error}");
            let remedy = "write it as `https://host/path`, with credentials in `authSecretRef`";
            return findings.deny(&case.subject, violation(field, "model-url", message, remedy));
        }
        // A missing Model is reported elsewhere.
        None if model.model_ref.is_none() && provider.endpoint == DefaultEndpoint::Required => {
            return findings.deny(
                &case.subject,
                violation(
                    "spec.model.baseURL",
                    "model-url-missing",
                    format!("no address is known for provider {}", quote(&model.provider)),
                    "set `baseURL`, or correct `provider`",
                ),
            );
        }
        None => return,
    };
    let Endpoint { host, port, encrypted, .. } = &address.endpoint;
    if host.is_metadata() {
        let message = format!("`{host}` answers with the credentials of the machine");
        findings.deny(&case.subject, violation(field, "model-url-link-local", message, "use the provider's address"));
    }
    let policy = case.policy;
    let is_listed = policy.model_endpoints.allows(|model_endpoint| model_endpoint.allows(host, *port))
        && policy.egress.allows(host, *port);
    let is_opened_service = match &address.source {
        AddressSource::Service { namespace } => {
            *namespace == case.input.settings.system_namespace || policy.model_services.covers(namespace)
        }
        _ => false,
    };
    let may = is_listed || is_opened_service || provider.owns_endpoint(&host.to_string(), *port, *encrypted);
    if policy.has_policy && !may {
        let (message, remedy) = denial_text(&address, model);
        findings.deny(&case.subject, violation(field, "model-endpoint", message, remedy));
    }
    if *encrypted || !sends_secret(model) || host.is_loopback() {
        return;
    }
    if !host.is_service() {
        findings.deny(
            &case.subject,
            violation(
                field,
                "model-url-plain",
                format!("the key would go to `{host}:{port}` unencrypted"),
                "use `https://`, or leave the key out",
            ),
        );
    // The authors of Services in a namespace decide what a Service leads to: a policy must allow that it gets the key.
    } else if !is_listed && !is_opened_service {
        findings.deny(
            &case.subject,
            violation(
                field,
                "model-service-plain",
                format!("the key would go to `{host}:{port}` unencrypted, and no policy opens that Service"),
                "leave the key out, or add host and port to `networkPolicy.allowedEgress`",
            ),
        );
    }
}

/// Whether requests carry a secret. A credential that is written into the run itself counts too: it is sent all the
/// same.
fn sends_secret(model: &RunModel) -> bool {
    let key = model.auth_secret_ref.as_ref();
    key.is_some_and(|key| !key.as_str().is_empty())
        || model.provider_headers_secret_ref.is_some()
        || model.provider_headers.keys().any(|header| is_credential_header(header))
}

/// Why an address is denied, and what to do.
fn denial_text(address: &ModelAddress, model: &RunModel) -> (String, String) {
    let Endpoint { host, port, .. } = &address.endpoint;
    match &address.source {
        AddressSource::Service { namespace } => {
            let namespace = printable(truncate(namespace, MAX_NAME));
            (
                format!("the policy opens neither Models of namespace `{namespace}` nor `{host}:{port}`"),
                format!(
                    "add `{namespace}` to `modelPolicy.allowedNamespaces` of the agent's policy, and of the floor if that has a list or `denyAll`"
                ),
            )
        }
        AddressSource::Status => (
            format!("the Model is at `{host}:{port}`, which the policy does not list"),
            "add host and port to `networkPolicy.allowedEgress`".to_owned(),
        ),
        AddressSource::BaseUrl | AddressSource::Provider => (
            format!(
                "`{host}:{port}` is not an address of provider {}, and the policy does not list it",
                quote(&model.provider)
            ),
            "remove `baseURL`, or add host and port to `networkPolicy.allowedEgress`".to_owned(),
        ),
    }
}
