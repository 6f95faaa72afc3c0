//! Runs of manifests, with a given scheduler and agent program.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sympozium_api::names::SkillPackName;
use sympozium_api::run_plan::ModelEndpoint;
use sympozium_api::{Agent, AgentRun, RunPlan, SkillPack, SympoziumPolicy};
use sympozium_harness::plan::{MODEL_HOST, MODEL_PORT, set_endpoint};
use sympozium_plan::admit::{
    Agents, Candidates, Decision, Facts, Input, NO_RUNTIME_CLASSES, PackCandidates, PackObject, Services, admit,
};
use sympozium_plan::plan::{PlanSettings, plan};
use sympozium_testkit::command;

use crate::harness::Harness;

pub const RUNNER: &str = env!("CARGO_BIN_EXE_agent-runner");
const FLOOR: &str = include_str!("../../../../../config/policies/floor.yaml");
const NAMESPACE: &str = "default";
const UID: &str = "7c0e5d52-4b1f-4d0e-9a57-3f0f6a1c2b9d";

/// The plan of the run in these manifests, with the test's model endpoint.
pub fn planned(manifests: &str) -> RunPlan {
    let (mut run, mut agent, mut policy) = (None, None, None);
    let mut packs: Vec<SkillPack> = Vec::new();
    for document in manifests.split("---\n") {
        let object: Value = serde_saphyr::from_str(document).expect("YAML");
        match object["kind"].as_str() {
            Some("AgentRun") => run = Some(read::<AgentRun>(object)),
            Some("Agent") => agent = Some(read::<Agent>(object)),
            Some("SkillPack") => packs.push(read(object)),
            Some("SympoziumPolicy") => policy = Some(read::<SympoziumPolicy>(object)),
            other => panic!("no kind for a run: {other:?}"),
        }
    }
    let mut run = run.expect("a run");
    run.metadata.uid = Some(UID.to_owned());
    let floor: SympoziumPolicy = read(serde_saphyr::from_str(FLOOR).expect("YAML"));
    let candidate = |pack| PackCandidates { own: Some(PackObject { pack, author: None }), system: None };
    let name = |pack: &SkillPack| SkillPackName::new(pack.metadata.name.clone().expect("a name"));
    let packs: BTreeMap<_, _> = packs.iter().map(|pack| (name(pack), candidate(pack))).collect();
    // The guide's gateway serves these.
    let settings = sympozium_plan::admit::Settings {
        services: Services { channels: true, schedules: true, subagents: true, ..Services::default() },
        ..sympozium_plan::admit::Settings::default()
    };
    let input = Input {
        run: &run,
        namespace: NAMESPACE,
        agents: Agents { agent: agent.as_ref(), instance: None, author: None },
        packs: &packs,
        policies: Candidates { own: policy.as_ref(), system: None },
        floor: Some(&floor.spec),
        models: Candidates::default(),
        author: None,
        runtime_classes: &NO_RUNTIME_CLASSES,
        facts: Facts::default(),
        settings: &settings,
    };
    let mut plan = match admit(&input) {
        Decision::Admitted(admitted) => {
            let planned = plan(&input, &admitted, &PlanSettings::default());
            planned.expect("a plan").plan
        }
        Decision::Denied(denied) => panic!("denied: {:?}", denied.violations),
    };
    let path = "/v1/chat/completions".to_owned();
    let endpoint = ModelEndpoint { encrypted: false, host: MODEL_HOST.to_owned(), port: MODEL_PORT, path };
    set_endpoint(&mut plan, endpoint);
    plan
}

fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).expect("an object of its kind")
}

/// Runs this program as the agent and returns the answer.
pub async fn answer(harness: &mut Harness, program: impl AsRef<Path>) -> String {
    harness.start_program(command(program.as_ref()));
    harness.wait_for_end().await.answer().to_owned()
}

/// A line for each decision and each action.
pub fn call_lines(harness: &Harness) -> Vec<String> {
    let lines = harness.receipt_lines();
    lines[1..lines.len() - 1].to_vec()
}
