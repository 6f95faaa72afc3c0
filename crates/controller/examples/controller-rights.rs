//! Prints what the controller's ServiceAccount may do, for the manifests: `cargo xtask install` reads it.

use std::io::Write as _;

use sympozium_controller::rights;

fn main() -> std::io::Result<()> {
    let rights = serde_json::json!({
        "cluster": rights::rules(),
        "system": rights::system_rules(),
        "default": rights::default_rules(),
    });
    writeln!(std::io::stdout(), "{rights}")
}
