//! Fills in what a run leaves to its agent, its policy and the installation. Idempotent.

use sympozium_api::agent::{AgentConfig, AgentSpec};
use sympozium_api::agent_run::RunModel;
use sympozium_api::duration::DurationText;
use sympozium_api::labels;
use sympozium_api::names::OptionalSecretName;
use sympozium_api::provider::Provider;
use sympozium_api::sandbox::AgentSandbox;
use sympozium_api::{AgentRun, AgentRunSpec};

use super::Input;
use crate::duration::DEFAULT_RUN_TIMEOUT;
use crate::policy::{EffectivePolicy, PolicyDefaults};

/// The run with all defaults filled in.
pub fn apply_defaults(
    input: &Input<'_>,
    agent: Option<&AgentSpec>,
    policy: &EffectivePolicy,
    defaults: &PolicyDefaults,
) -> AgentRun {
    let mut run = input.run.clone();
    let spec = &mut run.spec;
    if spec.agent_ref.is_none() {
        spec.agent_ref = spec.instance_ref.clone();
    }
    if let Some(agent) = agent {
        apply_agent(spec, agent, guess_provider(input, agent));
    }
    if spec.timeout.is_none() {
        spec.timeout = Some(DurationText::new(DEFAULT_RUN_TIMEOUT));
    }
    apply_policy(spec, input, policy, defaults);
    run
}

fn apply_agent(spec: &mut AgentRunSpec, agent: &AgentSpec, provider: String) {
    let config = &agent.agents.default;
    if spec.skills.is_empty() {
        spec.skills.clone_from(&agent.skills);
    }
    match &mut spec.model {
        None if !config.model.is_empty() => spec.model = Some(agent_model(agent, config, provider)),
        None => {}
        Some(model) if model.auth_secret_ref.is_none() && model.model_ref.is_none() => {
            model.auth_secret_ref = find_credential(agent, &model.provider);
        }
        Some(_) => {}
    }
    if spec.sandbox.is_none() {
        spec.sandbox.clone_from(&config.sandbox);
    }
    if spec.agent_sandbox.is_none() {
        spec.agent_sandbox = config.agent_sandbox.as_ref().map(|agent_sandbox| AgentSandbox {
            enabled: agent_sandbox.enabled,
            runtime_class: agent_sandbox.runtime_class.clone(),
            ..AgentSandbox::default()
        });
    }
    if spec.timeout.is_none() {
        spec.timeout.clone_from(&config.run_timeout);
    }
    if spec.lifecycle.is_none() {
        spec.lifecycle.clone_from(&config.lifecycle);
    }
    for (name, value) in &config.env {
        spec.env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if spec.image_pull_secrets.is_empty() {
        spec.image_pull_secrets.clone_from(&agent.image_pull_secrets);
    }
    // Together, because a mount refers to a volume of its own list.
    if spec.volumes.is_empty() && spec.volume_mounts.is_empty() {
        spec.volumes.clone_from(&agent.volumes);
        spec.volume_mounts.clone_from(&agent.volume_mounts);
    }
}

fn apply_policy(spec: &mut AgentRunSpec, input: &Input<'_>, policy: &EffectivePolicy, defaults: &PolicyDefaults) {
    if let Some(sandbox) = spec.sandbox.as_mut().filter(|sandbox| sandbox.enabled)
        && sandbox.image.is_none()
    {
        sandbox.image.clone_from(&defaults.sandbox_image);
    }
    if let Some(sandbox) = spec.agent_sandbox.as_mut().filter(|agent_sandbox| agent_sandbox.enabled)
        && sandbox.runtime_class.is_none()
    {
        // A default that is not allowed would only deny the run for a reason that its author cannot fix.
        let candidates = [&defaults.runtime_class, &input.settings.default_runtime_class];
        let class = candidates
            .into_iter()
            .flatten()
            .find(|class| policy.isolation.runtime_classes.covers(&class.as_str().to_owned()));
        sandbox.runtime_class = class.cloned();
    }
}

/// The agent's model, for a run that names none.
fn agent_model(agent: &AgentSpec, config: &AgentConfig, provider: String) -> RunModel {
    RunModel {
        model: config.model.clone(),
        auth_secret_ref: find_credential(agent, &provider),
        provider,
        base_url: config.base_url.clone(),
        thinking: config.thinking.clone(),
        provider_headers: config.provider_headers.clone(),
        provider_headers_secret_ref: config.provider_headers_secret_ref.clone(),
        model_ref: None,
        node_selector: config.node_selector.clone(),
    }
}

/// The first of the agent's credentials that matches the provider.
fn find_credential(agent: &AgentSpec, provider: &str) -> Option<OptionalSecretName> {
    let fits = |of: &Option<String>| of.as_ref().is_none_or(|of| of.eq_ignore_ascii_case(provider));
    let found = agent.auth_refs.iter().find(|auth_ref| fits(&auth_ref.provider))?;
    Some(OptionalSecretName::new(found.secret.as_str()))
}

/// The provider of an agent, whose spec does not name it: by its label, its credentials, its address, its model.
fn guess_provider(input: &Input<'_>, agent: &AgentSpec) -> String {
    let metadata = match (input.agents.agent, input.agents.instance) {
        (Some(agent), _) => Some(&agent.metadata),
        (None, instance) => instance.map(|instance| &instance.metadata),
    };
    let label = metadata.and_then(|metadata| metadata.labels.as_ref()).and_then(|labels| labels.get(labels::PROVIDER));
    let credential = || agent.auth_refs.iter().find_map(|auth_ref| auth_ref.provider.as_ref());
    if let Some(named) = label.or_else(credential).filter(|provider| !provider.is_empty()) {
        return named.clone();
    }
    let config = &agent.agents.default;
    Provider::guess(config.base_url.as_deref(), &config.model).name.to_owned()
}
