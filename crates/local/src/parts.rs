//! The parts of a run as entry points of this program: on one machine it is all of them, selected by `argv[0]`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The directory in a sandbox where this program is bound under the names of the parts.
pub const DIRECTORY: &str = "/opt/sympozium/bin";
pub const AGENT: &str = "agent-runner";
pub const BRIDGE: &str = "ipc-bridge";
pub const SIDECAR: &str = "skill-sidecar";
/// Forwards from loopback in a skill's sandbox to the gateway's socket.
pub const FORWARD: &str = "gateway-forward";

/// Runs a part if `argv[0]` names one, and returns its exit code.
pub fn enter_if_asked() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name)?;
    match name.to_str()? {
        AGENT => Some(sympozium_agent::program::main(arguments)),
        BRIDGE => Some(sympozium_bridge::program::main(arguments)),
        SIDECAR => Some(sympozium_sidecar::main()),
        FORWARD => Some(crate::forward::main(&arguments)),
        _ => None,
    }
}

/// The path of a part's program in its sandbox.
pub fn program_path(part: &str) -> String {
    debug_assert!([AGENT, BRIDGE, SIDECAR, FORWARD].contains(&part));
    format!("{DIRECTORY}/{part}")
}

#[cfg(test)]
mod tests;
