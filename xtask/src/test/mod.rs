//! `test`: every check and test, side by side where cores would idle, with tables of what took how long at the end.
//!
//! Everything that tests need is made by a named step before the first of them runs: packages, the parts of a Kubernetes, the
//! test binaries, the programs. Linting, doc tests and the checks run beside the suites with what these leave of the processors.

mod marked;
mod pool;
mod quick;
mod repeat;
mod report;
mod skips;
mod suites;
mod table;
mod totals;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;

use self::pool::{Outcome, Pool, Readiness};
use self::report::{Report, Step};
use self::suites::Suite;
use self::table::{Need, Table};
use self::totals::Totals;
use crate::kube::{self, Prepared};
use crate::launch::Role;
use crate::output::note;
use crate::process::{Output, build_directory, cargo, command, output, run as run_program, target_directory};
use crate::{check, setup};

pub use self::quick::run as quick;

/// Collects skips; see `sympozium_testkit::skips`.
const SKIPS_FILE: &str = "SYMPOZIUM_SKIPS_FILE";
/// Tells tests to go through all of a matrix and not through a sample of it.
const FULL: &str = "SYMPOZIUM_TEST_FULL";
/// Decides what is sampled; see `sympozium_testkit::cases`.
const SEED: &str = "SYMPOZIUM_TEST_SEED";
/// Where the programs of the workspace are; see `sympozium_testkit::static_build`.
const PROGRAMS: &str = "SYMPOZIUM_PROGRAMS";
/// This program, for tests that need a cluster.
const XTASK: &str = "SYMPOZIUM_XTASK";
/// The tier of the one cluster that all tests with pods share.
const TIER: &str = "SYMPOZIUM_TEST_TIER";
/// Makes the clusters of this run its own, so that ending them ends no others.
const RUN: &str = "SYMPOZIUM_TEST_RUN";

/// Where the images of the workspace are; see `sympozium_testkit::cluster::Image`.
const IMAGES: &str = "SYMPOZIUM_IMAGES";

const PARTS_STEP: &str = "cluster parts";
const IMAGES_STEP: &str = "images";
/// Tests that need the machine for themselves.
const ALONE: &str = "test/alone.txt";
/// Suites at once for each core. Two were tried and save little: each runs several tests at once already, and what is short of time
/// beside many others fails for that.
const SUITES_PER_CORE: usize = 1;
/// How often the checks look whether they may begin.
const CHECKS_LOOK: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Arguments {
    /// Whole kill and crash matrices and every case on every backend, instead of seeded samples.
    #[arg(long)]
    full: bool,
    /// Only the suites whose name contains this (see test/suites.txt), without the checks; may be given more than once.
    #[arg(long)]
    suite: Vec<String>,
    /// Only the timing-sensitive tests (test/timing-sensitive.txt), three times in a row, with every core busy.
    #[arg(long, conflicts_with_all = ["full", "suite", "repeat"])]
    busy: bool,
    /// Run the tests whose name contains NAME that often, to hunt for one that fails now and then.
    #[arg(long, num_args = 2, value_names = ["TIMES", "NAME"], conflicts_with = "busy")]
    repeat: Vec<String>,
}

/// What every suite of a run gets in its environment.
struct Environment {
    variables: Vec<(&'static str, String)>,
    _scratch: tempfile::TempDir,
    skips: PathBuf,
    cluster_times: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let table = Table::read()?;
    let environment = Environment::new(arguments.full)?;
    let mut report = Report::new(Table::read()?);
    report.add(Step::run("setup", setup::run));
    let parts = Mutex::new(None);
    let readiness = |need: Need| match (need, *parts.lock()) {
        (Need::Nothing, _) | (_, Some(Parts::Node)) | (Need::ControlPlane, Some(Parts::ControlPlane)) => {
            Readiness::Ready
        }
        (_, Some(Parts::Failed(step))) => Readiness::Failed(step),
        (Need::Node, Some(Parts::ControlPlane)) | (_, None) => Readiness::Waiting,
    };
    let pods_are_few = AtomicBool::new(false);
    let (programs_built, programs) = mpsc::channel();
    std::thread::scope(|scope| -> Result<()> {
        // What no suite needs is not prepared.
        let prepare = table.needs_cluster(&arguments.suite).then(|| scope.spawn(|| prepare_cluster(&parts, programs)));
        let mut suites = Vec::new();
        let built = report.add(Step::run("test build", || {
            suites = build_suites(&table, &environment)?;
            Ok(())
        }));
        if built {
            // Without a cluster to prepare nothing waits for them.
            let _ = programs_built.send(());
        }
        drop(programs_built);
        if built {
            let is_wanted = |suite: &Suite| {
                arguments.suite.is_empty() || arguments.suite.iter().any(|part| suite.name.contains(part))
            };
            suites.retain(is_wanted);
            let pool = Pool {
                width: cores() * SUITES_PER_CORE,
                limit: Duration::from_secs(60 * if arguments.full { 180 } else { 40 }),
                logs: &target_directory().join("test-logs"),
                prepare: &|suite, command| {
                    environment.apply(command);
                    if suite.need() == Need::Node {
                        command.env(TIER, kube::TEST_TIER);
                    }
                    if let Some(own) = &suite.row.clusters {
                        command.env(RUN, environment.run_name() + own);
                    }
                },
                readiness: &readiness,
                pods_are_few: &pods_are_few,
            };
            if arguments.busy {
                report.add_suites(repeat::run_busy(&pool, &suites)?);
            } else if let [times, name] = &arguments.repeat[..] {
                let times = times.parse().context("TIMES is not a number")?;
                report.add_suites(repeat::run_named(&pool, &suites, times, name)?);
            } else {
                let checks = arguments.suite.is_empty().then(|| {
                    scope.spawn(|| {
                        // Beside the suites with pods both cores are busy already, and their deadlines are the tightest.
                        while !pods_are_few.load(Ordering::Relaxed) {
                            std::thread::sleep(CHECKS_LOOK);
                        }
                        run_checks(&environment)
                    })
                });
                let outcomes = run_suites(&pool, suites);
                // Also when it failed before it had looked: the checks wait for it.
                pods_are_few.store(true, Ordering::Relaxed);
                report.add_suites(outcomes?);
                if let Some(checks) = checks {
                    let (steps, totals) = join(checks)?;
                    report.add_totals(&totals);
                    for step in steps {
                        report.add(step);
                    }
                }
            }
        }
        if !built {
            report.add(Step::not_run("suites", "the tests were not built"));
        }
        if let Some(prepare) = prepare {
            for step in join(prepare)? {
                report.add(step);
            }
        }
        Ok(())
    })?;
    report.add(Step::run("tear-down", || {
        let own = table.clusters().map(|own| environment.run_name() + own);
        let mut runs = vec![environment.run_name()];
        runs.extend(own);
        kube::end_runs(&runs)
    }));
    let recorded = fs::read_to_string(&environment.skips).context("reading the skips")?;
    let skipped = skips::parse_recorded(&recorded);
    report.add(Step::run("skips", || skips::compare(&skipped)));
    note(&kube::times_table(&environment.cluster_times));
    report.finish(skips::count_tests(&skipped))
}

/// How much of a cluster can be started.
#[derive(Debug, Clone, Copy)]
enum Parts {
    ControlPlane,
    /// Everything, our images among it.
    Node,
    /// Nothing more will be there: the step that failed.
    Failed(&'static str),
}

/// Builds the parts of a cluster, and when the programs are built too, the images that pods are made of.
fn prepare_cluster(parts: &Mutex<Option<Parts>>, programs: mpsc::Receiver<()>) -> Vec<Step> {
    let mut prepared = Prepared::Nothing;
    let mut steps = vec![Step::run(PARTS_STEP, || {
        prepared = kube::prepare(|| *parts.lock() = Some(Parts::ControlPlane))?;
        Ok(())
    })];
    if steps[0].has_passed() && prepared == Prepared::Parts && programs.recv().is_ok() {
        steps.push(Step::run(IMAGES_STEP, || {
            crate::images::write_for_tests(&images_directory(), &build_directory("debug")?)
        }));
    }
    *parts.lock() = Some(match &steps[..] {
        [.., images] if images.has_passed() => Parts::Node,
        [_] => Parts::Failed(PARTS_STEP),
        _ => Parts::Failed(IMAGES_STEP),
    });
    steps
}

/// Where the images for tests are written.
fn images_directory() -> PathBuf {
    target_directory().join("test-images")
}

/// Compiles and lints the tests, then the programs that tests start and put into images: these share everything with the tests.
fn build_suites(table: &Table, environment: &Environment) -> Result<Vec<Suite>> {
    let limit = Duration::from_secs(45 * 60);
    let binaries = suites::build(|build| {
        let built = run_program(&build, Role::Tool, limit, Output::Hidden)?;
        match built.ended.failure() {
            None => Ok(built.lines),
            Some(why) => bail!("compiling the tests: cargo: {why}"),
        }
    })?;
    let programs = cargo(&["build", "--workspace", "--locked", "--bins"]);
    let built = run_program(&programs, Role::Tool, limit, Output::Shown)?;
    if let Some(why) = built.ended.failure() {
        bail!("compiling the programs: cargo: {why}");
    }
    environment.check_programs()?;
    suites::split(binaries, table)
}

/// Side by side, then what needs the machine for itself.
fn run_suites(pool: &Pool<'_>, mut suites: Vec<Suite>) -> Result<Vec<Outcome>> {
    let mut alone = Vec::new();
    for mark in marked::read(ALONE)? {
        for suite in suites.iter_mut().filter(|suite| mark.is_for(suite)) {
            alone.push(mark.select(suite));
            suite.skip(&mark.filters);
        }
    }
    let mut outcomes = pool.run(suites);
    let one_by_one = Pool { width: 1, ..*pool };
    outcomes.extend(one_by_one.run(alone));
    Ok(outcomes)
}

/// What is checked beside the suites, at low priority; cargo lets one of these wait for another anyway.
fn run_checks(environment: &Environment) -> (Vec<Step>, Totals) {
    let mut totals = Totals::default();
    let mut cargo_step = |name: &'static str, words: &[&str]| {
        Step::run(name, || {
            let mut program = cargo(words);
            environment.apply(&mut program);
            let limit = Duration::from_secs(40 * 60);
            let ran = run_program(&program, Role::Background, limit, Output::Shown)?;
            totals.add(&Totals::parse(&ran.lines));
            match ran.ended.failure() {
                None => Ok(()),
                Some(why) => bail!("cargo {}: {why}", words.join(" ")),
            }
        })
    };
    let steps = vec![
        cargo_step("format", &["fmt", "--all", "--check"]),
        // Everything else was linted when it was compiled.
        cargo_step("clippy of benches", &["build", "--workspace", "--locked", "--benches"]),
        cargo_step("doc tests", &["test", "--workspace", "--locked", "--no-fail-fast", "--doc"]),
        Step::run("check", check::run),
    ];
    (steps, totals)
}

impl Environment {
    fn new(full: bool) -> Result<Self> {
        let scratch = tempfile::tempdir().context("making a directory for the skips")?;
        let skips = open_to_all(scratch.path())?;
        let own = std::env::current_exe().context("finding this program")?;
        let mut variables = vec![
            (SKIPS_FILE, skips.display().to_string()),
            (SEED, seed()?),
            (PROGRAMS, build_directory("debug")?.display().to_string()),
            // Not by the path that cargo replaces when this program is built anew.
            (XTASK, copy_of(&own, scratch.path())?.display().to_string()),
            (RUN, std::process::id().to_string()),
            (IMAGES, images_directory().display().to_string()),
        ];
        let cluster_times = scratch.path().join("cluster-times");
        variables.push((kube::TIMES_VARIABLE, cluster_times.display().to_string()));
        if full {
            variables.push((FULL, "1".to_owned()));
        }
        Ok(Self { variables, _scratch: scratch, skips, cluster_times })
    }

    fn apply(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    fn run_name(&self) -> String {
        std::process::id().to_string()
    }

    /// Whether the programs are static, as sandboxes and images need them: flags elsewhere could have taken that away.
    fn check_programs(&self) -> Result<()> {
        let program = build_directory("debug")?.join("skill-sidecar");
        let content = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        crate::images::check_static(&content).with_context(|| program.display().to_string())
    }
}

/// The seed of samples: the commit's, so that every commit tries others and a failing one can be tried again.
fn seed() -> Result<String> {
    if let Ok(given) = std::env::var(SEED) {
        return Ok(given);
    }
    let commit = output(command("git").args(["rev-parse", "--short=8", "HEAD"]));
    let seed = match &commit {
        Ok(commit) => u64::from_str_radix(commit.trim(), 16).unwrap_or(1),
        // A checkout without its history.
        Err(_) => 1,
    };
    note(&format!("samples: {SEED}={seed}"));
    Ok(seed.to_string())
}

fn copy_of(program: &Path, directory: &Path) -> Result<PathBuf> {
    let copy = directory.join("xtask");
    fs::copy(program, &copy).with_context(|| format!("copying {}", program.display()))?;
    Ok(copy)
}

/// A file that tests which run as other users can append to.
fn open_to_all(directory: &Path) -> Result<PathBuf> {
    let file = directory.join("skips");
    fs::write(&file, "")?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
    Ok(file)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().map_err(|_| anyhow::anyhow!("a step of the tooling panicked"))
}
