//! The `sympozium` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    sympozium::main()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// docs/reference.md must be what the program prints. `cargo xtask` sets the variable to have the page written to a
    /// file, and compares or takes it itself.
    #[test]
    fn the_reference_is_current() {
        let generated = sympozium::reference::page();
        if let Some(path) = std::env::var_os("SYMPOZIUM_REFERENCE") {
            fs::write(PathBuf::from(path), generated).unwrap();
            return;
        }
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference.md");
        assert!(
            fs::read_to_string(page).unwrap() == generated,
            "docs/reference.md is not current; run `cargo xtask docs`"
        );
    }
}
