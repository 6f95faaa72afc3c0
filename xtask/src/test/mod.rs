//! `test`: every check and test, in the order of the house style, with a table of what took how long at the end.

mod skips;
mod totals;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use self::totals::Totals;
use crate::output::{line, note, table};
use crate::process::{self, Ended, Run, cargo, command, workspace_root};
use crate::{check, setup};

/// The suites that need a cluster, if this checkout has them.
const CLUSTER: &str = "hack/kube/kube.mk";
/// Collects skips; see `sympozium_testkit::skips`.
const SKIPS_FILE: &str = "SYMPOZIUM_SKIPS_FILE";
/// Tells tests to go through all of a matrix and not through a sample of it.
const FULL: &str = "SYMPOZIUM_TEST_FULL";

#[derive(clap::Args)]
pub struct Arguments {
    /// Whole kill and crash matrices instead of a seeded sample.
    #[arg(long)]
    full: bool,
}

/// What came of a step.
enum Outcome {
    Passed,
    Failed(String),
    NotRun(&'static str),
}

struct Report {
    steps: Vec<(&'static str, Duration, Outcome)>,
    totals: Totals,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir().context("making a directory for the skips")?;
    let skips_file = open_to_all(scratch.path())?;
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let mut report = Report {
        steps: Vec::new(),
        totals: Totals::default(),
    };
    let prepare = |mut command: Command| {
        command.env(SKIPS_FILE, &skips_file);
        if arguments.full {
            command.env(FULL, "1");
        }
        command
    };

    report.step("setup", setup::run);
    report.program("format", cargo(&["fmt", "--all", "--check"]), minutes(2));
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    report.program("clippy", cargo(&clippy), minutes(20));
    // Targets by kind and not `--all-targets`, which would run the benches.
    let tests = [
        "test",
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--lib",
        "--bins",
        "--tests",
        "--examples",
    ];
    let limit = if arguments.full {
        minutes(180)
    } else {
        minutes(55)
    };
    report.program("tests", prepare(cargo(&tests)), limit);
    let doc_tests = ["test", "--workspace", "--locked", "--no-fail-fast", "--doc"];
    report.program("doc tests", prepare(cargo(&doc_tests)), minutes(10));
    report.step("check", check::run);
    if workspace_root().join(CLUSTER).exists() {
        // The dearest step by far: worth its time only when the rest is right.
        if report.has_failed() {
            report.not_run("cluster", "an earlier step failed");
        } else {
            let mut make = command("make");
            make.args(["--no-print-directory", "-f", CLUSTER, "test-cluster"]);
            report.program(
                "cluster",
                prepare(make),
                minutes(if arguments.full { 120 } else { 45 }),
            );
        }
    }

    let recorded = fs::read_to_string(&skips_file).context("reading the skips")?;
    let skipped = skips::parse_recorded(&recorded);
    report.step("skips", || skips::compare(&skipped));
    report.finish(skips::count_tests(&skipped))
}

/// A file that tests which run as other users can append to.
fn open_to_all(directory: &Path) -> anyhow::Result<std::path::PathBuf> {
    let file = directory.join("skips");
    fs::write(&file, "")?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
    Ok(file)
}

impl Report {
    /// Runs a step in this process.
    fn step(&mut self, name: &'static str, act: impl FnOnce() -> anyhow::Result<()>) {
        note(&format!("--- {name}"));
        let begin = Instant::now();
        let outcome = match act() {
            Ok(()) => Outcome::Passed,
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        self.record(name, begin, outcome, Totals::default());
    }

    /// Runs a step that is a program, and counts the tests that it reports.
    fn program(&mut self, name: &'static str, mut command: Command, limit: Duration) {
        note(&format!("--- {name}"));
        let begin = Instant::now();
        let (outcome, totals) = match process::run(&mut command, limit) {
            Ok(Run { ended, stdout }) => {
                let outcome = match ended {
                    Ended::Well => Outcome::Passed,
                    Ended::Badly(how) => Outcome::Failed(how),
                    Ended::TimedOut => Outcome::Failed(format!(
                        "still running after {} minutes",
                        limit.as_secs() / 60
                    )),
                };
                (outcome, Totals::parse(&stdout))
            }
            Err(error) => (Outcome::Failed(format!("{error:#}")), Totals::default()),
        };
        self.record(name, begin, outcome, totals);
    }

    fn record(&mut self, name: &'static str, begin: Instant, outcome: Outcome, mut totals: Totals) {
        if let Outcome::Failed(why) = &outcome {
            note(&format!("--- {name} failed: {why}"));
            // A step that broke without a failing test (formatting, a build) is a failure too.
            totals.failed = totals.failed.max(1);
        }
        self.totals.add(&totals);
        self.steps.push((name, begin.elapsed(), outcome));
    }

    fn not_run(&mut self, name: &'static str, why: &'static str) {
        self.steps
            .push((name, Duration::ZERO, Outcome::NotRun(why)));
    }

    fn has_failed(&self) -> bool {
        self.totals.failed > 0
    }

    /// Prints the table and the closing line.
    fn finish(self, skipped: u64) -> anyhow::Result<()> {
        let mut rows = vec![["step", "seconds", "result"].map(str::to_owned).to_vec()];
        for (name, time, outcome) in &self.steps {
            let result = match outcome {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Failed(why) => format!("FAILED: {}", why.lines().next().unwrap_or("")),
                Outcome::NotRun(why) => format!("not run: {why}"),
            };
            rows.push(vec![
                (*name).to_owned(),
                format!("{:.1}", time.as_secs_f64()),
                result,
            ]);
        }
        line("");
        line(&table(&rows));
        // The harness counts a skipped test as passed. This line is read by machines: nothing else may stand on it.
        let passed = self.totals.passed.saturating_sub(skipped);
        line(&format!(
            "{passed} passed, {} failed, {skipped} skipped",
            self.totals.failed
        ));
        if self.has_failed() {
            bail!("not everything passed");
        }
        Ok(())
    }
}
