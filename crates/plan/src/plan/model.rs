//! The model of a run: where it answers, how it is spoken to, and which variables of the bridge have its key.

use sympozium_api::agent_run::RunModel;
use sympozium_api::names::{EnvName, ObjectName, SecretName};
use sympozium_api::run_plan::{ModelEndpoint, ModelKey, ModelPlan, WireFormat};

use crate::admit::{AddressSource, Admitted, Input, ModelAddress, model_address};

/// What is not the same for every provider: how it is spoken to, the path of its API, and the variable of its key.
struct Provider {
    name: &'static str,
    wire: WireFormat,
    base_path: &'static str,
    key: &'static str,
}

const PROVIDERS: &[Provider] = &[
    Provider { wire: WireFormat::Anthropic, ..of("anthropic", "", "ANTHROPIC_API_KEY") },
    of("azure", "/openai/v1", "AZURE_OPENAI_API_KEY"),
    of("azure-openai", "/openai/v1", "AZURE_OPENAI_API_KEY"),
    of("deepseek", "/v1", "DEEPSEEK_API_KEY"),
    of("gemini", "/v1beta/openai", "GOOGLE_API_KEY"),
    of("google", "/v1beta/openai", "GOOGLE_API_KEY"),
    of("groq", "/openai/v1", "GROQ_API_KEY"),
    of("mistral", "/v1", "MISTRAL_API_KEY"),
    of("openrouter", "/api/v1", "OPENROUTER_API_KEY"),
];
/// All others speak as OpenAI does.
const USUAL: Provider = of("openai", "/v1", "OPENAI_API_KEY");
/// A key in a Secret that is for no provider in particular.
const ANY_KEY: &str = "API_KEY";
/// The provider whose answers are written down.
const SCRIPTED: &str = "scripted";

/// One that speaks as OpenAI does.
const fn of(name: &'static str, base_path: &'static str, key: &'static str) -> Provider {
    Provider { name, wire: WireFormat::OpenAi, base_path, key }
}

/// The model of a run.
pub fn plan(input: &Input<'_>, admitted: &Admitted<'_>) -> ModelPlan {
    let nothing = RunModel::default();
    // Admission denies a run without one.
    let model = admitted.run.spec.model.as_ref().unwrap_or(&nothing);
    let is = |provider: &&Provider| provider.name.eq_ignore_ascii_case(&model.provider);
    let provider = PROVIDERS.iter().find(is).unwrap_or(&USUAL);
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

/// One variable for the provider's key and one for a key that names no provider; nothing else of the Secret is seen.
fn keys(model: &RunModel, provider: &Provider) -> Vec<ModelKey> {
    let secret = model.auth_secret_ref.as_ref().map(|it| it.as_str());
    let Some(secret) = secret.filter(|it| !it.is_empty()) else {
        return Vec::new();
    };
    let key = |variable: &str| ModelKey { variable: EnvName::new(variable), secret: SecretName::new(secret) };
    vec![key(provider.key), key(ANY_KEY)]
}

/// Where admission has found that the model is. A scripted one is inside the bridge.
fn endpoint(input: &Input<'_>, model: &RunModel, provider: &Provider, wire: WireFormat) -> Option<ModelEndpoint> {
    let ModelAddress { endpoint, source } = model_address(input, model)?.ok()?;
    // What a cluster serves speaks as OpenAI does.
    let (usual_path, wire) = match source {
        AddressSource::Service { .. } | AddressSource::Status => (USUAL.base_path, WireFormat::OpenAi),
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
