//! Resources of a run's whole sandbox: the agent gets what the other parts leave.

use std::collections::BTreeMap;

use sympozium_api::quantity::Quantity;
use sympozium_api::run_plan::{Part, ResourcesPlan, Role};

use super::AGENT_REQUESTS;
use crate::admit::{Admitted, read_amount};
use crate::quantity::ExactQuantity;

/// Gives the agent what `agentSandbox.resources` leaves for it. Admission has checked that it is enough, and has
/// counted no less than this.
pub fn apply(admitted: &Admitted<'_>, parts: &mut [Part]) {
    let sandbox = admitted.run.spec.agent_sandbox.as_ref();
    let resources = sandbox.filter(|sandbox| sandbox.enabled).and_then(|sandbox| sandbox.resources.as_ref());
    let Some(resources) = resources else {
        return;
    };
    let others = |of: fn(&ResourcesPlan) -> &Quantity| {
        let beside = parts.iter().filter(|part| !part.role.is_hook() && part.role != Role::Agent);
        let amounts = beside.map(|part| read_amount(Some(of(&part.amounts))));
        amounts.fold(ExactQuantity::ZERO, ExactQuantity::saturating_add)
    };
    let left = |list: &BTreeMap<String, Quantity>, name: &str, others: ExactQuantity| {
        let whole = read_amount(list.get(name));
        (whole != ExactQuantity::ZERO).then(|| whole.saturating_sub(others))
    };
    let (limits, requests) = (&resources.limits, &resources.requests);
    let cpu_limit = left(limits, "cpu", others(|amounts| &amounts.cpu_limit));
    let memory_limit = left(limits, "memory", others(|amounts| &amounts.memory_limit));
    let cpu_request = left(requests, "cpu", others(|amounts| &amounts.cpu_request));
    let memory_request = left(requests, "memory", others(|amounts| &amounts.memory_request));
    let Some(agent) = parts.iter_mut().find(|part| part.role == Role::Agent) else {
        return;
    };
    let ResourcesPlan {
        cpu_request: cpu_kept,
        cpu_limit: cpu_most,
        memory_request: memory_kept,
        memory_limit: memory_most,
    } = &mut agent.amounts;
    set_resources(cpu_kept, cpu_most, cpu_request, cpu_limit, AGENT_REQUESTS.cpu);
    set_resources(memory_kept, memory_most, memory_request, memory_limit, AGENT_REQUESTS.memory);
}

/// Sets request and limit. The request is never above the limit.
fn set_resources(
    kept: &mut Quantity,
    most: &mut Quantity,
    request: Option<ExactQuantity>,
    limit: Option<ExactQuantity>,
    least: ExactQuantity,
) {
    let request = request.map_or(least, |request| request.max(least));
    let limit = limit.unwrap_or_else(|| read_amount(Some(most)).max(request));
    *kept = Quantity::Text(request.min(limit).to_string());
    *most = Quantity::Text(limit.to_string());
}
