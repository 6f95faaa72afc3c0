//! Hooks: containers before and after the agent. The author of the agent controls them: they see the workspace, and
//! what they declare.

use sympozium_api::lifecycle::{GateDefault, LifecycleHook};
use sympozium_api::run_plan::{Identity, IdentityName, Part, PartName, Role, Start, paths};

use super::skill::TOKEN_SECONDS;
use super::{HOOK_REQUESTS, PartsBuilder, plan_resources, set_variable, variable, workspace, writable};
use crate::plan::limits::hook_seconds;
use crate::plan::names::part_names;

/// When a hook runs.
#[derive(Clone, Copy)]
enum HookTime {
    Before,
    After,
}

impl HookTime {
    /// The prefix of the names of its parts and volumes.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Before => "pre",
            Self::After => "post",
        }
    }

    fn role(self, hook: &LifecycleHook, gate_default: GateDefault) -> Role {
        let name = hook.name.clone();
        let gate = hook.gate == Some(true);
        match self {
            Self::Before => Role::PreRun { hook: name },
            Self::After => Role::PostRun {
                hook: name,
                gate,
                // It applies to gate hooks only.
                gate_default: if gate { gate_default } else { GateDefault::Block },
            },
        }
    }
}

impl PartsBuilder<'_, '_> {
    /// All hooks of the run, those before the agent first.
    pub fn build_hooks(&mut self) -> Vec<Part> {
        let Some(hooks) = self.admitted.run.spec.lifecycle.clone() else {
            return Vec::new();
        };
        let all = hooks.pre_run.len() + hooks.post_run.len();
        let identity = (all > 0 && !hooks.rbac.is_empty()).then(|| {
            let name = IdentityName("hooks".to_owned());
            self.identities.push(Identity {
                name: name.clone(),
                pack: None,
                namespace_rules: hooks.rbac.clone(),
                cluster_rules: Vec::new(),
                token_seconds: TOKEN_SECONDS,
            });
            name
        });
        let mut parts = Vec::new();
        for (when, list) in [(HookTime::Before, &hooks.pre_run), (HookTime::After, &hooks.post_run)] {
            let names = part_names(when.prefix(), list.iter().map(|hook| hook.name.as_str()));
            for (number, (hook, name)) in list.iter().zip(names).enumerate() {
                let role = when.role(hook, hooks.gate_default);
                let start = format!("{}-{number}", when.prefix());
                parts.push(self.build_hook(&start, name, role, hook, identity.clone()));
            }
        }
        parts
    }

    fn build_hook(
        &mut self,
        start: &str,
        name: String,
        role: Role,
        hook: &LifecycleHook,
        identity: Option<IdentityName>,
    ) -> Part {
        let spec = &self.admitted.run.spec;
        let agent = spec.agent().map(|agent| agent.as_str()).unwrap_or_default();
        // Of the run's variables, only those that the hook's author lists: a user who may start a run may not know, or
        // may not be told, what the hook's programs do with others. They come first, so that they override neither what
        // the author wrote nor the variables that identify the run, and cannot refer to what follows.
        let of_run = spec.env.iter();
        let of_run = of_run.filter(|(name, _)| hook.env_from_run.iter().any(|wanted| wanted.as_str() == *name));
        let mut env: Vec<_> = of_run.map(|(name, value)| variable(name, value)).collect();
        let ours = [
            variable("AGENT_RUN_ID", &self.run_name),
            variable("INSTANCE_NAME", agent),
            variable("AGENT_NAMESPACE", self.namespace),
        ];
        for variable in hook.env.iter().cloned().chain(ours) {
            set_variable(&mut env, variable);
        }
        let mut mounts = self.add_private_scratch(start);
        mounts.push(writable(workspace(), paths::WORKSPACE));
        mounts.extend(identity.as_ref().map(|identity| self.add_token(start, identity)));
        Part {
            name: PartName(name),
            role,
            image: hook.image.clone(),
            image_pull_policy: hook.image_pull_policy,
            start: Start::Image { command: hook.command.clone(), args: hook.args.clone() },
            env,
            mounts,
            amounts: plan_resources(self.default_limits.hook, HOOK_REQUESTS),
            identity,
            host_access: None,
            ports: Vec::new(),
            timeout_seconds: Some(hook_seconds(hook.timeout.as_ref())),
        }
    }
}
