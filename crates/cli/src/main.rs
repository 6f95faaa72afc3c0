//! The `sympozium` command.

fn main() -> anyhow::Result<()> {
    Ok(())
}
