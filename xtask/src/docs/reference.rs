//! `docs/reference.md`: what our programs say about their commands.
//!
//! The page is made by a test of `sympozium`'s `main.rs`, which writes it where a variable says. A test, because in `make test`
//! it is built by then: the program itself, asked for alone, would be built a second time, with other features of what it uses.

use std::fs;

use anyhow::Context as _;

use crate::output::{hinted, line};
use crate::process::{cargo, output, workspace_root};

const PAGE: &str = "docs/reference.md";
/// Where the test is to write the page.
const VARIABLE: &str = "SYMPOZIUM_REFERENCE";

/// Writes the page.
pub fn write() -> anyhow::Result<()> {
    let path = workspace_root().join(PAGE);
    fs::write(&path, render()?).with_context(|| format!("writing {}", path.display()))?;
    line(&format!("wrote {}", path.display()));
    Ok(())
}

/// Whether the page is what would be written.
pub fn check() -> anyhow::Result<Vec<String>> {
    let path = workspace_root().join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_default();
    let rendered = render()?;
    if page == rendered {
        return Ok(Vec::new());
    }
    let differing = page.lines().zip(rendered.lines()).take_while(|(a, b)| a == b);
    let number = differing.count() + 1;
    Ok(vec![format!(
        "{PAGE}:{number}: not what the programs say about themselves; a command or an option has changed: \
         run `cargo xtask docs` and commit the page"
    )])
}

/// Has the program write the page.
fn render() -> anyhow::Result<String> {
    let scratch = tempfile::tempdir().context("making a directory for the reference")?;
    let path = scratch.path().join("reference.md");
    // The whole workspace, though one of its programs is meant: with the features that `make test` has built it with.
    let arguments = ["test", "--quiet", "--workspace", "--locked", "--bin", "sympozium", "the_reference_is_current"];
    output(cargo(&arguments).env(VARIABLE, &path)).context("having the programs say what their commands are")?;
    fs::read_to_string(&path).map_err(|error| {
        hinted(format!("the test that makes {PAGE} wrote nothing: {error}"), "it is in crates/cli/src/main.rs")
    })
}
