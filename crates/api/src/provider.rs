//! The providers of models: the only table of them, and the only code that knows one by its name.
//!
//! A provider that is not listed has the API of OpenAI, and the run must set its `baseURL`. `docs/models.md` is
//! generated from the table.

use serde::{Deserialize, Serialize};

use crate::run_plan::WireFormat;

/// A provider: where its API is, and what differs from the API of OpenAI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// The name in manifests and in `provider/model`; case is ignored.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// The wire format of requests and answers.
    pub wire: WireFormat,
    /// Where its API is, if the run does not say.
    pub endpoint: DefaultEndpoint,
    /// The path of the API, for an address without one.
    pub base_path: &'static str,
    /// The variable that holds its key, in the environment and in a Secret.
    pub key_variable: &'static str,
    /// The header that carries the key.
    pub key_header: KeyHeader,
    /// Whether it reports the usage of a stream only on request.
    pub asks_for_usage: bool,
    /// Its address on a developer's machine, if it is a program that serves models there.
    pub local_url: Option<&'static str>,
    /// The model of a run that names none, where the environment has the key of this provider alone.
    pub default_model: Option<&'static str>,
    /// An agent without a provider has this one if its `baseURL` contains one of these.
    pub url_parts: &'static [&'static str],
    /// An agent with neither provider nor `baseURL` has this one if its model's name begins with one of these.
    pub model_prefixes: &'static [&'static str],
}

/// The default address of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultEndpoint {
    /// This host, at this port; over TLS at port 443. A host whose name customers choose is not listed as a provider's
    /// own: any customer can be behind it.
    Fixed(&'static str, u16),
    /// The run must set the address.
    Required,
    /// No address: the bridge answers itself, from a script.
    Internal,
}

/// The header of a request that carries the model key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyHeader {
    /// `authorization: Bearer KEY`.
    Authorization,
    /// `api-key: KEY`.
    ApiKey,
    /// `x-api-key: KEY`.
    XApiKey,
}

/// The key in a Secret that is not for a particular provider.
pub const GENERIC_KEY_VARIABLE: &str = "API_KEY";

/// The known providers. Of two rows that an address or a model's name fits, the first counts.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        wire: WireFormat::Anthropic,
        endpoint: DefaultEndpoint::Fixed("api.anthropic.com", 443),
        base_path: "",
        key_header: WireFormat::Anthropic.key_header(),
        asks_for_usage: WireFormat::Anthropic.asks_for_usage(),
        default_model: Some("claude-sonnet-4-20250514"),
        model_prefixes: &["claude"],
        ..openai_compatible("anthropic", "ANTHROPIC_API_KEY")
    },
    OPENAI,
    Provider {
        aliases: &["azure-openai"],
        base_path: "/openai/v1",
        key_header: KeyHeader::ApiKey,
        ..openai_compatible("azure", "AZURE_OPENAI_API_KEY")
    },
    openai_compatible("bedrock", "OPENAI_API_KEY"),
    Provider {
        endpoint: DefaultEndpoint::Fixed("api.deepseek.com", 443),
        ..openai_compatible("deepseek", "DEEPSEEK_API_KEY")
    },
    Provider {
        aliases: &["google"],
        endpoint: DefaultEndpoint::Fixed("generativelanguage.googleapis.com", 443),
        base_path: "/v1beta/openai",
        ..openai_compatible("gemini", "GOOGLE_API_KEY")
    },
    Provider {
        endpoint: DefaultEndpoint::Fixed("api.groq.com", 443),
        base_path: "/openai/v1",
        ..openai_compatible("groq", "GROQ_API_KEY")
    },
    Provider {
        endpoint: DefaultEndpoint::Fixed("api.mistral.ai", 443),
        // It always reports the usage, and rejects a request that asks for it.
        asks_for_usage: false,
        ..openai_compatible("mistral", "MISTRAL_API_KEY")
    },
    Provider {
        endpoint: DefaultEndpoint::Fixed("openrouter.ai", 443),
        base_path: "/api/v1",
        ..openai_compatible("openrouter", "OPENROUTER_API_KEY")
    },
    Provider {
        endpoint: DefaultEndpoint::Fixed("ollama.default.svc", 11434),
        local_url: Some("http://127.0.0.1:11434/v1"),
        url_parts: &["ollama", ":11434"],
        ..openai_compatible("ollama", "OPENAI_API_KEY")
    },
    Provider {
        aliases: &["llamacpp"],
        local_url: Some("http://127.0.0.1:8080/v1"),
        ..openai_compatible("llama-server", "OPENAI_API_KEY")
    },
    Provider {
        local_url: Some("http://127.0.0.1:1234/v1"),
        url_parts: &["lm-studio", ":1234"],
        ..openai_compatible("lm-studio", "OPENAI_API_KEY")
    },
    Provider { local_url: Some("http://127.0.0.1:8000/v1"), ..openai_compatible("vllm", "OPENAI_API_KEY") },
    openai_compatible("local", "OPENAI_API_KEY"),
    openai_compatible("unsloth", "OPENAI_API_KEY"),
    Provider { endpoint: DefaultEndpoint::Internal, ..openai_compatible("scripted", "OPENAI_API_KEY") },
];

const OPENAI: Provider = Provider {
    endpoint: DefaultEndpoint::Fixed("api.openai.com", 443),
    default_model: Some("gpt-4o"),
    ..openai_compatible("openai", "OPENAI_API_KEY")
};

/// Every provider that the table does not list, under the name that an agent's unknown `baseURL` gives it.
pub const CUSTOM: Provider = openai_compatible("custom", "OPENAI_API_KEY");

/// A provider that has the API of OpenAI at an address that the run sets.
const fn openai_compatible(name: &'static str, key_variable: &'static str) -> Provider {
    Provider {
        name,
        aliases: &[],
        wire: WireFormat::OpenAi,
        endpoint: DefaultEndpoint::Required,
        base_path: "/v1",
        key_variable,
        key_header: WireFormat::OpenAi.key_header(),
        asks_for_usage: WireFormat::OpenAi.asks_for_usage(),
        local_url: None,
        default_model: None,
        url_parts: &[],
        model_prefixes: &[],
    }
}

impl Provider {
    /// The provider of this name or alias, or else [`CUSTOM`].
    pub fn find(name: &str) -> &'static Self {
        PROVIDERS.iter().find(|provider| provider.is_named(name)).unwrap_or(&CUSTOM)
    }

    /// Whether this is its name or one of its aliases.
    pub fn is_named(&self, name: &str) -> bool {
        self.names().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Its name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.aliases.iter().copied())
    }

    /// The provider of an agent that names none, by its `baseURL` and its model.
    pub fn guess(base_url: Option<&str>, model: &str) -> &'static Self {
        let mut rows = PROVIDERS.iter();
        match base_url {
            Some(url) => rows.find(|row| row.url_parts.iter().any(|part| url.contains(part))).unwrap_or(&CUSTOM),
            None => {
                rows.find(|row| row.model_prefixes.iter().any(|prefix| model.starts_with(prefix))).unwrap_or(&OPENAI)
            }
        }
    }

    /// Whether an address is the provider's own: its key may be sent there without further permission.
    pub fn owns_endpoint(&self, host: &str, port: u16, encrypted: bool) -> bool {
        let is_own = matches!(self.endpoint, DefaultEndpoint::Fixed(own, at) if own == host && at == port);
        is_own && (encrypted || port != 443)
    }
}

impl KeyHeader {
    /// The name of the header, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authorization => "authorization",
            Self::ApiKey => "api-key",
            Self::XApiKey => "x-api-key",
        }
    }

    /// The part of the value before the key.
    pub const fn value_prefix(self) -> &'static str {
        match self {
            Self::Authorization => "Bearer ",
            Self::ApiKey | Self::XApiKey => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{from_value, json, to_value};

    use super::*;
    use crate::run_plan::ModelPlan;

    #[test]
    fn every_name_is_in_the_table_once() {
        let names: Vec<&str> = PROVIDERS.iter().flat_map(Provider::names).collect();
        let unique: BTreeSet<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        assert_eq!(unique.len(), names.len());
        assert!(!unique.contains(CUSTOM.name));
        for name in names {
            assert!(Provider::find(&name.to_ascii_uppercase()).is_named(name), "{name}");
        }
        assert_eq!(Provider::find("unheard-of"), &CUSTOM);
    }

    #[test]
    fn a_provider_that_is_not_named_is_guessed() {
        for (url, model, expected) in [
            (Some("http://ollama:1234/v1"), "claude", "ollama"),
            (Some("http://10.0.0.1:11434"), "m", "ollama"),
            (Some("http://10.0.0.1:1234"), "m", "lm-studio"),
            (Some("http://10.0.0.1"), "claude", "custom"),
            (None, "claude-x", "anthropic"),
            (None, "ollama", "openai"),
        ] {
            assert_eq!(Provider::guess(url, model).name, expected, "{url:?} {model}");
        }
    }

    #[test]
    fn a_key_goes_to_the_own_address_only() {
        let openai = Provider::find("openai");
        assert!(openai.owns_endpoint("api.openai.com", 443, true));
        assert!(!openai.owns_endpoint("api.openai.com", 443, false));
        assert!(!openai.owns_endpoint("api.openai.com", 8443, true));
        assert!(!openai.owns_endpoint("x.api.openai.com", 443, true));
        assert!(Provider::find("ollama").owns_endpoint("ollama.default.svc", 11434, false));
        assert!(!CUSTOM.owns_endpoint("api.openai.com", 443, true));
    }

    fn stored_plan(wire: &str, provider: &str) -> ModelPlan {
        from_value(json!({"provider": provider, "model": "m", "wire": wire})).unwrap()
    }

    /// Plans of earlier releases have neither field.
    #[test]
    fn usage_is_asked_for_where_that_is_known() {
        for (wire, provider, expected) in [
            ("openAi", "openai", true),
            ("openAi", "ollama", true),
            ("openAi", "unheard-of", true),
            ("openAi", "Mistral", false),
            ("openAi", "anthropic", true),
            ("anthropic", "anthropic", false),
            ("anthropic", "openai", false),
        ] {
            let mut plan = stored_plan(wire, provider);
            assert_eq!(plan.must_ask_for_usage(), expected, "{provider}");
            plan.ask_for_usage = Some(!expected);
            assert_eq!(plan.must_ask_for_usage(), !expected, "{provider}");
        }
    }

    #[test]
    fn every_provider_gets_its_key_as_it_wants_it() {
        for (wire, provider, expected) in [
            ("openAi", "openai", "authorization: Bearer "),
            ("openAi", "ollama", "authorization: Bearer "),
            ("openAi", "unheard-of", "authorization: Bearer "),
            ("openAi", "Azure", "api-key: "),
            ("openAi", "azure-openai", "api-key: "),
            ("openAi", "anthropic", "authorization: Bearer "),
            ("anthropic", "anthropic", "x-api-key: "),
            ("anthropic", "azure", "x-api-key: "),
        ] {
            let mut plan = stored_plan(wire, provider);
            let header = plan.resolve_key_header();
            assert_eq!(format!("{}: {}", header.name(), header.value_prefix()), expected, "{provider}");
            plan.key_header = Some(KeyHeader::XApiKey);
            assert_eq!(plan.resolve_key_header(), KeyHeader::XApiKey);
        }
        for header in [KeyHeader::Authorization, KeyHeader::ApiKey, KeyHeader::XApiKey] {
            assert_eq!(to_value(header).unwrap(), header.name());
        }
    }
}
