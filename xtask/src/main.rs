//! The project's own tooling, run as `cargo xtask <command>`.

fn main() -> anyhow::Result<()> {
    Ok(())
}
