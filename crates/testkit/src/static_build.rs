//! Static binaries, built when a test first asks: they run in a root that has no libraries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context as _, bail};

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
pub fn cargo() -> std::process::Command {
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

/// The profile of what we ship.
const SHIPPED: &str = "dist";
/// The profile of what tests put into images.
const FOR_TESTS: &str = "image";

/// The path of one of [`PROGRAMS`], static, built for tests and not as we ship it.
///
/// All of them are built by one call of cargo: what they share is then compiled once, and always with the same features,
/// whichever is asked for first. Cargo decides whether there is anything to do and lets one build wait for another, so
/// that what is given is never older than its source.
///
/// # Errors
///
/// When there is no such program, cargo is not there or the build fails; its messages are on standard error.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    static BUILT: LazyLock<Mutex<Option<PathBuf>>> = LazyLock::new(Mutex::default);
    if !PROGRAMS.iter().any(|(_, binary)| *binary == name) {
        bail!("no program of our images is called `{name}`");
    }
    // Held during the build: the second test waits for the first instead of starting another cargo.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = match &*built {
        Some(folder) => folder.clone(),
        None => built.insert(build(PROGRAMS, FOR_TESTS, &[])?).clone(),
    };
    Ok(folder.join(name))
}

/// Builds `binary` of `package` static, optimised as we ship it, and gives its path. For benches, and for programs that
/// are none of [`PROGRAMS`].
///
/// Cargo decides whether there is anything to do; within one test process it is asked once. The target directory is
/// `static` below the workspace's own, because other compiler flags in the same one would rebuild everything.
///
/// # Errors
///
/// When cargo is not there or the build fails; its messages are on standard error.
pub fn binary(package: &str, binary: &str) -> anyhow::Result<PathBuf> {
    binary_with(package, binary, &[])
}

/// As [`binary()`], with cargo settings on top, such as `profile.dist.opt-level="s"`.
///
/// # Errors
///
/// As [`binary()`].
pub fn binary_with(package: &str, binary: &str, settings: &[&str]) -> anyhow::Result<PathBuf> {
    static BUILT: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    // As in [`program`].
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{package}/{binary}");
    if let Some(path) = built.get(&key) {
        return Ok(path.clone());
    }
    let path = build(&[(package, binary)], SHIPPED, settings)?.join(binary);
    built.insert(key, path.clone());
    Ok(path)
}

/// Builds programs and gives the folder that they are in.
fn build(programs: &[(&str, &str)], profile: &str, settings: &[&str]) -> anyhow::Result<PathBuf> {
    let host = host_target()?;
    let target_directory = target_directory().join("static");
    let mut cargo = cargo();
    cargo
        .args(["build", "--quiet", "--locked", "--profile", profile])
        // Named even though it is the host's: otherwise the flag would hold for build scripts and proc macros too, and
        // those cannot be static.
        .args(["--target", &host, "--target-dir"])
        .arg(&target_directory)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    for (package, binary) in programs {
        cargo.args(["--package", package, "--bin", binary]);
    }
    for setting in settings {
        cargo.args(["--config", setting]);
    }
    let status = cargo.status().context("starting cargo")?;
    if !status.success() {
        let names: Vec<&str> = programs.iter().map(|(_, binary)| *binary).collect();
        bail!("building {} static: cargo {status}", names.join(", "));
    }
    Ok(target_directory.join(host).join(profile))
}

/// The target that this machine's compiler builds for by default.
fn host_target() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = crate::command(rustc)
        .arg("-vV")
        .output()
        .context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}
