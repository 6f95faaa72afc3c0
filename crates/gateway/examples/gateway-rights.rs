//! Prints what the gateway's ServiceAccount may do, for the manifests: `cargo xtask install` reads it.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let rights = serde_json::json!({ "cluster": sympozium_gateway::rights::rules() });
    writeln!(std::io::stdout(), "{rights}")
}
