//! The `ipc-bridge` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    sympozium_bridge::program::main(std::env::args_os())
}
