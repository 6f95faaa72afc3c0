//! Hooks: containers before and after the agent.

use std::collections::BTreeSet;

use sympozium_api::lifecycle::{LifecycleHook, LifecycleHooks};
use sympozium_api::text::quote;

use super::violation::{Findings, violation};
use super::{RuleContext, Subject, env, timeouts};
use crate::duration::MAX_HOOK_TIMEOUT;

/// Each hook with its field, such as `preRun[0]`.
pub fn all_hooks(hooks: &LifecycleHooks) -> impl Iterator<Item = (String, &LifecycleHook)> {
    let placed = |list: &'static str, hooks: &'_ [LifecycleHook]| -> Vec<(String, usize)> {
        (0..hooks.len()).map(|index| (format!("{list}[{index}]"), index)).collect()
    };
    let before = placed("preRun", &hooks.pre_run).into_iter().zip(&hooks.pre_run);
    let after = placed("postRun", &hooks.post_run).into_iter().zip(&hooks.post_run);
    before.chain(after).map(|((place, _), hook)| (place, hook))
}

/// Checks the hooks of a run. Their images and grants are checked with those of packs.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let Some(hooks) = &case.run.spec.lifecycle else {
        return;
    };
    check_hooks(&case.subject, "spec.lifecycle", hooks, findings);
    for (index, rule) in hooks.rbac.iter().enumerate() {
        for (place, resource) in rule.resources.iter().enumerate() {
            let Some(denied) =
                case.policy.denied_hook_resources.iter().find(|denied| includes_resource(resource, denied))
            else {
                continue;
            };
            findings.deny(
                &case.subject,
                violation(
                    format!("spec.lifecycle.rbac[{index}].resources[{place}]"),
                    "hook-resource",
                    format!("{} reaches {}, which the policy denies to hooks", quote(resource), quote(denied)),
                    "remove the resource, or take it out of `lifecyclePolicy.deniedResources`",
                ),
            );
        }
    }
}

/// Checks hooks independently of the policy.
pub fn check_hooks(subject: &Subject, field: &str, hooks: &LifecycleHooks, findings: &mut Findings) {
    for (place, hook) in all_hooks(hooks) {
        let field = format!("{field}.{place}");
        env::check_container_env(subject, &format!("{field}.env"), &hook.env, findings);
        let from_run = format!("{field}.envFromRun");
        env::check_env_from_run(subject, &from_run, &hook.env_from_run, &hook.env, findings);
        if let Some(timeout) = &hook.timeout {
            timeouts::check_timeout(subject, &format!("{field}.timeout"), timeout, MAX_HOOK_TIMEOUT, findings);
        }
    }
    for (list, hooks) in [("preRun", &hooks.pre_run), ("postRun", &hooks.post_run)] {
        let mut names = BTreeSet::new();
        for (index, hook) in hooks.iter().enumerate() {
            if !names.insert(&hook.name) {
                let message = format!("two hooks are called {}", quote(hook.name.as_str()));
                findings.deny(
                    subject,
                    violation(format!("{field}.{list}[{index}].name"), "hook-name", message, "rename one of them"),
                );
            }
        }
    }
    for (index, hook) in hooks.pre_run.iter().enumerate() {
        if hook.gate == Some(true) {
            let message = "a hook before the run cannot decide about its answer";
            findings.deny(
                subject,
                violation(format!("{field}.preRun[{index}].gate"), "gate-too-early", message, "move it to `postRun`"),
            );
        }
    }
    let gates = hooks.post_run.iter().enumerate().filter(|(_, hook)| hook.gate == Some(true));
    for (index, _) in gates.skip(1) {
        let message = "more than one hook decides about the answer";
        findings
            .deny(subject, violation(format!("{field}.postRun[{index}].gate"), "gate-twice", message, "keep one gate"));
    }
}

/// Whether access to `resource` includes access to `denied`: the same, a subresource of it, or everything.
fn includes_resource(resource: &str, denied: &str) -> bool {
    let resource = resource.to_ascii_lowercase();
    let below = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if resource == "*" || denied == "*" || below(&resource, denied) {
        return true;
    }
    match (resource.split_once('/'), denied.split_once('/')) {
        // `*/exec` and `pods/*` include `pods/exec`.
        (Some((main, sub)), Some((denied_main, denied_sub))) => {
            (main == "*" || main == denied_main) && (sub == "*" || sub == denied_sub)
        }
        (Some((main, _)), None) => main == "*",
        (None, _) => false,
    }
}
