//! The command line. Settings that have a flag have a variable `SYMPOZIUM_*` too.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use sympozium_api::run_plan::paths;
use sympozium_program::LogArguments;

/// Default wait for input and bridge.
const WAIT_SECONDS: u64 = 60;
/// A warm sandbox may wait for its run for a week.
const MAX_WAIT_SECONDS: u64 = 604_800;

/// The agent of a run: sends the task to the model, runs its tool calls, and returns the answer.
///
/// It holds no credential, has no network and starts no program. It reaches the model, commands, pages and messages through one
/// socket, where the bridge decides about every call.
#[derive(Debug, Parser)]
#[command(
    name = "agent-runner",
    version,
    max_term_width = 100,
    after_long_help = "\
What it reads:
  INPUT/agent.json    the task, the offered tools, the skills, the limits
  the directories listed there, for the file tools and skills

What an author can set for a run, as variables in its `env`; none of them widens a limit of the plan:
  MAX_TOOL_ITERATIONS                 rounds of the loop
  CONTEXT_TOOL_RESULT_MAX_BYTES       bytes of one result for the model [51200]
  CONTEXT_HISTORY_BUDGET_BYTES        bytes of results above which the oldest are left out [409600]
  CONTEXT_HISTORY_BUDGET_LOW_BYTES    down to how many [half of that]
  CONTEXT_KEEP_RECENT_RESULTS         newest results that are always kept [3]
  LLM_MAX_RETRIES                     retries of a request [5]
  LLM_REQUEST_TIMEOUT                 time for one request [10m]

Examples:
  Run as the agent of a run on one machine, whose files are below ./run:
    agent-runner --input=run/input --door=run/door

Exit codes:
  0  the model answered, and the bridge has the answer
  1  there is no answer, or the agent failed; the last lines say why, and what to try
  2  the command line was not understood"
)]
pub struct Arguments {
    /// The directory of the run's inputs.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_AGENT_INPUT", default_value = paths::INPUT)]
    pub input: PathBuf,
    /// The directory with the bridge's socket.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_AGENT_DOOR", default_value = paths::DOOR)]
    pub door: PathBuf,
    /// The root of the image that this runs in: its files can be read, but for what is mounted into it. Not for programs that
    /// run on a host.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_AGENT_IMAGE")]
    pub image: Option<PathBuf>,
    /// How long the input may take to appear, as in a sandbox that was started before its run [seconds].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_AGENT_WAIT_FOR_INPUT", default_value_t = WAIT_SECONDS,
        value_parser = clap::value_parser!(u64).range(0..=MAX_WAIT_SECONDS))]
    pub wait_for_input: u64,
    /// How long the bridge may take to appear [seconds].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_AGENT_WAIT_FOR_BRIDGE", default_value_t = WAIT_SECONDS,
        value_parser = clap::value_parser!(u64).range(0..=MAX_WAIT_SECONDS))]
    pub wait_for_bridge: u64,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

impl Arguments {
    /// How long the input may take to appear.
    pub const fn wait_for_input(&self) -> Duration {
        Duration::from_secs(self.wait_for_input)
    }

    /// How long the bridge may take to appear.
    pub const fn wait_for_bridge(&self) -> Duration {
        Duration::from_secs(self.wait_for_bridge)
    }
}
