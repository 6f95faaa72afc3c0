//! The most important facts, in a few sentences.

use std::collections::BTreeSet;

use serde::Serialize;
use sympozium_api::run_plan::{Gate, RunPlan};

use super::grants::{self, Grant};
use super::tools::{ArgumentCheck, ToolInfo};
use super::{credentials, network, node, secrets, tools};
use crate::rbac::{Scope, Weight};

/// What a run can and cannot do. Each sentence continues `This run can` or `It cannot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// `This run can …`
    pub can: Vec<String>,
    /// `It cannot …`; empty for a run with any access to the node, which can circumvent every bound.
    pub cannot: Vec<String>,
}

/// Number of names that a sentence lists before it counts the rest.
const MAX_LISTED: usize = 4;

pub fn summarize(plan: &RunPlan) -> Summary {
    let mut can = Vec::new();
    let mut cannot = Vec::new();
    summarize_node(plan, &mut can, &mut cannot);
    summarize_kubernetes(plan, &mut can, &mut cannot);
    summarize_commands(plan, &mut can, &mut cannot);
    summarize_network(plan, &mut can, &mut cannot);
    summarize_secrets(plan, &mut can, &mut cannot);
    if super::bounds::can_start_runs(plan) {
        can.push(format!("start {} other runs, {} at a time", plan.subagents.children, plan.subagents.concurrent));
    }
    let ceiling = format_seconds(plan.deadlines.ceiling_seconds);
    cannot.push(match plan.after_run_seconds() {
        None => format!("last longer than {ceiling}"),
        Some(after) => format!("last longer than {ceiling}, and the hooks after it {} more", format_seconds(after)),
    });
    if node::uses_node(plan) {
        cannot.clear();
    }
    Summary { can, cannot }
}

fn summarize_node(plan: &RunPlan, can: &mut Vec<String>, cannot: &mut Vec<String>) {
    let mut has = Vec::new();
    for part in &plan.parts {
        for power in node::describe_node_access(plan, part) {
            has.push(format!("{power} ({})", part.name));
        }
    }
    has.extend(node::unmounted_paths(plan));
    if has.is_empty() {
        cannot.push("touch the node it runs on".to_owned());
    } else {
        can.push(format!("use the node it runs on: {}", join_words(&has)));
    }
}

fn summarize_kubernetes(plan: &RunPlan, can: &mut Vec<String>, cannot: &mut Vec<String>) {
    let identities = grants::all(plan);
    let all = || identities.iter().flat_map(|identity| &identity.grants);
    let count = |scope| all().filter(|grant| grant.scope == scope).count();
    let (whole, own) = (count(Scope::Cluster), count(Scope::Namespace));
    if whole + own == 0 {
        if credentials::has_token(plan) {
            can.push("use the Kubernetes API without rights there".to_owned());
        } else {
            cannot.push("hold a token for the Kubernetes API".to_owned());
        }
        return;
    }
    let packs: BTreeSet<&str> = identities.iter().map(|identity| identity.pack.as_deref().unwrap_or("hooks")).collect();
    let packs: Vec<String> = packs.into_iter().map(str::to_owned).collect();
    let mut places = Vec::new();
    if whole > 0 {
        places.push("the whole cluster".to_owned());
    }
    if own > 0 {
        places.push(format!("namespace {}", plan.run.namespace));
    }
    can.push(format!("use the Kubernetes API in {} ({})", places.join(" and "), join_words(&packs)));
    let heavy: BTreeSet<String> = all().flat_map(severe_consequences).collect();
    let heavy: Vec<String> = heavy.into_iter().collect();
    if heavy.is_empty() {
        cannot.push("take more rights by those it has".to_owned());
    } else {
        can.push(format!("take more rights by those it has: {}", heavy.join("; ")));
    }
}

/// Consequences of a rule that give more permissions than it names.
fn severe_consequences(grant: &Grant) -> impl Iterator<Item = String> {
    let heavy = grant.implies.iter();
    let heavy = heavy.filter(|implication| implication.weight == Weight::MoreRights);
    heavy.map(|implication| format!("{} {}", implication.rights.join(", "), implication.consequence))
}

fn summarize_commands(plan: &RunPlan, can: &mut Vec<String>, cannot: &mut Vec<String>) {
    let tools = tools::all(plan);
    let at = |gate, tool: &ToolInfo| tool.gate == gate;
    let lines = |gate| -> Vec<String> {
        let free = tools.iter().filter(|tool| tool.arguments == ArgumentCheck::FreeText);
        let parts = free.filter(|tool| at(gate, tool)).filter_map(|tool| tool.part.clone());
        parts.collect::<BTreeSet<_>>().into_iter().collect()
    };
    let (freely, asking) = (lines(Gate::Allow), lines(Gate::Ask));
    if !freely.is_empty() {
        can.push(format!("run any command line in {}", join_words(&freely)));
    }
    if !asking.is_empty() {
        can.push(format!("run any command line in {} once a person agrees", join_words(&asking)));
    }
    if freely.is_empty() && asking.is_empty() {
        cannot.push("call a tool that is known to take a command line".to_owned());
    }
    let by_name = |gate| {
        let held = tools.iter().filter(|tool| tool.arguments == ArgumentCheck::Schema);
        held.filter(|tool| at(gate, tool)).count()
    };
    let counted = |count: usize| match count {
        1 => "1 tool".to_owned(),
        count => format!("{count} tools"),
    };
    match (by_name(Gate::Allow), by_name(Gate::Ask)) {
        (0, 0) => {}
        (freely, 0) => can.push(format!("call {}", counted(freely))),
        (0, asking) => can.push(format!("call {} once a person agrees", counted(asking))),
        (freely, asking) => can.push(format!("call {} by itself and {asking} once a person agrees", counted(freely))),
    }
}

fn summarize_network(plan: &RunPlan, can: &mut Vec<String>, cannot: &mut Vec<String>) {
    let network = network::explain_network(plan);
    let public: Vec<String> =
        network.parts.iter().filter(|part| part.any_public_host).map(|part| part.part.clone()).collect();
    let hosts: BTreeSet<String> = network.parts.iter().flat_map(|part| part.hosts.clone()).collect();
    let mut reached: Vec<String> = hosts.into_iter().collect();
    if !public.is_empty() {
        reached.insert(0, format!("any public host ({})", join_words(&public)));
    }
    if network::has_node_network(plan) {
        can.push("reach whatever the node reaches".to_owned());
        return;
    }
    let elsewhere = if reached.is_empty() && plan.identities.is_empty() {
        "reach any host, or look up names"
    } else {
        "reach any other host, or look up names"
    };
    if !reached.is_empty() {
        can.push(format!("reach {}", join_words(&reached)));
    }
    cannot.push(if network.pod.enforced_or_refused {
        elsewhere.to_owned()
    } else {
        format!("{elsewhere}, if the cluster enforces NetworkPolicies")
    });
}

fn summarize_secrets(plan: &RunPlan, can: &mut Vec<String>, cannot: &mut Vec<String>) {
    let seen: Vec<String> = secrets::all(plan)
        .into_iter()
        .filter_map(|secret| {
            let parts: BTreeSet<String> = secret.seen.iter().filter_map(|secret_use| secret_use.part.clone()).collect();
            let parts: Vec<String> = parts.into_iter().collect();
            let name = secret.secret;
            (!parts.is_empty()).then(|| format!("{name} ({})", join_words(&parts)))
        })
        .collect();
    if !seen.is_empty() {
        can.push(format!("see Secret {}", join_words(&seen)));
    }
    let has_rights = grants::all(plan).iter().any(|identity| !identity.grants.is_empty());
    if seen.is_empty() && !has_rights && !credentials::has_unknown(plan) {
        cannot.push("read a Secret other than its own".to_owned());
    }
    if !credentials::agent_has_credential(plan) {
        cannot.push("start its agent with a credential".to_owned());
    }
}

/// `a, b and 3 more`.
fn join_words(words: &[String]) -> String {
    if words.len() <= MAX_LISTED {
        return match words {
            [] => "nothing".to_owned(),
            [only] => only.clone(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        };
    }
    let rest = words.len() - MAX_LISTED;
    format!("{} and {rest} more", words[..MAX_LISTED].join(", "))
}

/// Formats a duration as `1 h 30 min`.
pub fn format_seconds(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut rest = seconds;
    let mut words = Vec::new();
    for (length, unit) in units {
        if rest >= length {
            words.push(format!("{} {unit}", rest / length));
            rest %= length;
        }
    }
    if words.is_empty() { "0 s".to_owned() } else { words.join(" ") }
}
