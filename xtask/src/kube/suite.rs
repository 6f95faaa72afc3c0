//! `cargo xtask kube test`: build, start, try everything, end, and say what took how long.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::command::program;
use super::parts::{self, Tier};
use super::paths::{self, Root};
use super::unsupported::Unsupported;
use super::{build, end, leaks, preflight, times};
use crate::process::cargo;

/// The suites: a package whose test `it` is run, what of it, and what it is called in the table of times.
const SUITES: [(&str, &[&str], &str); 2] = [
    ("sympozium-cluster-tests", &[], "tests"),
    ("sympozium-conformance", &["kubernetes"], "conformance"),
];
/// Every tier in one cluster: the tests of the suite share it.
const TIER: Tier = Tier {
    node: true,
    gvisor: true,
    agent_sandbox: true,
};

/// Runs the harness's own suites. A test that fails makes this fail, and so does anything left behind.
pub fn run(root: &Root) -> Result<ExitCode> {
    let start = Instant::now();
    let times_file =
        tempfile::NamedTempFile::new().context("cannot create a file for the times")?;
    let outcome = run_steps(root, times_file.path());
    note(times_file.path(), "everything", start);
    eprintln!("\n{}", times::table(times_file.path()));
    outcome.map(|()| ExitCode::SUCCESS)
}

fn run_steps(root: &Root, times_file: &Path) -> Result<()> {
    let given = std::env::var_os("SYMPOZIUM_TEST_KUBECONFIG").is_some();
    let own = !given && prepare(root, times_file)?;
    let passed = test(times_file)?;
    if own {
        let start = Instant::now();
        end::down_of_run(root, &run_name())?;
        note(times_file, "tear-down", start);
        let left = leaks::list(root)?;
        if !left.is_empty() {
            bail!("left behind:\n{}", left.join("\n"));
        }
    }
    if !passed {
        bail!("not all tests of the cluster passed");
    }
    Ok(())
}

/// Builds what the tests need. On a machine that cannot run a cluster (`false`) they need nothing: they are skipped,
/// and say why.
fn prepare(root: &Root, times_file: &Path) -> Result<bool> {
    let start = Instant::now();
    match preflight::check(TIER) {
        Err(error) if error.downcast_ref::<Unsupported>().is_some() => {
            eprintln!("{error:#}");
            return Ok(false);
        }
        checked => checked?,
    }
    note(times_file, "packages and checks of the machine", start);
    let mut wanted = TIER.parts();
    wanted.push(&parts::HELM);
    for part in wanted {
        let start = Instant::now();
        build::build(root, &[part])?;
        note(times_file, &format!("part {}", part.name), start);
    }
    Ok(true)
}

fn test(times_file: &Path) -> Result<bool> {
    // All at once and before any of them runs: a cluster ends when nobody has used it for a while.
    let start = Instant::now();
    // Before cargo builds anything: where it replaces this program, the system has no name for it any more.
    let own = std::env::current_exe().context("cannot find this program")?;
    let built = build_tests()?;
    note(times_file, "building the tests", start);
    let mut passed = true;
    for (package, arguments, step) in SUITES {
        let suite = built.iter().find(|it| it.package == package);
        let suite = suite.with_context(|| format!("cargo built no tests of {package}"))?;
        let start = Instant::now();
        let status = suite.command(&own, times_file).args(arguments).status();
        note(times_file, step, start);
        passed &= status.context("cannot start the tests")?.success();
    }
    Ok(passed)
}

/// The tests of a package, as a program.
struct Suite {
    package: String,
    folder: PathBuf,
    program: PathBuf,
}

/// Builds the tests, of the whole workspace: cargo chooses the features of what they share by what is built together, and other
/// features would compile again what `make test` has compiled already.
fn build_tests() -> Result<Vec<Suite>> {
    let mut cargo = cargo(&["test", "--locked", "--workspace", "--test", "it"]);
    cargo
        .current_dir(paths::workspace())
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let built = cargo.output().context("cannot start cargo test")?;
    if !built.status.success() {
        bail!("the tests could not be built");
    }
    let lines = String::from_utf8_lossy(&built.stdout);
    Ok(lines.lines().filter_map(suite_of).collect())
}

/// The tests that a message of cargo tells of.
fn suite_of(message: &str) -> Option<Suite> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_test = message["target"]["kind"] == serde_json::json!(["test"]);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let program = message["executable"].as_str().filter(|_| is_test)?;
    // `path+file:///folder#name@version`, or without the name where it is the folder's.
    let id = message["package_id"].as_str()?.rsplit('#').next()?;
    let folder = manifest.parent()?;
    let package = match id.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => folder.file_name()?.to_str()?.to_owned(),
    };
    Some(Suite {
        package,
        folder: folder.to_owned(),
        program: program.into(),
    })
}

impl Suite {
    /// As `cargo test` would start it, for this run.
    fn command(&self, own: &Path, times_file: &Path) -> Command {
        let mut command = program(&self.program);
        command
            .current_dir(&self.folder)
            .env("CARGO_PKG_NAME", &self.package)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("SYMPOZIUM_XTASK", own)
            .env("SYMPOZIUM_TEST_TIER", TIER.to_string())
            .env("SYMPOZIUM_TEST_RUN", run_name())
            .env(times::VARIABLE, times_file);
        command
    }
}

/// Makes the clusters of this run its own, so that ending them ends nobody else's.
fn run_name() -> String {
    format!("{}", std::process::id())
}

fn note(times_file: &Path, step: &str, start: Instant) {
    times::note_in(times_file, step, start.elapsed());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_among_messages() {
        let message = |id: &str, kind: &str, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/test/cluster/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"it"}},"executable":{program}}}"#
            )
        };
        let found = |id: &str, kind: &str, program: &str| {
            let found = suite_of(&message(id, kind, program));
            found.map(|it| (it.package, it.folder, it.program))
        };
        let expected = |package: &str| {
            let folder = PathBuf::from("/w/test/cluster");
            Some((package.to_owned(), folder, PathBuf::from("/t/it-1")))
        };
        let named = "path+file:///w/test/cluster#sympozium-cluster-tests@0.1.0";
        assert_eq!(
            found(named, "test", r#""/t/it-1""#),
            expected("sympozium-cluster-tests")
        );
        let unnamed = "path+file:///w/test/cluster#0.1.0";
        assert_eq!(found(unnamed, "test", r#""/t/it-1""#), expected("cluster"));
        assert_eq!(found(named, "bin", r#""/t/it-1""#), None);
        assert_eq!(found(named, "test", "null"), None);
        assert!(suite_of("warning: something else").is_none());
    }
}
