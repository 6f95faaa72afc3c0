//! `docs/models.md`: the providers of models, from the table in `crates/api/src/provider.rs`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use sympozium_api::provider::{CUSTOM, DefaultEndpoint, GENERIC_KEY_VARIABLE, PROVIDERS, Provider};
use sympozium_api::run_plan::WireFormat;

use crate::output::line;
use crate::process::workspace_root;

const PAGE: &str = "docs/models.md";

/// Writes the page.
pub fn write() -> anyhow::Result<()> {
    let path = path();
    fs::write(&path, page()).with_context(|| format!("writing {}", path.display()))?;
    line(&format!("wrote {}", path.display()));
    Ok(())
}

/// Whether the page is what would be written.
pub fn check() -> Vec<String> {
    if fs::read_to_string(path()).is_ok_and(|text| text == page()) {
        return Vec::new();
    }
    vec![format!("{PAGE} does not show the table of providers; run `cargo xtask docs` and commit the page")]
}

fn path() -> PathBuf {
    workspace_root().join(PAGE)
}

fn page() -> String {
    let providers: String = PROVIDERS.iter().map(provider_row).collect();
    let local: String = PROVIDERS.iter().filter_map(local_row).collect();
    let defaults: String = PROVIDERS.iter().filter_map(default_row).collect();
    let guesses: String = PROVIDERS.iter().filter_map(guess_row).collect();
    let custom = CUSTOM.name;
    format!(
        "<!-- Generated from crates/api/src/provider.rs by `cargo xtask docs`; `cargo xtask check` fails when it is out of \
date. -->
# Models and their providers

`model.provider` of an AgentRun, and the part of `--model provider/model` before the first `/`, is one of these names; case is
ignored. `baseURL` (or `--base-url`) sets another address; an address without a path gets the provider's. A run with `modelRef`
uses a Model of the cluster.

| provider | API | address | path | variable of the key | header of the key |
|---|---|---|---|---|---|
{providers}
Any other provider has the API of OpenAI, with the path `{}` and the variable `{}`, and needs `baseURL`.

The Secret of `authSecretRef` holds the key under the provider's variable or under `{GENERIC_KEY_VARIABLE}`. Where a policy
applies, an address that is not the provider's own must be in its `allowedEgress`: see [policies](policies.md).

## On one machine

`sympozium run` looks for these servers on this machine, unless `--base-url` says otherwise. They need no key.

| provider | address |
|---|---|
{local}
If no model is named, and the environment has the key of exactly one of these providers, the run has this model:

| variable of the key | model |
|---|---|
{defaults}
## An agent that names no provider

An Agent has no field for its provider. It is the label `sympozium.ai/provider`, or else that of the first of its `authRefs` that
has one, or else the first row that fits. With another `baseURL` it is `{custom}`, with another model and no `baseURL` it is `{}`.

| `baseURL` contains | or, without `baseURL`, the model begins with | provider |
|---|---|---|
{guesses}",
        CUSTOM.base_path,
        CUSTOM.key_variable,
        Provider::guess(None, "").name,
    )
}

fn provider_row(provider: &Provider) -> String {
    let api = match provider.wire {
        WireFormat::OpenAi => "OpenAI",
        WireFormat::Anthropic => "Anthropic",
    };
    let (address, path) = match provider.endpoint {
        DefaultEndpoint::Fixed(host, port) => (format!("`{host}:{port}`"), code(provider.base_path)),
        DefaultEndpoint::Required => ("set `baseURL`".to_owned(), code(provider.base_path)),
        DefaultEndpoint::Internal => {
            return format!("| {} | | none: answers from [a script](scripted-model.md) | | | |\n", names(provider));
        }
    };
    let (names, variable) = (names(provider), provider.key_variable);
    let (header, prefix) = (provider.key_header.name(), provider.key_header.value_prefix());
    format!("| {names} | {api} | {address} | {path} | `{variable}` | `{header}: {prefix}KEY` |\n")
}

fn local_row(provider: &Provider) -> Option<String> {
    Some(format!("| {} | `{}` |\n", names(provider), provider.local_url?))
}

fn default_row(provider: &Provider) -> Option<String> {
    Some(format!("| `{}` | `{}/{}` |\n", provider.key_variable, provider.name, provider.default_model?))
}

fn guess_row(provider: &Provider) -> Option<String> {
    let Provider { url_parts, model_prefixes, .. } = provider;
    let is_guessed = !url_parts.is_empty() || !model_prefixes.is_empty();
    is_guessed.then(|| format!("| {} | {} | `{}` |\n", list(url_parts), list(model_prefixes), provider.name))
}

fn names(provider: &Provider) -> String {
    provider.names().map(code).collect::<Vec<_>>().join(", ")
}

fn list(texts: &[&str]) -> String {
    texts.iter().copied().map(code).collect::<Vec<_>>().join(", ")
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}
