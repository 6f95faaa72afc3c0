//! The decision whether a run may exist: the same in the webhook, in the controller and on the command line.
//!
//! [`admit`] reports all violations at once, and fills in what the run leaves to its agent, the policy and the
//! installation. It is a function of its [`Input`], which [`resolve`](crate::resolve::resolve) makes of
//! the caller's objects. The other functions check one object alone, when it is written.
//!
//! Each file below is one family of rules. Names of rules are stable; the tests name every one.

mod address;
mod agents;
mod defaults;
mod env;
mod features;
mod grants;
mod hooks;
mod host_access;
mod images;
mod input;
mod kernel;
mod missing_services;
mod model;
mod network;
mod objects;
mod packs;
mod policies;
mod reserved_names;
mod resources;
mod sandbox;
mod secrets;
mod skills;
mod subagents;
mod task;
#[cfg(test)]
mod tests;
mod timeouts;
mod tool_rules;
mod tools;
mod unlisted_permissions;
mod unused_fields;
pub(crate) mod violation;
mod volume_sources;
mod volumes;

use sympozium_api::{AgentRun, AgentSpec};

pub use address::{AddressSource, ModelAddress, model_address, model_url};
pub use env::parameter_variable;
pub use input::{
    Agents, Candidates, DefaultLimits, Facts, Input, KERNEL_HANDLERS, NO_RUNTIME_CLASSES, PackCandidates, PackObject,
    Permissions, ResourceLimits, RuntimeClasses, Services, Settings, referenced_packs, referenced_policy,
};
pub(crate) use kernel::own_kernel as kernel_of_run;
pub use model::{ResolvedModel, resolve_model};
pub use objects::{admit_agent, admit_agent_author, admit_model, admit_pack, admit_policy, admit_schedule};
pub use packs::{PackOrigin, ResolvedPack};
pub(crate) use resources::{MIN_AGENT_LIMITS, default_sidecar_limits, quantity_or_zero as read_amount};
pub use skills::{MAX_PACK_BYTES, decode_contents};
pub use subagents::{SubagentBounds, subagent_bounds};
pub use task::MAX_TASK_BYTES;
pub use tools::{SANDBOX_PACK, ToolDecision};
pub use unused_fields::{Effect, UNUSED_FIELDS, UnusedField};
pub use violation::{MAX_FINDINGS, Subject, Violation};
pub use volumes::{RunVolume, VolumeOwner};

use crate::policy::{EffectivePolicy, PolicyDefaults};
use violation::Findings;

/// The decision about a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision<'a> {
    /// The run may exist.
    Admitted(Box<Admitted<'a>>),
    /// The run is denied.
    Denied(Denial),
}

/// A run that may exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted<'a> {
    /// The run with all defaults filled in. Admitting it again changes nothing.
    pub run: AgentRun,
    /// What is allowed but unwise.
    pub warnings: Vec<Violation>,
    /// The policy that applies to the run.
    pub policy: EffectivePolicy,
    /// Its packs, each with the namespace that it was found in.
    pub packs: Vec<ResolvedPack<'a>>,
    /// Its tools, each with the decision about calls.
    pub tools: Vec<ToolDecision>,
    /// Its volumes, each with its owner and its name in the pod.
    pub volumes: Vec<RunVolume>,
    /// The resources that its containers may use together.
    pub resources: ResourceLimits,
}

/// Why a run may not exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Denial {
    /// Every violation.
    pub violations: Vec<Violation>,
    /// What is allowed but unwise.
    pub warnings: Vec<Violation>,
}

impl Denial {
    /// Whether the only violations are missing objects: then the run may wait for them.
    pub fn may_wait(&self) -> bool {
        self.violations.iter().all(|reason| reason.missing.is_some())
    }
}

/// Decides whether a run may exist.
///
/// # Guarantees
///
/// * Reports all violations at once (at most [`MAX_FINDINGS`]), in an order that depends only on the input.
/// * A stricter policy, in the order of [`EffectivePolicy::is_at_most`], never admits more.
/// * Defaulting is idempotent: admitting [`Admitted::run`] again gives the same run.
/// * Never panics, whatever the objects contain; work is bounded by their size.
pub fn admit<'a>(input: &Input<'a>) -> Decision<'a> {
    let mut findings = Findings::default();
    let subject = run_subject(input);
    let agent = agents::resolve(input, &subject, &mut findings);
    let named = policies::resolve(input, agent, &mut findings);
    let policy = EffectivePolicy::from_specs(input.floor, named, &input.settings.system_namespace);
    let defaults = PolicyDefaults::from_specs(input.floor, named);
    decide(input, agent, policy, &defaults, findings)
}

/// The rest of [`admit`], once the policy is known.
fn decide<'a>(
    input: &Input<'a>,
    agent: Option<&'a AgentSpec>,
    policy: EffectivePolicy,
    policy_defaults: &PolicyDefaults,
    mut findings: Findings,
) -> Decision<'a> {
    let no_agent = AgentSpec::default();
    let run = defaults::apply_defaults(input, agent, &policy, policy_defaults);
    let (packs, tools, volumes, amounts) = {
        let mut case = RuleContext {
            input,
            subject: run_subject(input),
            run: &run,
            agent: agent.unwrap_or(&no_agent),
            policy: &policy,
            packs: Vec::new(),
        };
        case.packs = packs::resolve(&case, &mut findings);
        for pack in case.packs.iter().filter(|pack| pack.starts_sidecar) {
            objects::check_pack(&pack.subject(), pack.spec, &mut findings);
        }
        agents::check(&case, &mut findings);
        task::check(&case, &mut findings);
        timeouts::check(&case, &mut findings);
        model::check(&case, &mut findings);
        sandbox::check(&case, &mut findings);
        features::check(&case, &mut findings);
        subagents::check(&case, &mut findings);
        images::check(&case, &mut findings);
        env::check(&case, &mut findings);
        secrets::check(&case, &mut findings);
        reserved_names::check(&case, &mut findings);
        hooks::check(&case, &mut findings);
        host_access::check(&case, &mut findings);
        grants::check(&case, &mut findings);
        unlisted_permissions::check(&case, &mut findings);
        network::check(&case, &mut findings);
        unused_fields::check(&case, &mut findings);
        missing_services::check(&case, &mut findings);
        let tools = tools::check(&case, &mut findings);
        network::warn_about_fetching(&case, &tools, &mut findings);
        let volumes = volumes::check(&case, &mut findings);
        let amounts = resources::check(&case, &mut findings);
        (case.packs, tools, volumes, amounts)
    };
    let Findings { violations: reasons, warnings } = findings;
    if !reasons.is_empty() {
        return Decision::Denied(Denial { violations: reasons, warnings });
    }
    Decision::Admitted(Box::new(Admitted { run, warnings, policy, packs, tools, volumes, resources: amounts }))
}

/// The context of the rules.
struct RuleContext<'c, 'a> {
    input: &'c Input<'a>,
    subject: Subject,
    /// The run with all defaults filled in.
    run: &'c AgentRun,
    /// Empty where there is no agent; then the run is denied already.
    agent: &'c AgentSpec,
    policy: &'c EffectivePolicy,
    packs: Vec<ResolvedPack<'a>>,
}

fn run_subject(input: &Input<'_>) -> Subject {
    let metadata = &input.run.metadata;
    let name = metadata.name.as_deref().or(metadata.generate_name.as_deref());
    Subject::new("AgentRun", Some(input.namespace), name.unwrap_or_default())
}
