//! The `agent-runner` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    sympozium_agent::program::main(std::env::args_os())
}
