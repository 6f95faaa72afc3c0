//! What happens where there can be no cluster: one clear message, told apart from a failure.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use sympozium_testkit::cluster::xtask;
use sympozium_testkit::{command, skips};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn no_go_toolchain_is_one_clear_error_with_the_remedy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut build = xtask()?;
    // A search path without Go; the cache is empty, so something would have to be built.
    build.args(["kube", "build"]).env("PATH", folder.path()).env("SYMPOZIUM_KUBE_ROOT", folder.path().join("root"));
    let output = build.output()?;
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.starts_with("error: no Go toolchain"), "{message}");
    assert!(message.contains("\nhint: install Go"), "{message}");
    assert_eq!(message.lines().count(), 2, "{message}");
    Ok(())
}

#[test]
fn without_root_the_machine_lacks_it_and_the_exit_code_says_skip() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        skips::record("root privileges");
        return Ok(());
    }
    let (folder, copy) = copy_for_others()?;
    let mut up = command(&copy);
    up.args(["kube", "up"]).env("SYMPOZIUM_KUBE_ROOT", folder.path().join("root")).uid(65_534).gid(65_534);
    let output = up.output()?;
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(77), "{message}");
    assert!(message.starts_with("error: this machine lacks root privileges\nhint: "), "{message}");
    Ok(())
}

/// The whole way of a skip: the machine's lack, by way of the handle, to the list that a test run counts.
#[test]
fn without_root_every_test_is_skipped_and_counted_with_the_reason() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        skips::record("root privileges");
        return Ok(());
    }
    let (folder, copy) = copy_for_others()?;
    let tests = folder.path().join("it");
    copy_program(&std::env::current_exe()?, &tests)?;
    let list = folder.path().join("skips");
    let mut run = command(&tests);
    run.args(["control_plane::", "network::", "--skip", "runs::"]).uid(65_534).gid(65_534).current_dir(folder.path());
    run.env("SYMPOZIUM_XTASK", &copy).env("SYMPOZIUM_KUBE_ROOT", folder.path().join("root"));
    run.env("SYMPOZIUM_SKIPS_FILE", &list).env_remove("SYMPOZIUM_TEST_KUBECONFIG");
    let output = run.output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let recorded = std::fs::read_to_string(&list)?;
    let reasons: Vec<_> = recorded.lines().filter_map(|line| Some(line.split_once('\t')?.0)).collect();
    assert_eq!(reasons, ["root privileges"; 6]);
    Ok(())
}

/// A folder that everybody may use, with a copy of xtask, because the build folder may be closed to others.
fn copy_for_others() -> Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777))?;
    let copy = folder.path().join("xtask");
    copy_program(Path::new(xtask()?.get_program()), &copy)?;
    Ok((folder, copy))
}

/// By another program: a process of another test that is being started would have this one's descriptor open for writing, and a file
/// that is open for writing cannot be executed.
fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let copied = command("cp").arg(from).arg(to).status().context("starting cp")?;
    ensure!(copied.success(), "copying {}: {copied}", from.display());
    Ok(())
}
