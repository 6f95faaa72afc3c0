//! The limits of a part: processes, memory, processors, time, open files and scratch space.

use std::path::Path;
use std::time::Duration;

use sympozium_api::quantity::Quantity;
use sympozium_api::run_plan::{Mount, Part, VolumeSource, paths};
use sympozium_exec::cgroup::Limits;
use sympozium_exec::request::{MAX_GRACE, MAX_TIMEOUT};
use sympozium_exec::{Config, Invocation, Request};
use sympozium_plan::quantity::ExactQuantity;

use super::{MAX_OPEN_FILES, SandboxInputs};
use crate::parts;
use crate::prepared_run::PreparedRun;

/// Processes of our own in the sandbox of a part, not counting those of a skill's commands.
pub const MAX_PIDS: u32 = 512;
/// The output of parts is only logged, not captured.
const CAPTURED_OUTPUT_BYTES: usize = 0;

impl SandboxInputs<'_> {
    /// Sets timeout, grace period and limits from the plan.
    pub(crate) fn apply_limits(&self, part: &Part, mut request: Request) -> Request {
        let deadlines = &self.prepared.plan.deadlines;
        let seconds = part.timeout_seconds.unwrap_or(deadlines.ceiling_seconds);
        request.timeout = Duration::from_secs(seconds.max(1)).min(MAX_TIMEOUT);
        request.grace = Duration::from_secs(deadlines.grace_seconds).min(MAX_GRACE);
        request.output_bytes = CAPTURED_OUTPUT_BYTES;
        let is_ours = match &request.invocation {
            Invocation::Argv(argv) => argv.first().is_some_and(|it| Path::new(it).starts_with(parts::DIRECTORY)),
            _ => false,
        };
        if is_ours {
            request.open_files = MAX_OPEN_FILES;
        }
        request
    }
}

/// Sets the size of scratch space that the sandbox mounts itself.
pub fn set_tmpfs_size(config: &mut Config, prepared: &PreparedRun, mount: &Mount) -> anyhow::Result<()> {
    let volume = prepared.plan.volume(&mount.volume);
    let Some(VolumeSource::Scratch { size, .. }) = volume.map(|it| &it.source) else {
        return Ok(());
    };
    let bytes = to_bytes(size)?;
    match mount.path.as_str() {
        paths::TMP => config.layout.tmp_bytes = bytes,
        paths::SHM => config.layout.shm_bytes = bytes,
        _ => {}
    }
    Ok(())
}

pub fn cgroup_limits(part: &Part) -> anyhow::Result<Limits> {
    let cpu_nanos = ExactQuantity::parse(&part.amounts.cpu_limit.text())?.as_nanos();
    Ok(Limits {
        memory_bytes: Some(to_bytes(&part.amounts.memory_limit)?),
        pids: Some(MAX_PIDS),
        cpu_millis: u32::try_from(cpu_nanos / 1_000_000).ok(),
    })
}

fn to_bytes(quantity: &Quantity) -> anyhow::Result<u64> {
    let nanos = ExactQuantity::parse(&quantity.text())?.as_nanos();
    Ok(u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX))
}
