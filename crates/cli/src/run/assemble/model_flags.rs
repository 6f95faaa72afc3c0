//! Applies the flags about the model: which one, its address, its key, and the egress that it needs.

use anyhow::anyhow;
use serde_json::json;
use sympozium_api::labels::API_VERSION;
use sympozium_manifests::built_in;
use sympozium_manifests::tree::Node;

use super::model::{ANY_KEY_SECRET, ModelChoice, egress_rule};
use super::source::RunSource;
use super::{Assembler, DEFAULT_POLICY, SelectedRun, Target};
use crate::failure::Failure;

/// The policy that permits egress to a model that the command line names.
const COMMAND_LINE_POLICY: &str = "command-line";
/// The model of a run, and the address of an agent's.
const RUN_MODEL: [&str; 2] = ["spec", "model"];
const RUN_URL: [&str; 3] = ["spec", "model", "baseURL"];
const AGENT_URL: [&str; 4] = ["spec", "agents", "default", "baseURL"];

impl Assembler<'_> {
    /// Changes the model of the run as the flags say.
    pub(super) fn apply_model(&mut self, selected: &SelectedRun) -> Result<(), Failure> {
        let arguments = self.arguments;
        let choice = match (selected.source, &arguments.model) {
            (RunSource::FlagsOnly, _) => Some(self.default_model()?),
            (_, Some(name)) => Some(self.model_choice(name)),
            (_, None) => None,
        };
        match (&choice, &arguments.base_url) {
            (Some(choice), _) => self.set_model(selected, choice),
            (None, Some(url)) => self.set_base_url(selected, url)?,
            (None, None) => {}
        }
        if arguments.key_file.is_some() || arguments.key_command.is_some() {
            self.add_key_secret_ref(selected);
        }
        if (choice.is_some() || arguments.base_url.is_some()) && !self.target.is_cluster() {
            self.allow_model_egress(selected);
        }
        Ok(())
    }

    /// The model of a run that no manifest describes. In a cluster there is no such run.
    pub(super) fn default_model(&self) -> Result<ModelChoice, Failure> {
        match self.target {
            Target::Machine(machine) => {
                let host = machine.host;
                ModelChoice::resolve_default(self.arguments, host.configuration.as_deref(), host.environment)
            }
            Target::Cluster { .. } => ModelChoice::resolve_default(self.arguments, None, &|_| None),
        }
    }

    fn model_choice(&self, name: &str) -> ModelChoice {
        let base_url = self.arguments.base_url.as_deref();
        let choice = ModelChoice::new(name, base_url);
        match self.target {
            Target::Machine(_) => choice,
            // There, a local server has no address that is known here.
            Target::Cluster { .. } => ModelChoice { base_url: base_url.map(str::to_owned), ..choice },
        }
    }

    fn set_model(&mut self, selected: &SelectedRun, choice: &ModelChoice) {
        let secret = self.key_secret(selected, choice);
        let Some(run) = self.session.object_mut(selected.run).map(|it| &mut it.node) else {
            return;
        };
        let provider = run.get_path(&["spec", "model", "provider"]).and_then(Node::as_text);
        // Settings for another provider do not apply: neither address, key nor headers.
        if provider.is_some_and(|it| it.eq_ignore_ascii_case(&choice.provider)) {
            run.set(&["spec", "model", "model"], json!(choice.model));
            run.remove(&["spec", "model", "modelRef"]);
            if let Some(url) = &self.arguments.base_url {
                run.set(&RUN_URL, json!(url));
            }
        } else {
            run.set(&RUN_MODEL, choice.to_json(secret.as_deref()));
        }
    }

    /// Sets the address of the model that the run names, or else its agent.
    fn set_base_url(&mut self, selected: &SelectedRun, url: &str) -> Result<(), Failure> {
        let has_model = self.session.objects()[selected.run].node.get_path(&RUN_MODEL).is_some();
        let (index, path) = match selected.agent {
            Some(agent) if !has_model => (agent, &AGENT_URL[..]),
            None if !has_model && self.target.is_cluster() => {
                let error = anyhow!("--base-url is for a model, and the run names none");
                return Err(Failure::usage(error, "give --model too"));
            }
            _ => (selected.run, &RUN_URL[..]),
        };
        if let Some(object) = self.session.object_mut(index) {
            object.node.set(path, json!(url));
        }
        Ok(())
    }

    /// Adds a reference to a Secret if the manifest has none: the key that a flag gives is looked up by it.
    fn add_key_secret_ref(&mut self, selected: &SelectedRun) {
        let has = |index: usize, path: &[&str]| {
            let found = self.session.objects()[index].node.get_path(path);
            found.is_some_and(|it| it.as_text() != Some("") && it.as_list().is_none_or(|it| !it.is_empty()))
        };
        let (run_path, agent_path) = (["spec", "model", "authSecretRef"], ["spec", "authRefs"]);
        if has(selected.run, &run_path) || selected.agent.is_some_and(|it| has(it, &agent_path)) {
            return;
        }
        let has_model = self.session.objects()[selected.run].node.get_path(&RUN_MODEL).is_some();
        let index = if has_model { Some(selected.run) } else { selected.agent };
        if let Some(object) = index.and_then(|it| self.session.object_mut(it)) {
            match has_model {
                true => object.node.set(&run_path, json!(ANY_KEY_SECRET)),
                false => object.node.set(&agent_path, json!([{"secret": ANY_KEY_SECRET}])),
            }
        }
    }

    /// The Secret with the key of a model that the command line names, if the model needs a key or one is available. In
    /// a cluster, admission fills in the agent's.
    fn key_secret(&self, selected: &SelectedRun, choice: &ModelChoice) -> Option<String> {
        let Target::Machine(machine) = self.target else {
            return None;
        };
        let agent = selected.agent.map(|index| &self.session.objects()[index].node);
        let mut references = agent.and_then(|it| it.get_path(&["spec", "authRefs"])?.as_list()).into_iter().flatten();
        let is_for_choice = |it: &Node| match it.get("provider").and_then(Node::as_text) {
            Some(provider) => provider.eq_ignore_ascii_case(&choice.provider),
            None => true,
        };
        if references.any(is_for_choice) {
            // Admission fills in the agent's own.
            return None;
        }
        let secret = choice.secret_name();
        let is_needed = choice.needs_key()
            || self.arguments.key_file.is_some()
            || self.arguments.key_command.is_some()
            || choice.has_local_key(machine.host.environment)
            || (machine.has_secret)(&self.session, &selected.namespace, &secret);
        is_needed.then_some(secret)
    }

    /// Permits egress to an address of a model that the command line names, if the agent has no policy of its own. That
    /// of an agent is changed by its author only.
    fn allow_model_egress(&mut self, selected: &SelectedRun) {
        let objects = self.session.objects();
        let agent = selected.agent.map(|index| &objects[index].node);
        let url = objects[selected.run].node.get_path(&RUN_URL);
        let url = url.or_else(|| agent?.get_path(&AGENT_URL));
        let Some(rule) = url.and_then(Node::as_text).and_then(egress_rule) else {
            return;
        };
        let policy = agent.and_then(|it| it.get_path(&["spec", "policyRef"])?.as_text());
        let mut spec = match (selected.source, policy) {
            (RunSource::FlagsOnly, Some(DEFAULT_POLICY)) if self.arguments.policy.is_none() => {
                let default = built_in::policy(DEFAULT_POLICY);
                default.and_then(|it| serde_json::to_value(it.spec).ok()).unwrap_or_default()
            }
            (_, None) => json!({"networkPolicy": {"denyAll": false}}),
            _ => return,
        };
        spec["networkPolicy"]["allowedEgress"] = json!([rule]);
        self.add_object(json!({
            "apiVersion": API_VERSION,
            "kind": "SympoziumPolicy",
            "metadata": {"name": COMMAND_LINE_POLICY, "namespace": selected.namespace},
            "spec": spec,
        }));
        if let Some(agent) = selected.agent.and_then(|it| self.session.object_mut(it)) {
            agent.node.set(&["spec", "policyRef"], json!(COMMAND_LINE_POLICY));
        }
    }
}
