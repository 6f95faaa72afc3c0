//! The decision whether a run may exist: the same in the webhook, in the controller and on the command line.
//!
//! [`admit`] reports all violations at once, and fills in what the run leaves to its agent, the policy and the
//! installation. It is a function of its [`Input`]: the caller fetches the objects that [`wanted_packs`] and
//! [`wanted_policy`] name. The other functions check one object alone, when it is written.
//!
//! Each file below is one family of rules. Names of rules are stable; the tests name every one.

mod address;
mod agents;
mod amounts;
mod defaults;
mod env;
mod features;
pub(crate) mod finding;
mod grants;
mod hooks;
mod host_access;
mod images;
mod input;
mod kernel;
mod model;
mod network;
mod objects;
mod ours;
mod packs;
mod policies;
mod sandbox;
mod secrets;
mod skills;
mod sources;
mod subagents;
mod task;
#[cfg(test)]
mod tests;
mod timing;
mod tool_rules;
mod tools;
mod unlisted;
mod unserved;
mod unused;
mod volumes;

use sympozium_api::{AgentRun, AgentSpec};

pub use address::{AddressSource, ModelAddress, model_address, model_url};
pub(crate) use amounts::{LEAST_AGENT, read as read_amount, usual_of_pack};
pub use env::parameter_variable;
pub use finding::{MAX_FINDINGS, Reason, Subject};
pub use input::{
    Agents, Amounts, Candidates, ContainerAmounts, Facts, Input, KERNEL_HANDLERS, NO_RUNTIME_CLASSES, PackCandidates,
    PackObject, Rights, RuntimeClasses, Services, Settings, wanted_packs, wanted_policy,
};
pub(crate) use kernel::of_run as kernel_of_run;
pub use model::{Endpoints, ResolvedModel, resolved_model};
pub use objects::{admit_agent, admit_agent_author, admit_model, admit_pack, admit_policy, admit_schedule};
pub use packs::{PackOrigin, ResolvedPack};
pub use skills::{MAX_PACK_BYTES, contents};
pub use subagents::{SubagentBounds, subagent_bounds};
pub use task::MAX_TASK_BYTES;
pub use tools::{SANDBOX_PACK, ToolDecision};
pub use unused::{Effect, UNUSED_FIELDS, UnusedField};
pub use volumes::{RunVolume, VolumeOwner};

use crate::policy::{EffectivePolicy, PolicyDefaults};
use finding::Findings;

/// The decision about a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision<'a> {
    /// The run may exist.
    Admitted(Box<Admitted<'a>>),
    /// The run is denied.
    Denied(Denied),
}

/// A run that may exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted<'a> {
    /// The run with all defaults filled in. Admitting it again changes nothing.
    pub run: AgentRun,
    /// What is allowed but unwise.
    pub warnings: Vec<Reason>,
    /// The policy that applies to the run.
    pub policy: EffectivePolicy,
    /// Its packs, each with the namespace that it was found in.
    pub packs: Vec<ResolvedPack<'a>>,
    /// Its tools, each with the decision about calls.
    pub tools: Vec<ToolDecision>,
    /// Its volumes, each with its owner and its name in the pod.
    pub volumes: Vec<RunVolume>,
    /// The resources that its containers may use together.
    pub amounts: Amounts,
}

/// Why a run may not exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Denied {
    /// Every violation.
    pub reasons: Vec<Reason>,
    /// What is allowed but unwise.
    pub warnings: Vec<Reason>,
}

impl Denied {
    /// Whether the only violations are missing objects: then the run may wait for them.
    pub fn may_wait(&self) -> bool {
        self.reasons.iter().all(|reason| reason.missing.is_some())
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
    let policy = EffectivePolicy::of(input.floor, named, &input.settings.system_namespace);
    let defaults = PolicyDefaults::of(input.floor, named);
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
    let nobody = AgentSpec::default();
    let run = defaults::filled_in(input, agent, &policy, policy_defaults);
    let (packs, tools, volumes, amounts) = {
        let mut case = Case {
            input,
            subject: run_subject(input),
            run: &run,
            agent: agent.unwrap_or(&nobody),
            policy: &policy,
            packs: Vec::new(),
        };
        case.packs = packs::resolve(&case, &mut findings);
        for pack in case.packs.iter().filter(|pack| pack.starts) {
            objects::check_pack(&pack.subject(), pack.spec, &mut findings);
        }
        agents::check(&case, &mut findings);
        task::check(&case, &mut findings);
        timing::check(&case, &mut findings);
        model::check(&case, &mut findings);
        sandbox::check(&case, &mut findings);
        features::check(&case, &mut findings);
        subagents::check(&case, &mut findings);
        images::check(&case, &mut findings);
        env::check(&case, &mut findings);
        secrets::check(&case, &mut findings);
        ours::check(&case, &mut findings);
        hooks::check(&case, &mut findings);
        host_access::check(&case, &mut findings);
        grants::check(&case, &mut findings);
        unlisted::check(&case, &mut findings);
        network::check(&case, &mut findings);
        unused::check(&case, &mut findings);
        unserved::check(&case, &mut findings);
        let tools = tools::check(&case, &mut findings);
        network::warn_about_fetching(&case, &tools, &mut findings);
        let volumes = volumes::check(&case, &mut findings);
        let amounts = amounts::check(&case, &mut findings);
        (case.packs, tools, volumes, amounts)
    };
    let Findings { reasons, warnings } = findings;
    if !reasons.is_empty() {
        return Decision::Denied(Denied { reasons, warnings });
    }
    Decision::Admitted(Box::new(Admitted { run, warnings, policy, packs, tools, volumes, amounts }))
}

/// The context of the rules.
struct Case<'c, 'a> {
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
