//! The `skill-sidecar` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all: this process may be the helper stage of an executor.
    sympozium_exec::stage::enter_if_asked();
    sympozium_sidecar::main()
}
