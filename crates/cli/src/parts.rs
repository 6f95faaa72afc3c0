//! The parts of a run as entry points of this program: on one machine it is all of them, by the name it is started with.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Where a part finds this program in its sandbox, under the part's own name.
pub const DIRECTORY: &str = "/opt/sympozium/bin";
/// The agent.
pub const AGENT: &str = "agent-runner";
/// The bridge.
pub const BRIDGE: &str = "ipc-bridge";
/// The executor of a skill.
pub const SIDECAR: &str = "skill-sidecar";
/// What brings a skill to the gateway: from loopback to its socket.
pub const FORWARD: &str = "gateway-forward";

/// Is a part, if this process was started as one.
pub fn enter_if_asked() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name)?;
    match name.to_str()? {
        AGENT => Some(sympozium_agent::program::main(arguments)),
        BRIDGE => Some(sympozium_bridge::program::main(arguments)),
        SIDECAR => Some(sympozium_sidecar::main()),
        FORWARD => Some(crate::local::forward::main(&arguments)),
        _ => None,
    }
}

/// Where a part is started from in its sandbox.
pub fn path(part: &str) -> String {
    debug_assert!([AGENT, BRIDGE, SIDECAR, FORWARD].contains(&part));
    format!("{DIRECTORY}/{part}")
}

#[cfg(test)]
mod tests;
