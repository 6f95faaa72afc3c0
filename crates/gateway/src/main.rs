//! The `sympozium-gateway` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    sympozium_gateway::server::main()
}
