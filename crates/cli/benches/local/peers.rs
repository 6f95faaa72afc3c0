//! What we are compared with: bubblewrap, and the sandboxes of two other agents, where npm can install them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use sympozium_exec::layout::system_paths;
use sympozium_testkit::bench::{Suite, Target, median};
use sympozium_testkit::static_build::target_directory;

const ROUNDS: usize = 7;

/// bubblewrap with every namespace and the directories that our sandboxes have, as a whole process.
pub fn bubblewrap() -> Duration {
    let mut command = sympozium_testkit::command("bwrap");
    command.args(["--unshare-all", "--die-with-parent", "--new-session"]);
    for path in system_paths() {
        match path.read_link() {
            Ok(to) => command.arg("--symlink").arg(to).arg(path),
            Err(_) if path.exists() => command.arg("--ro-bind").arg(path).arg(path),
            Err(_) => continue,
        };
    }
    for (kind, target) in [("--proc", "/proc"), ("--dev", "/dev"), ("--tmpfs", "/tmp"), ("--tmpfs", "/dev/shm")] {
        command.args([kind, target]);
    }
    command.args(["/bin/sh", "-c", "echo hello"]);
    timed(command)
}

fn timed(mut command: std::process::Command) -> Duration {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status().expect("it starts");
    assert!(status.success(), "{command:?}: {status}");
    start.elapsed()
}

/// One isolated command of ours, as a further one of a run, against each peer's.
pub fn compare(suite: &mut Suite, ours: Duration) {
    for (package, program, words, row, times) in [
        (
            "@openai/codex",
            "codex",
            &["sandbox", "--"][..],
            "one isolated command, as a further one of a run: how many times as fast as `codex sandbox`",
            10.0,
        ),
        (
            "@anthropic-ai/sandbox-runtime",
            "srt",
            &[],
            "one isolated command, as a further one of a run: how many times as fast as `srt`",
            50.0,
        ),
    ] {
        let measured = install(package, program).and_then(|path| measure(&path, words));
        match measured {
            Ok(theirs) => {
                println!("{program}: {:.1} ms", theirs.as_secs_f64() * 1e3);
                let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
                suite.row(row, ratio, "x", Target::AtLeast(times));
            }
            Err(why) => println!("skipped: {program}: {why}"),
        }
    }
}

/// From the registry, into a directory that is kept.
fn install(package: &str, program: &str) -> Result<PathBuf, String> {
    let directory = target_directory().join("bench/peers").join(program);
    let installed = directory.join("node_modules/.bin").join(program);
    if installed.exists() {
        return Ok(installed);
    }
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let mut npm = sympozium_testkit::command("npm");
    npm.args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
        .arg(&directory)
        .arg(package)
        .stdout(Stdio::null());
    match npm.status() {
        Ok(status) if status.success() && installed.exists() => Ok(installed),
        Ok(status) => Err(format!("npm cannot install {package} ({status})")),
        Err(error) => Err(format!("there is no npm ({error})")),
    }
}

fn measure(program: &Path, words: &[&str]) -> Result<Duration, String> {
    let command = || {
        let mut command = sympozium_testkit::command(program);
        command.args(words).args(["/bin/sh", "-c", "echo hello"]);
        command
    };
    let tried = command().stdin(Stdio::null()).output();
    let tried = tried.map_err(|error| error.to_string())?;
    if !tried.status.success() || tried.stdout != b"hello\n" {
        let said = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        return Err(format!("it does not work here: {said}"));
    }
    let taken = (0..ROUNDS).map(|_| timed(command()).as_secs_f64());
    Ok(Duration::from_secs_f64(median(taken.collect())))
}
