//! The model of a run: its address, its wire format, and the variables of the bridge that hold its key.

use sympozium_api::agent_run::RunModel;
use sympozium_api::names::{EnvName, ObjectName, SecretName};
use sympozium_api::run_plan::{ModelEndpoint, ModelKey, ModelPlan, WireFormat};

use crate::admit::{AddressSource, Admitted, Input, ModelAddress, model_address};

/// What differs between providers: the wire format, the path of the API, and the variable of the key.
struct Provider {
    name: &'static str,
    wire: WireFormat,
    base_path: &'static str,
    key: &'static str,
}

const PROVIDERS: &[Provider] = &[
    Provider { wire: WireFormat::Anthropic, ..openai_compatible("anthropic", "", "ANTHROPIC_API_KEY") },
    openai_compatible("azure", "/openai/v1", "AZURE_OPENAI_API_KEY"),
    openai_compatible("azure-openai", "/openai/v1", "AZURE_OPENAI_API_KEY"),
    openai_compatible("deepseek", "/v1", "DEEPSEEK_API_KEY"),
    openai_compatible("gemini", "/v1beta/openai", "GOOGLE_API_KEY"),
    openai_compatible("google", "/v1beta/openai", "GOOGLE_API_KEY"),
    openai_compatible("groq", "/openai/v1", "GROQ_API_KEY"),
    openai_compatible("mistral", "/v1", "MISTRAL_API_KEY"),
    openai_compatible("openrouter", "/api/v1", "OPENROUTER_API_KEY"),
];
/// All other providers have the API of OpenAI.
const DEFAULT_PROVIDER: Provider = openai_compatible("openai", "/v1", "OPENAI_API_KEY");
/// The key in a Secret that is not for a particular provider.
const GENERIC_KEY: &str = "API_KEY";
/// The provider whose answers come from a script.
const SCRIPTED: &str = "scripted";

/// A provider with the wire format of OpenAI.
const fn openai_compatible(name: &'static str, base_path: &'static str, key: &'static str) -> Provider {
    Provider { name, wire: WireFormat::OpenAi, base_path, key }
}

/// Plans the model of a run.
pub fn plan(input: &Input<'_>, admitted: &Admitted<'_>) -> ModelPlan {
    let nothing = RunModel::default();
    // Admission denies a run without a model.
    let model = admitted.run.spec.model.as_ref().unwrap_or(&nothing);
    let is = |provider: &&Provider| provider.name.eq_ignore_ascii_case(&model.provider);
    let provider = PROVIDERS.iter().find(is).unwrap_or(&DEFAULT_PROVIDER);
    let wire = provider.wire;
    let scripted = model.provider.eq_ignore_ascii_case(SCRIPTED) && model.model_ref.is_none();
    ModelPlan {
        provider: model.provider.clone(),
        model: model.model.clone(),
        wire,
        endpoint: endpoint(input, model, provider, wire),
        thinking: model.thinking.clone(),
        headers: model.provider_headers.clone(),
        headers_secret: model.provider_headers_secret_ref.clone(),
        keys: keys(model, provider),
        script: scripted.then(|| ObjectName::new(model.model.clone())),
    }
}

/// One variable for the provider's key and one for a key without a provider; nothing else of the Secret is read.
fn keys(model: &RunModel, provider: &Provider) -> Vec<ModelKey> {
    let secret = model.auth_secret_ref.as_ref().map(|it| it.as_str());
    let Some(secret) = secret.filter(|it| !it.is_empty()) else {
        return Vec::new();
    };
    let key = |variable: &str| ModelKey { variable: EnvName::new(variable), secret: SecretName::new(secret) };
    vec![key(provider.key), key(GENERIC_KEY)]
}

/// The address that admission has resolved. A scripted model is inside the bridge and has none.
fn endpoint(input: &Input<'_>, model: &RunModel, provider: &Provider, wire: WireFormat) -> Option<ModelEndpoint> {
    let ModelAddress { endpoint, source } = model_address(input, model)?.ok()?;
    // Models that a cluster serves have the API of OpenAI.
    let (usual_path, wire) = match source {
        AddressSource::Service { .. } | AddressSource::Status => (DEFAULT_PROVIDER.base_path, WireFormat::OpenAi),
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
