//! `skill-sidecar ipc` against the cases of the file protocol, which it has in common with the shell executor.

use std::process::Command;

use sympozium_testkit::ipc_cases::Volume;

fn start(volume: &Volume) -> Command {
    let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_skill-sidecar"));
    command.arg("ipc");
    command.arg("--ipc-dir").arg(&volume.ipc);
    command.arg("--workspace").arg(&volume.workspace);
    let settings = [
        ("--max-timeout", volume.settings.max_timeout),
        ("--max-concurrent", volume.settings.max_concurrent),
        ("--claim-lease", volume.settings.claim_lease),
    ];
    for (flag, value) in settings {
        if let Some(value) = value {
            command.args([flag, &value.to_string()]);
        }
    }
    command
}

sympozium_testkit::ipc_conformance!(start);
