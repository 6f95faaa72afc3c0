//! Being an ordinary user while the tests run as root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::probe;

/// A user who owns nothing on the machine and needs no entry in /etc/passwd.
pub const ORDINARY: u32 = 61_234;
/// Set in a test that runs again as the ordinary user.
const ENTERED: &str = "SYMPOZIUM_TEST_AS_USER";

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program to be started as `uid`, with the group of the same number and no other. As an ordinary user already, it
/// is started as that user.
pub fn command(uid: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = crate::command(program);
    if is_root() {
        // std drops the supplementary groups when it changes the user.
        command.uid(uid).gid(uid);
    }
    command
}

/// Runs the body of a test as an ordinary user, in a process of its own when the tests run as root.
///
/// The test binary is started again for the calling test alone, as [`ORDINARY`], so `body` must be all of the test.
/// It finds a writable `HOME` and working directory of its own.
///
/// # Panics
///
/// When the body fails, or the test cannot be started again.
#[track_caller]
pub fn run(body: impl FnOnce()) {
    run_with(&[], body);
}

/// As [`run`], with programs that the body starts: each is put where the ordinary user can reach it, and the variable
/// says where that is.
///
/// # Panics
///
/// As [`run`].
#[track_caller]
pub fn run_with(programs: &[(&str, &Path)], body: impl FnOnce()) {
    if !is_root() {
        return body();
    }
    alone_with(programs, body);
}

/// As [`run_with`], and in a process of its own even when the tests run as an ordinary user: for what other tests of
/// the same process would disturb.
///
/// # Panics
///
/// As [`run`].
#[track_caller]
pub fn alone_with(programs: &[(&str, &Path)], body: impl FnOnce()) {
    if std::env::var_os(ENTERED).is_some() {
        return body();
    }
    match rerun(programs) {
        Ok((true, _)) => {}
        Ok((false, output)) => panic!("the test failed as an ordinary user:\n{output}"),
        Err(error) => panic!("cannot run the test as an ordinary user: {error:#}"),
    }
}

fn rerun(programs: &[(&str, &Path)]) -> anyhow::Result<(bool, String)> {
    let thread = std::thread::current();
    // The harness names the thread after the test.
    let test = thread.name().context("the test has no name")?;
    let home = tempfile::tempdir()?;
    // Afterwards, because the umask holds for what is being made.
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777))?;
    let program = readable_copy(&std::env::current_exe()?, home.path())?;
    let probe = readable_copy(probe::path(), home.path())?;
    let mut command = command(ORDINARY, program);
    for (variable, path) in programs {
        command.env(variable, readable_copy(path, home.path())?);
    }
    let output = command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .env(ENTERED, "1")
        .env(probe::PROBE, probe)
        .output()?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // A filter that matches nothing is a success too.
    let ran = text[0].contains("1 passed");
    Ok((output.status.success() && ran, text.concat()))
}

/// `path` if everybody can reach and run it, or a copy in `directory`: a home below /root is closed to others.
///
/// # Errors
///
/// When the file cannot be copied.
pub fn readable_copy(path: &Path, directory: &Path) -> anyhow::Result<PathBuf> {
    let is_open = path
        .ancestors()
        .all(|step| fs::metadata(step).is_ok_and(|metadata| metadata.permissions().mode() & 0o005 == 0o005));
    if is_open {
        return Ok(path.to_owned());
    }
    let copy = directory.join(path.file_name().context("not a file")?);
    crate::copy_program(path, &copy).with_context(|| format!("copying {}", path.display()))?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}
