//! Applies the flags about the model: which one, its address, its key, and the egress that it needs.

use serde_json::json;
use sympozium_api::labels::API_VERSION;
use sympozium_manifests::built_in;
use sympozium_manifests::tree::Node;
use sympozium_manifests::validate::Session;

use super::super::HostEnvironment;
use super::super::model::{ANY_KEY_SECRET, ModelChoice, egress_rule};
use super::{Assembler, DEFAULT_POLICY, RunSource, add_object};
use crate::failure::Failure;

/// The policy that permits egress to a model that the command line names.
const COMMAND_LINE_POLICY: &str = "command-line";

impl Assembler<'_> {
    pub(super) fn default_model(&self) -> Result<ModelChoice, Failure> {
        let HostEnvironment { configuration, environment, .. } = self.host;
        ModelChoice::resolve_default(self.arguments, configuration.as_deref(), environment)
    }

    /// Sets the model of a run that is built from flags.
    pub(super) fn set_default_model(
        &self,
        session: &mut Session<'_>,
        run: usize,
        agent: Option<usize>,
        namespace: &str,
    ) -> Result<(), Failure> {
        let choice = self.default_model()?;
        let secret = self.key_secret(session, &choice, agent, namespace);
        if let Some(run) = session.object_mut(run) {
            let model = choice.to_json(secret.as_deref());
            run.node.set(&["spec", "model"], model);
        }
        Ok(())
    }

    /// Changes the model of a manifest as the flags say.
    pub(super) fn set_model(&self, session: &mut Session<'_>, run: usize, agent: Option<usize>, namespace: &str) {
        let arguments = self.arguments;
        let url = arguments.base_url.as_deref();
        let own = session.objects()[run].node.get_path(&["spec", "model"]).cloned();
        if let Some(name) = &arguments.model {
            let choice = ModelChoice::new(name, url);
            let secret = self.key_secret(session, &choice, agent, namespace);
            let Some(run) = session.object_mut(run) else {
                return;
            };
            let provider = own.as_ref().and_then(|it| it.get("provider")?.as_text());
            // Settings for another provider do not apply: neither address, key nor headers.
            if provider.is_some_and(|it| it.eq_ignore_ascii_case(&choice.provider)) {
                run.node.set(&["spec", "model", "model"], json!(choice.model));
                run.node.remove(&["spec", "model", "modelRef"]);
                if let Some(url) = url {
                    run.node.set(&["spec", "model", "baseURL"], json!(url));
                }
            } else {
                let model = choice.to_json(secret.as_deref());
                run.node.set(&["spec", "model"], model);
            }
        } else if let Some(url) = url {
            match (own, agent) {
                (None, Some(agent)) => {
                    if let Some(agent) = session.object_mut(agent) {
                        let path = ["spec", "agents", "default", "baseURL"];
                        agent.node.set(&path, json!(url));
                    }
                }
                _ => {
                    if let Some(run) = session.object_mut(run) {
                        run.node.set(&["spec", "model", "baseURL"], json!(url));
                    }
                }
            }
        }
        if arguments.key_file.is_some() || arguments.key_command.is_some() {
            self.add_key_secret_ref(session, run, agent);
        }
    }

    /// Adds a reference to a Secret if the manifest has none: the key that a flag gives is looked up by it.
    fn add_key_secret_ref(&self, session: &mut Session<'_>, run: usize, agent: Option<usize>) {
        let has = |node: &Node, path: &[&str]| {
            let found = node.get_path(path);
            found.is_some_and(|it| it.as_text() != Some("") && it.as_list().is_none_or(|it| !it.is_empty()))
        };
        let objects = session.objects();
        let of_run = has(&objects[run].node, &["spec", "model", "authSecretRef"]);
        let of_agent = agent.is_some_and(|it| has(&objects[it].node, &["spec", "authRefs"]));
        if of_run || of_agent {
            return;
        }
        if objects[run].node.get_path(&["spec", "model"]).is_some() {
            if let Some(run) = session.object_mut(run) {
                let path = ["spec", "model", "authSecretRef"];
                run.node.set(&path, json!(ANY_KEY_SECRET));
            }
        } else if let Some(agent) = agent.and_then(|it| session.object_mut(it)) {
            let all = json!([{"secret": ANY_KEY_SECRET}]);
            agent.node.set(&["spec", "authRefs"], all);
        }
    }

    /// The Secret with the key of a model that the command line names, if the model needs a key or one is available.
    fn key_secret(
        &self,
        session: &Session<'_>,
        choice: &ModelChoice,
        agent: Option<usize>,
        namespace: &str,
    ) -> Option<String> {
        let agent = agent.map(|index| &session.objects()[index].node);
        let of_agent = agent.and_then(|it| it.get_path(&["spec", "authRefs"])?.as_list());
        let fits = |it: &&Node| match it.get("provider").and_then(Node::as_text) {
            Some(provider) => provider.eq_ignore_ascii_case(&choice.provider),
            None => true,
        };
        if of_agent.is_some_and(|all| all.iter().any(|it| fits(&it))) {
            // Admission fills in the agent's own.
            return None;
        }
        let secret = choice.secret_name();
        let wanted = choice.needs_key()
            || self.arguments.key_file.is_some()
            || self.arguments.key_command.is_some()
            || choice.has_local_key(self.host.environment)
            || (self.has_secret)(session, namespace, &secret);
        wanted.then_some(secret)
    }

    /// Permits egress to an address of a model that the command line names, if the agent has no policy of its own. That
    /// of an agent is changed by its author only.
    pub(super) fn allow_model_egress(
        &self,
        session: &mut Session<'_>,
        run: usize,
        agent: Option<usize>,
        place: RunSource,
        namespace: &str,
    ) {
        let objects = session.objects();
        let url = objects[run].node.get_path(&["spec", "model", "baseURL"]);
        let url = url.or_else(|| {
            let path = ["spec", "agents", "default", "baseURL"];
            objects[agent?].node.get_path(&path)
        });
        let Some(open) = url.and_then(Node::as_text).and_then(egress_rule) else {
            return;
        };
        let own = agent.and_then(|it| objects[it].node.get_path(&["spec", "policyRef"]));
        let mut spec = match (place, own.and_then(Node::as_text)) {
            (RunSource::FlagsOnly, Some(DEFAULT_POLICY)) if self.arguments.policy.is_none() => {
                let usual = built_in::policy(DEFAULT_POLICY);
                let spec = usual.and_then(|it| serde_json::to_value(it.spec).ok());
                spec.unwrap_or_default()
            }
            (_, None) => json!({"networkPolicy": {"denyAll": false}}),
            _ => return,
        };
        spec["networkPolicy"]["allowedEgress"] = json!([open]);
        let policy = json!({
            "apiVersion": API_VERSION,
            "kind": "SympoziumPolicy",
            "metadata": {"name": COMMAND_LINE_POLICY, "namespace": namespace},
            "spec": spec,
        });
        add_object(session, policy);
        if let Some(agent) = agent.and_then(|it| session.object_mut(it)) {
            agent.node.set(&["spec", "policyRef"], json!(COMMAND_LINE_POLICY));
        }
    }
}
