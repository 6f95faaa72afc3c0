//! The `sympozium` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    sympozium::main()
}
