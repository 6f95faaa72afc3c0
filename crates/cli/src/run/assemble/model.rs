//! The model of a run if no manifest names one, and the egress that it needs.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};
use sympozium_api::names::SecretName;
use sympozium_api::provider::{DefaultEndpoint, PROVIDERS, Provider};
use sympozium_manifests::load::{Budget, load};
use sympozium_manifests::tree::{Node, Value as NodeValue};
use sympozium_plan::host::{AddressRange, Endpoint, Host};

use crate::failure::Failure;
use crate::run::arguments::RunArguments;
use sympozium_api::text::quote;
use sympozium_local::keys::{EnvLookup, is_in_environment};
use sympozium_local::state::{is_exclusively_ours, read_bounded};

/// Bytes of `config.yaml`.
const MAX_CONFIG_BYTES: u64 = 64 << 10;
/// The Secret with the key of a provider whose name cannot be part of a Secret's name.
pub const ANY_KEY_SECRET: &str = "model-key";

/// A model that the user chose, on the command line or in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChoice {
    pub provider: String,
    /// The provider's name for it.
    pub model: String,
    /// `None` for the provider's own address.
    pub base_url: Option<String>,
}

impl ModelChoice {
    /// A model by `provider/model`. A local server without `base_url` gets its default address.
    pub fn new(name: &str, base_url: Option<&str>) -> Self {
        let (provider, model) = name.split_once('/').unwrap_or((name, ""));
        let base_url = base_url.or(Provider::find(provider).local_url);
        Self { provider: provider.to_owned(), model: model.to_owned(), base_url: base_url.map(str::to_owned) }
    }

    /// The model of a run that no manifest describes: from the flags, the configuration or the environment. If there is
    /// none, the hint lists the ways to name one.
    pub fn resolve_default(
        arguments: &RunArguments,
        configuration: Option<&Path>,
        environment: &EnvLookup<'_>,
    ) -> Result<Self, Failure> {
        let base_url = arguments.base_url.as_deref();
        if let Some(name) = &arguments.model {
            return Ok(Self::new(name, base_url));
        }
        let configured = configuration.map_or(Ok(ConfigFile::default()), ConfigFile::read);
        let configured = configured
            .map_err(|error| Failure::new(error, "it may have `model: provider/model` and `baseURL: URL`"))?;
        if let Some(name) = &configured.model {
            let base_url = base_url.or(configured.base_url.as_deref());
            return Ok(Self::new(name, base_url));
        }
        let has_key = |(provider, _): &(&Provider, &str)| is_in_environment(provider.key_variable, environment);
        let found: Vec<_> = with_default_model().filter(has_key).collect();
        match found.as_slice() {
            [(provider, model)] => Ok(Self::new(&format!("{}/{model}", provider.name), base_url)),
            found => Err(no_model(found.len())),
        }
    }

    /// The `model` of an AgentRun.
    pub fn to_json(&self, secret: Option<&str>) -> Value {
        let mut model = json!({"provider": self.provider, "model": self.model});
        if let Some(url) = &self.base_url {
            model["baseURL"] = json!(url);
        }
        if let Some(secret) = secret {
            model["authSecretRef"] = json!(secret);
        }
        model
    }

    /// The name of the Secret with its key.
    pub fn secret_name(&self) -> String {
        let name = format!("{}-key", self.provider.to_ascii_lowercase());
        match SecretName::from(name.as_str()).check() {
            Ok(()) => name,
            Err(_) => ANY_KEY_SECRET.to_owned(),
        }
    }

    /// Whether it is at its provider's own address, which requires a key.
    pub fn needs_key(&self) -> bool {
        self.base_url.is_none() && matches!(Provider::find(&self.provider).endpoint, DefaultEndpoint::Fixed(..))
    }

    /// Whether it is served on this machine, and the environment has a key for its provider.
    pub fn has_local_key(&self, environment: &EnvLookup<'_>) -> bool {
        let mut known = with_default_model();
        let variable = known.find(|(row, _)| row.is_named(&self.provider)).map(|(row, _)| row.key_variable);
        let url = self.base_url.as_deref().and_then(|url| Endpoint::parse(url).ok());
        url.is_some_and(|url| is_local_host(&url.host)) && variable.is_some_and(|it| is_in_environment(it, environment))
    }
}

/// The egress rule for a model at this address; `None` if the address is invalid, which admission reports.
pub fn egress_rule(url: &str) -> Option<Value> {
    let Endpoint { host, port, .. } = Endpoint::parse(url).ok()?;
    // An egress rule cannot express IPv6 addresses.
    let is_listable = !matches!(host, Host::Address(std::net::IpAddr::V6(_)));
    is_listable.then(|| json!({"host": host.to_string(), "port": port}))
}

pub fn is_local_host(host: &Host) -> bool {
    match host {
        Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        Host::Address(address) => AddressRange::from_address(*address) == AddressRange::Loopback,
    }
}

/// The providers that are used if their key is the only one in the environment, each with its model.
fn with_default_model() -> impl Iterator<Item = (&'static Provider, &'static str)> {
    PROVIDERS.iter().filter_map(|provider| Some((provider, provider.default_model?)))
}

fn no_model(keys: usize) -> Failure {
    let variables: Vec<&str> = with_default_model().map(|(provider, _)| provider.key_variable).collect();
    let error = match keys {
        0 => anyhow!("no model is named, and neither {} is set", variables.join(" nor ")),
        _ => anyhow!("no model is named, and keys of several providers are set"),
    };
    let hint = "set the key of one provider, or name a model: --model openai/gpt-4o, --model ollama/qwen3 for one on this machine; \
        `sympozium demo` needs none";
    Failure::new(error, hint)
}

/// `CONFIG/config.yaml`.
#[derive(Debug, Default, PartialEq, Eq)]
struct ConfigFile {
    model: Option<String>,
    base_url: Option<String>,
}

impl ConfigFile {
    fn read(configuration: &Path) -> anyhow::Result<Self> {
        let path = configuration.join("config.yaml");
        let Ok(found) = std::fs::metadata(&path) else {
            return Ok(Self::default());
        };
        // This file decides where the key is sent.
        if !is_exclusively_ours(&found) {
            bail!("{} belongs to another user, or others may write to it", path.display());
        }
        let bytes = read_bounded(&path, MAX_CONFIG_BYTES)?;
        let read = String::from_utf8(bytes).context("it is not UTF-8 text");
        let read = read.and_then(|text| Self::parse(&text));
        read.with_context(|| format!("cannot use {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let loaded = load(text, &mut Budget::default());
        if let Some(problem) = loaded.problems.items.first() {
            bail!("line {}: {}", problem.at.line, problem.message);
        }
        let mut configured = Self::default();
        let mut documents = loaded.documents.into_iter();
        let Some(document) = documents.next() else {
            return Ok(configured);
        };
        let (NodeValue::Map(entries), None) = (document.value, documents.next()) else {
            bail!("it must be one object");
        };
        for entry in entries {
            let Some(text) = Node::as_text(&entry.node).map(str::to_owned) else {
                bail!("line {}: {} must be a string", entry.at.line, quote(&entry.key));
            };
            match entry.key.as_str() {
                "model" if text.split_once('/').is_none_or(|(a, b)| a.is_empty() || b.is_empty()) => {
                    bail!("line {}: `model` must be `provider/model`", entry.at.line)
                }
                "model" => configured.model = Some(text),
                "baseURL" => configured.base_url = Some(text),
                other => bail!("line {}: there is no setting {}", entry.at.line, quote(other)),
            }
        }
        Ok(configured)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn arguments(typed: &[&str]) -> Box<RunArguments> {
        let all = ["sympozium", "run"].into_iter().chain(typed.to_vec());
        match Arguments::try_parse_from(all).unwrap().command {
            Command::Run(arguments) => arguments,
            _ => panic!("another command"),
        }
    }

    fn usual(typed: &[&str], config: Option<&str>, variables: &[&str]) -> Result<ModelChoice, String> {
        let directory = tempfile::tempdir().unwrap();
        if let Some(text) = config {
            std::fs::write(directory.path().join("config.yaml"), text).unwrap();
        }
        let environment = |name: &str| variables.contains(&name).then(|| OsString::from("sk-x"));
        let usual = ModelChoice::resolve_default(&arguments(typed), Some(directory.path()), &environment);
        usual.map_err(|failure| failure.text())
    }

    fn choice(provider: &str, model: &str, base_url: Option<&str>) -> Result<ModelChoice, String> {
        Ok(ModelChoice {
            provider: provider.to_owned(),
            model: model.to_owned(),
            base_url: base_url.map(str::to_owned),
        })
    }

    #[test]
    fn the_command_line_comes_first_then_the_configuration_then_the_environment() {
        let config = Some("model: groq/llama\n");
        let all = &["OPENAI_API_KEY"][..];
        let typed = &["--model", "openrouter/meta/llama"][..];
        let expected = choice("openrouter", "meta/llama", None);
        assert_eq!(usual(typed, config, all), expected);
        assert_eq!(usual(&[], config, all), choice("groq", "llama", None));
        assert_eq!(usual(&[], None, all), choice("openai", "gpt-4o", None));
        let expected = choice("anthropic", "claude-sonnet-4-20250514", None);
        assert_eq!(usual(&[], None, &["ANTHROPIC_API_KEY_FILE"]), expected);
        let url = "http://10.0.0.1/v1";
        let typed = &["--base-url", url][..];
        assert_eq!(usual(typed, config, &[]), choice("groq", "llama", Some(url)));
        let config = Some("baseURL: http://10.0.0.2/v1\nmodel: local/x\n");
        let expected = choice("local", "x", Some("http://10.0.0.2/v1"));
        assert_eq!(usual(&[], config, &[]), expected);
    }

    #[test]
    fn servers_on_this_machine_are_where_they_usually_are() {
        let expected = choice("Ollama", "qwen3", Some("http://127.0.0.1:11434/v1"));
        assert_eq!(usual(&["--model", "Ollama/qwen3"], None, &[]), expected);
        let local = PROVIDERS.iter().filter_map(|provider| Some((provider, provider.local_url?)));
        for (name, url) in local.flat_map(|(provider, url)| provider.names().map(move |name| (name, url))) {
            let choice = ModelChoice::new(&format!("{name}/x"), None);
            assert_eq!(choice.base_url.as_deref(), Some(url));
            assert!(is_local_host(&Endpoint::parse(url).unwrap().host));
            assert!(!choice.needs_key());
        }
    }

    #[test]
    fn what_nothing_says_is_asked_for() {
        let error = usual(&[], None, &[]).unwrap_err();
        for said in ["ANTHROPIC_API_KEY", "--model ollama/", "sympozium demo"] {
            assert!(error.contains(said), "{error}");
        }
        let both = &["ANTHROPIC_API_KEY", "OPENAI_API_KEY"][..];
        let error = usual(&[], None, both).unwrap_err();
        assert!(error.contains("keys of several providers"), "{error}");
    }

    #[test]
    fn a_configuration_that_is_not_understood_is_refused() {
        for (text, said) in [
            ("model: x\n", "`model` must be `provider/model`"),
            ("models: a/b\n", "there is no setting `models`"),
            ("model: [a/b]\n", "`model` must be a string"),
            ("- a\n", "it must be one object"),
            ("model: a/b\n---\nmodel: c/d\n", "it must be one object"),
            ("model: \"\n", "line "),
        ] {
            let error = usual(&[], Some(text), &["OPENAI_API_KEY"]).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        let expected = choice("openai", "gpt-4o", None);
        assert_eq!(usual(&[], Some("# nothing\n"), &["OPENAI_API_KEY"]), expected);
    }

    #[test]
    fn a_key_is_wanted_where_the_provider_is_itself() {
        let needs = |name: &str, url| ModelChoice::new(name, url).needs_key();
        assert!(needs("openai/x", None) && needs("Anthropic/x", None));
        assert!(!needs("openai/x", Some("http://127.0.0.1:1/v1")));
        assert!(!needs("scripted/x", None) && !needs("unheard-of/x", None));
        let set = |_: &str| Some(OsString::from("x"));
        let local = |url| ModelChoice::new("openai/x", Some(url)).has_local_key(&set);
        assert!(local("http://localhost:1/v1") && local("http://127.0.0.1:1/v1"));
        assert!(!local("http://10.0.0.1/v1") && !local("https://localhost.example.com/v1"));
        assert_eq!(ModelChoice::new("OpenAI/x", None).secret_name(), "openai-key");
        assert_eq!(ModelChoice::new("My_One/x", None).secret_name(), ANY_KEY_SECRET);
    }
}
