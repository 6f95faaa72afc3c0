//! Services that a run needs and the installation does not have. Such a run is denied at admission, before anything
//! exists.

use sympozium_api::agent_run::RunMode;
use sympozium_api::text::quote;

use super::RuleContext;
use super::violation::{Findings, violation};

/// Checks claims on warm pools, and runs in server mode.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let services = case.input.settings.services;
    let spec = &case.run.spec;
    let sandbox = spec.agent_sandbox.as_ref().filter(|agent_sandbox| agent_sandbox.enabled);
    if let Some(pool) = sandbox.and_then(|sandbox| sandbox.warm_pool_ref.as_ref())
        && !services.warm_pools
    {
        findings.deny(
            &case.subject,
            violation(
                "spec.agentSandbox.warmPoolRef",
                "warm-pool-unserved",
                format!(
                    "no sandbox can be claimed from the warm pool {}: nothing serves warm pools yet",
                    quote(pool.as_str())
                ),
                "remove it; the run then starts a sandbox of its own",
            ),
        );
    }
    if spec.mode == RunMode::Server && !services.server_mode {
        findings.deny(
            &case.subject,
            violation(
                "spec.mode",
                "server-mode-unserved",
                "runs in server mode cannot be made: nothing serves their requests yet",
                "set `mode: task`",
            ),
        );
    }
}
