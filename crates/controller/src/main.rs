//! The `sympozium-controller` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    sympozium_controller::program::main()
}
