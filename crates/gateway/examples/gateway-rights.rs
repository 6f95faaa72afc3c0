//! Prints the RBAC rules of the gateway's ServiceAccount as JSON: `cargo xtask install` reads it.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let rights = serde_json::json!({ "cluster": sympozium_gateway::rbac::rules() });
    writeln!(std::io::stdout(), "{rights}")
}
