//! The programs of the workspace for tests and benches: static, so that they run in a root that has no libraries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;

/// The directory of the workspace's `Cargo.toml`.
pub fn workspace_root() -> &'static Path {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    match testkit.ancestors().nth(2) {
        Some(root) => root,
        None => testkit,
    }
}

/// Where cargo puts what it builds.
pub fn target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => workspace_root().join(directory),
        None => workspace_root().join("target"),
    }
}

/// `cargo` in the workspace, as if a person had started it there.
///
/// Whoever starts a test tells it its package in the environment. Build scripts look at such variables (ring's does), and cargo
/// would compile everything again for each package whose tests build something.
pub fn cargo() -> Command {
    let mut cargo = crate::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace_root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// The programs that our images are made of: package and binary.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("sympozium-agent", "agent-runner"),
    ("sympozium-bridge", "ipc-bridge"),
    ("sympozium-controller", "sympozium-controller"),
    ("sympozium-gateway", "sympozium-gateway"),
    ("sympozium-sidecar", "skill-sidecar"),
];

/// Names the directory with the programs of the workspace, built already: `cargo xtask test` builds them before any test runs.
pub const PROGRAMS_DIRECTORY: &str = "SYMPOZIUM_PROGRAMS";

/// The profile of what we ship.
const SHIPPED: &str = "dist";

/// The path of a program of the workspace, static like everything that is built here (see `.cargo/config.toml`), in the profile
/// of the tests.
///
/// Where nothing names the directory of programs, as under a plain `cargo test`, all programs of the workspace are built by one
/// call of cargo: they share what the tests were built from, and are never older than their source.
///
/// # Errors
///
/// When there is no such program, cargo is not there or the build fails; its messages are on standard error.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    static DIRECTORY: LazyLock<Mutex<Option<PathBuf>>> = LazyLock::new(Mutex::default);
    // Held during the build: the second test waits for the first instead of starting another cargo.
    let mut known = DIRECTORY.lock();
    let directory = match &*known {
        Some(directory) => directory.clone(),
        None => known.insert(programs_directory()?).clone(),
    };
    let path = directory.join(name);
    if !path.is_file() {
        bail!("no program `{name}` in {}", directory.display());
    }
    Ok(path)
}

fn programs_directory() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os(PROGRAMS_DIRECTORY) {
        return Ok(given.into());
    }
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--locked", "--workspace", "--bins"]);
    build(&mut cargo, "the workspace's programs", "debug")
}

/// Builds a program optimised as we ship it, and gives its path. For benches, which have that profile themselves.
///
/// Cargo decides whether there is anything to do; within one process it is asked once.
///
/// # Errors
///
/// When cargo is not there or the build fails; its messages are on standard error.
pub fn shipped(name: &str) -> anyhow::Result<PathBuf> {
    static BUILT: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    // As in [`program`].
    let mut built = BUILT.lock();
    if let Some(path) = built.get(name) {
        return Ok(path.clone());
    }
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--locked", "--profile", SHIPPED, "--bin", name]);
    let path = build(&mut cargo, name, SHIPPED)?.join(name);
    built.insert(name.to_owned(), path.clone());
    Ok(path)
}

/// Runs cargo and gives the directory of what it built.
fn build(cargo: &mut Command, what: &str, profile: &str) -> anyhow::Result<PathBuf> {
    // Flags from the environment would take the place of those that link everything static.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(variable);
    }
    let status = cargo.status().context("starting cargo")?;
    if !status.success() {
        bail!("building {what}: cargo {status}");
    }
    Ok(target_directory().join(host_target()?).join(profile))
}

/// The target that this machine's compiler builds for by default.
fn host_target() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = crate::command(rustc).arg("-vV").output().context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}
