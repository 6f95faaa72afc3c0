//! A whole run: the real bridge as a process, a real gateway with the run API, a model server, volumes of skills, and an agent
//! that sends what the test wants.

mod acting;
mod active_skill;
mod asking;
mod calling;
mod ending;
mod floor;
mod foreign;
mod hostile_agent;
mod hostile_agent_asking;
mod hostile_agent_frames;
mod hostile_agent_memory;
mod hostile_skill;
mod hostile_skill_silence;
mod key;
mod modelling;
mod real_sidecar;
mod seed_executor;

use sympozium_api::RunPlan;
use sympozium_api::run_plan::WireFormat;
use sympozium_harness::RunHarness;

use crate::check_network::PROGRAM;

/// The plan of most runs here.
fn open_plan() -> RunPlan {
    sympozium_harness::plan::open_plan(WireFormat::OpenAi)
}

/// Starts a run of that plan with changes.
fn start(change: impl FnOnce(&mut RunPlan)) -> RunHarness {
    let mut plan = open_plan();
    change(&mut plan);
    RunHarness::setup(plan).start(PROGRAM)
}
