//! The model of a run: its address, its wire format, and the variables of the bridge that hold its key.

use sympozium_api::agent_run::RunModel;
use sympozium_api::names::{EnvName, ObjectName, SecretName};
use sympozium_api::provider::{CUSTOM, DefaultEndpoint, GENERIC_KEY_VARIABLE, Provider};
use sympozium_api::run_plan::{ModelEndpoint, ModelKey, ModelPlan, WireFormat};

use crate::admit::{AddressSource, Admitted, Input, ModelAddress, model_address};

/// Plans the model of a run.
pub fn plan(input: &Input<'_>, admitted: &Admitted<'_>) -> ModelPlan {
    let nothing = RunModel::default();
    // Admission denies a run without a model.
    let model = admitted.run.spec.model.as_ref().unwrap_or(&nothing);
    let provider = Provider::find(&model.provider);
    let wire = provider.wire;
    let scripted = provider.endpoint == DefaultEndpoint::Internal && model.model_ref.is_none();
    ModelPlan {
        provider: model.provider.clone(),
        model: model.model.clone(),
        wire,
        endpoint: endpoint(input, model, provider, wire),
        thinking: model.thinking.clone(),
        headers: model.provider_headers.clone(),
        headers_secret: model.provider_headers_secret_ref.clone(),
        keys: keys(model, provider),
        key_header: Some(provider.key_header).filter(|header| *header != wire.key_header()),
        ask_for_usage: Some(provider.asks_for_usage).filter(|asks| *asks != wire.asks_for_usage()),
        script: scripted.then(|| ObjectName::new(model.model.clone())),
    }
}

/// One variable for the provider's key and one for a key without a provider; nothing else of the Secret is read.
fn keys(model: &RunModel, provider: &Provider) -> Vec<ModelKey> {
    let secret = model.auth_secret_ref.as_ref().map(|auth_secret_ref| auth_secret_ref.as_str());
    let Some(secret) = secret.filter(|secret| !secret.is_empty()) else {
        return Vec::new();
    };
    let key = |variable: &str| ModelKey { variable: EnvName::new(variable), secret: SecretName::new(secret) };
    vec![key(provider.key_variable), key(GENERIC_KEY_VARIABLE)]
}

/// The address that admission has resolved. A scripted model is inside the bridge and has none.
fn endpoint(input: &Input<'_>, model: &RunModel, provider: &Provider, wire: WireFormat) -> Option<ModelEndpoint> {
    let ModelAddress { endpoint, source } = model_address(input, model)?.ok()?;
    // Models that a cluster serves have the API of OpenAI.
    let (usual_path, wire) = match source {
        AddressSource::Service { .. } | AddressSource::Status => (CUSTOM.base_path, CUSTOM.wire),
        AddressSource::BaseUrl | AddressSource::Provider => (provider.base_path, wire),
    };
    let (path, query) = endpoint
        .path
        .split_once('?')
        .map_or_else(|| (endpoint.path.as_str(), String::new()), |(path, query)| (path, format!("?{query}")));
    let base = match path.trim_end_matches('/') {
        "" => usual_path,
        base => base,
    };
    Some(ModelEndpoint {
        encrypted: endpoint.encrypted,
        host: endpoint.host.to_string(),
        port: endpoint.port,
        path: request_path(base, &query, wire),
    })
}

fn request_path(base: &str, query: &str, wire: WireFormat) -> String {
    let operation = match wire {
        WireFormat::OpenAi => "/chat/completions",
        WireFormat::Anthropic if base.ends_with("/v1") => "/messages",
        WireFormat::Anthropic => "/v1/messages",
    };
    format!("{base}{operation}{query}")
}
