//! The stored plan, opened for tests.

use sympozium_api::RunPlan;
use sympozium_api::names::EnvName;
use sympozium_api::run_plan::{
    AllowedHosts, Destination, Gate, GatewayCredential, ModelEndpoint, ModelKey, PartName, ToolPlan, WireFormat,
};

/// A plan as it is stored. Two packs, `cluster` and `tickets`; two credentials, `model` and `web`.
pub const STORED_PLAN: &str = include_str!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
/// The packs of the stored plan.
pub const PACKS: [&str; 2] = ["cluster", "tickets"];
/// The model of [`open_plan`].
pub const MODEL: &str = "test-model";
/// Where the model of [`open_plan`] is.
pub const MODEL_HOST: &str = "model.test";
/// See [`MODEL_HOST`].
pub const MODEL_PORT: u16 = 8080;
/// The name of the credential for the model.
pub const MODEL_CREDENTIAL: &str = "model";

/// The stored plan as it is.
pub fn stored_plan() -> RunPlan {
    RunPlan::read(STORED_PLAN.as_bytes()).expect("a plan")
}

/// The stored plan with every tool allowed and the model at [`MODEL_HOST`].
pub fn open_plan(wire: WireFormat) -> RunPlan {
    let mut plan = stored_plan();
    for tool in &mut plan.tools {
        tool.gate = Gate::Allow;
    }
    let (provider, path, variable) = match wire {
        WireFormat::OpenAi => ("openai", "/v1/chat/completions", "OPENAI_API_KEY"),
        WireFormat::Anthropic => ("anthropic", "/v1/messages", "ANTHROPIC_API_KEY"),
    };
    plan.model.provider = provider.to_owned();
    plan.model.model = MODEL.to_owned();
    plan.model.wire = wire;
    let secret = plan.model.keys[0].secret.clone();
    plan.model.keys = vec![ModelKey { variable: EnvName::new(variable), secret }];
    set_endpoint(
        &mut plan,
        ModelEndpoint { encrypted: false, host: MODEL_HOST.to_owned(), port: MODEL_PORT, path: path.to_owned() },
    );
    plan.deadlines.grace_seconds = 2;
    plan
}

/// Moves the model to an endpoint, which is all that its credential opens.
pub fn set_endpoint(plan: &mut RunPlan, endpoint: ModelEndpoint) {
    let destination = format!("{} {}", endpoint.host, endpoint.port);
    open_only(plan, MODEL_CREDENTIAL, &[&destination]);
    plan.model.endpoint = Some(endpoint);
}

/// Has a credential open these hosts and nothing else: each `host`, or `host port`.
pub fn open_only(plan: &mut RunPlan, credential: &str, hosts: &[&str]) {
    for found in plan.credentials.iter_mut().filter(|found| found.name == credential) {
        found.reach = AllowedHosts { public: false, destinations: destinations(hosts) };
    }
}

/// The tool of this name, of this pack where it has one.
pub fn tool<'p>(plan: &'p mut RunPlan, name: &str, pack: Option<&str>) -> &'p mut ToolPlan {
    plan.tools.iter_mut().find(|tool| tool.name == name && tool.pack.as_deref() == pack).expect("a tool")
}

/// Whether a credential opens public hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Public {
    /// It does.
    Open,
    /// It does not.
    Closed,
}

/// A credential with what it opens: each `host`, or `host port`.
pub fn credential(name: &str, public: Public, hosts: &[&str]) -> GatewayCredential {
    GatewayCredential {
        name: name.to_owned(),
        part: PartName(format!("part-of-{name}")),
        reach: AllowedHosts { public: public == Public::Open, destinations: destinations(hosts) },
    }
}

fn destinations(hosts: &[&str]) -> Vec<Destination> {
    let destination = |text: &&str| match text.split_once(' ') {
        Some((host, port)) => Destination { host: host.to_owned(), port: Some(port.parse().expect("a port")) },
        None => Destination { host: (*text).to_owned(), port: None },
    };
    hosts.iter().map(destination).collect()
}
