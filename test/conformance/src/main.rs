//! The `sympozium` program, as it is tested here.

use std::process::ExitCode;

fn main() -> ExitCode {
    sympozium::main()
}
