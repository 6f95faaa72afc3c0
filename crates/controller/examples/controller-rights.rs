//! Prints what the controller's ServiceAccount may do, for the manifests: `cargo xtask install` reads it.

use std::io::Write as _;

use sympozium_controller::permissions;

fn main() -> std::io::Result<()> {
    let rights = serde_json::json!({
        "cluster": permissions::rules(),
        "system": permissions::system_namespace_rules(),
        "default": permissions::default_namespace_rules(),
    });
    writeln!(std::io::stdout(), "{rights}")
}
