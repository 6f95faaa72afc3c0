//! The command line of our executor in a skill's container.
//!
//! The executor starts in the image that it must confine. So every option is on the command line, and `--injected`
//! makes the executor read no other source: variables in the `ENV` of the image have no effect.

use sympozium_api::RunPlan;
use sympozium_api::builtin_tool::COMMAND_SECONDS;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::run_plan::{Part, PartName, ToolHandler, paths};

use crate::path::overlap;

/// Seconds after the longest command until a claim without a result counts as lost.
const LEASE_GRACE_SECONDS: u32 = 30;
/// Concurrent commands for each concurrent tool call of a run: commands that were abandoned end while new ones run.
const COMMANDS_PER_CALL: u32 = 2;
/// The bounds of the executor's own options.
const MAX_COMMAND_SECONDS: u32 = 86_400;
const MAX_CONCURRENT: u32 = 1024;

/// What a backend knows about the place where an executor runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorSettings {
    /// The executor's profile.
    pub profile: ExecutorProfile,
    /// Guarantees that the platform provides; see [`platform_words`].
    pub platform: Vec<Guarantee>,
}

/// The profile of an executor, where the backend knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutorProfile {
    /// The executor detects the kernel.
    Detected,
    /// A Linux kernel. On any other the executor does not start.
    Container,
    /// gVisor. On any other kernel the executor does not start.
    Gvisor,
}

impl ExecutorProfile {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Detected => "auto",
            Self::Container => "container",
            Self::Gvisor => "gvisor",
        }
    }
}

/// The arguments of the executor that runs the commands of a part, without the program's name.
///
/// # Guarantees
///
/// Every option of `skill-sidecar ipc` that a variable could set is among them.
pub fn executor_arguments(plan: &RunPlan, part: &Part, at: &ExecutorSettings) -> Vec<String> {
    let mut arguments = vec![
        "ipc".to_owned(),
        "--injected".to_owned(),
        "--authenticated".to_owned(),
        format!("--pack={}", part.role.pack().unwrap_or_default()),
        format!("--profile={}", at.profile.as_str()),
        floor_argument(&plan.isolation.floor),
        platform_argument(&at.platform),
        format!("--ipc-dir={}", paths::IPC),
        format!("--workspace={}", paths::WORKSPACE),
        format!("--hidden={}", paths::INPUT),
    ];
    arguments.extend(limit_arguments(plan, part));
    let writable = part.mounts.iter().filter(|mount| !mount.read_only);
    let writable = writable.map(|mount| mount.path.as_str());
    let ours = [paths::IPC, paths::INPUT];
    // A mount that overlaps one of our paths is not writable for commands.
    let writable = writable.filter(|path| !ours.iter().any(|own| overlap(path, own)));
    arguments.extend(writable.map(|path| format!("--writable={path}")));
    arguments
}

/// The arguments for timeouts, concurrency and logging: the same for every backend.
pub fn limit_arguments(plan: &RunPlan, part: &Part) -> Vec<String> {
    let seconds = command_seconds(plan, &part.name);
    let concurrent = plan.limits.concurrent_tool_calls;
    let concurrent = concurrent.saturating_mul(COMMANDS_PER_CALL);
    vec![
        format!("--max-timeout={seconds}"),
        format!("--claim-lease={}", seconds + LEASE_GRACE_SECONDS),
        format!("--max-concurrent={}", concurrent.clamp(1, MAX_CONCURRENT)),
        "--log-level=info".to_owned(),
        "--log-format=json".to_owned(),
    ]
}

/// The argument for the isolation floor of a plan.
pub fn floor_argument(floor: &[Guarantee]) -> String {
    format!("--minimum-isolation={}", join_words(floor))
}

/// The argument that tells bridge and executors which guarantees the platform provides: when an executor reports one of
/// these as `delegated` it is accepted, and any other that is delegated counts as not enforced.
pub fn platform_argument(platform: &[Guarantee]) -> String {
    format!("--platform-holds={}", join_words(platform))
}

/// The longest timeout of a part's commands, in seconds.
fn command_seconds(plan: &RunPlan, name: &PartName) -> u32 {
    let tools = plan.tools.iter().filter(|tool| match &tool.acts {
        ToolHandler::Shell { part } | ToolHandler::Program { part, .. } => part == name,
        ToolHandler::Agent | ToolHandler::Bridge => false,
    });
    let longest = tools.map(|tool| tool.limits.timeout_seconds).max();
    longest.unwrap_or(COMMAND_SECONDS).clamp(1, MAX_COMMAND_SECONDS)
}

fn join_words(guarantees: &[Guarantee]) -> String {
    if guarantees.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<&str> = guarantees.iter().map(|guarantee| guarantee.as_str()).collect();
    words.join(",")
}
