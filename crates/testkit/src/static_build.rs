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

/// Builds `binary` of `package` static, optimised as we ship it, and gives its path.
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
    // Held during the build: the second test waits for the first instead of starting another cargo.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{package}/{binary}");
    if let Some(path) = built.get(&key) {
        return Ok(path.clone());
    }
    let path = build(package, binary, settings)?;
    built.insert(key, path.clone());
    Ok(path)
}

/// The profile of what we ship.
const PROFILE: &str = "dist";

fn build(package: &str, binary: &str, settings: &[&str]) -> anyhow::Result<PathBuf> {
    let host = host_target()?;
    let target_directory = target_directory().join("static");
    let mut cargo = crate::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace_root())
        .args([
            "build",
            "--quiet",
            "--locked",
            "--profile",
            PROFILE,
            "--package",
            package,
            "--bin",
            binary,
        ])
        // Named even though it is the host's: otherwise the flag would hold for build scripts and proc macros too, and
        // those cannot be static.
        .args(["--target", &host, "--target-dir"])
        .arg(&target_directory)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    for setting in settings {
        cargo.args(["--config", setting]);
    }
    let status = cargo.status().context("starting cargo")?;
    if !status.success() {
        bail!("building `{binary}` of `{package}` static: cargo {status}");
    }
    Ok(target_directory.join(host).join(PROFILE).join(binary))
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
