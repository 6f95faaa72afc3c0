//! Runs suites side by side, as many as the machine bears, the longest first.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::suites::Suite;
use super::table::Need;
use super::totals::Totals;
use crate::launch::Role;
use crate::output::{line, note};
use crate::process::{Output, Run, run};

/// How often a run says what it is waiting for.
const PROGRESS: Duration = Duration::from_secs(60);
/// How often the needs of waiting suites are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Lines of a failed suite's output that are shown; all of them are in its log.
const SHOWN_LINES: usize = 300;

/// Whether a suite can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    Waiting,
    Ready,
    /// What it needs will never be there: the step that failed.
    Failed(&'static str),
}

/// What came of a suite.
pub struct Outcome {
    pub name: String,
    pub took: Duration,
    pub budget: Duration,
    pub totals: Totals,
    /// Each test with its time.
    pub tests: Vec<(String, Duration)>,
    /// Why it is no success.
    pub failure: Option<String>,
}

/// How suites are run.
pub struct Pool<'a> {
    /// How many at once.
    pub width: usize,
    pub limit: Duration,
    pub logs: &'a Path,
    /// Adds what a suite gets from the run.
    pub prepare: &'a (dyn Fn(&Suite, &mut Command) + Sync),
    pub readiness: &'a (dyn Fn(Need) -> Readiness + Sync),
    /// Set once at most one suite with pods is left to run: together they keep every core busy, and suffer most from other work on the
    /// machine. The last one alone mostly waits.
    pub pods_are_few: &'a AtomicBool,
}

/// A suite that is running.
struct Running {
    need: Need,
    since: Instant,
    done: Arc<AtomicUsize>,
}

impl Pool<'_> {
    /// Runs all of them and gives what came of each, in the order in which they ended.
    pub fn run(&self, mut suites: Vec<Suite>) -> Vec<Outcome> {
        suites.sort_by_key(|suite| std::cmp::Reverse(suite.row.budget));
        let (send, ended) = mpsc::channel();
        let mut running: BTreeMap<String, Running> = BTreeMap::new();
        let mut outcomes = Vec::new();
        let mut last_word = Instant::now();
        std::thread::scope(|scope| {
            while !suites.is_empty() || !running.is_empty() {
                while running.len() < self.width {
                    let pods_are_taken = running.values().any(|suite| suite.need == Need::Node);
                    let Some((suite, readiness)) = self.next(&mut suites, pods_are_taken) else {
                        break;
                    };
                    if let Readiness::Failed(step) = readiness {
                        outcomes.push(not_run(&suite, step));
                        continue;
                    }
                    let done = Arc::new(AtomicUsize::new(0));
                    let since = Instant::now();
                    running.insert(suite.name.clone(), Running { need: suite.need(), since, done: Arc::clone(&done) });
                    let send = send.clone();
                    scope.spawn(move || {
                        let outcome = self.run_one(&suite, done);
                        let _ = send.send(outcome);
                    });
                }
                let left = suites.iter().map(Suite::need).chain(running.values().map(|suite| suite.need));
                if left.filter(|need| *need == Need::Node).count() <= 1 {
                    self.pods_are_few.store(true, Ordering::Relaxed);
                }
                match ended.recv_timeout(LOOK) {
                    Ok(outcome) => {
                        running.remove(&outcome.name);
                        outcomes.push(outcome);
                    }
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
                }
                if last_word.elapsed() > PROGRESS {
                    last_word = Instant::now();
                    say_progress(&running, suites.len());
                }
            }
        });
        outcomes
    }

    /// The first suite that need not wait. Suites with pods run one after the other: two at once keep both cores of a small machine busy
    /// for twenty minutes, take longer than one after the other, and their tests see states late or never.
    fn next(&self, suites: &mut Vec<Suite>, pods_are_taken: bool) -> Option<(Suite, Readiness)> {
        let ready = suites.iter().enumerate().find_map(|(place, suite)| {
            if pods_are_taken && suite.need() == Need::Node {
                return None;
            }
            let readiness = (self.readiness)(suite.need());
            (readiness != Readiness::Waiting).then_some((place, readiness))
        });
        ready.map(|(place, readiness)| (suites.remove(place), readiness))
    }

    fn run_one(&self, suite: &Suite, done: Arc<AtomicUsize>) -> Outcome {
        let begin = Instant::now();
        let log = self.logs.join(format!("{}.log", suite.name.replace(['/', ':'], "-")));
        let ran = self.run_logged(suite, &log, done);
        let took = begin.elapsed();
        let (lines, failure) = match ran {
            Ok(Run { ended, lines }) => (lines, ended.failure()),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let mut totals = Totals::parse(&lines);
        let failure = failure.or_else(|| {
            let nothing = totals.passed == 0 && suite.row.budget > super::table::Row::default().budget;
            nothing.then(|| "no test of it ran".to_owned())
        });
        let word = if failure.is_some() { "FAILED" } else { "passed" };
        line(&format!(
            "{word}  {:<42} {:>5} tests {:>7.1} s",
            suite.name,
            totals.passed + totals.failed,
            took.as_secs_f64()
        ));
        if let Some(why) = &failure {
            // A suite that broke without a failing test is a failure too.
            totals.failed = totals.failed.max(1);
            show_failure(&suite.name, why, &lines, &log);
        }
        Outcome {
            name: suite.name.clone(),
            took,
            budget: suite.row.budget,
            totals,
            tests: lines.iter().filter_map(|line| time_of(line)).collect(),
            failure,
        }
    }

    fn run_logged(&self, suite: &Suite, log: &Path, done: Arc<AtomicUsize>) -> Result<Run> {
        let mut file = create(log)?;
        let mut command = suite.command();
        (self.prepare)(suite, &mut command);
        let keep = move |line: &str| {
            let _ = writeln!(file, "{line}");
            if line.starts_with("test ") && line.contains(" ... ") {
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        run(&command, Role::Test, self.limit, Output::Lines(Box::new(keep)))
    }
}

fn create(log: &Path) -> Result<File> {
    let directory = log.parent().map(PathBuf::from).unwrap_or_default();
    fs::create_dir_all(&directory)
        .and_then(|()| File::create(log))
        .with_context(|| format!("writing {}", log.display()))
}

fn not_run(suite: &Suite, step: &str) -> Outcome {
    Outcome {
        name: suite.name.clone(),
        took: Duration::ZERO,
        budget: suite.row.budget,
        totals: Totals { passed: 0, failed: 1 },
        tests: Vec::new(),
        failure: Some(format!("not run: step `{step}` failed")),
    }
}

fn say_progress(running: &BTreeMap<String, Running>, waiting: usize) {
    let mut words: Vec<String> = running
        .iter()
        .map(|(name, Running { since, done, .. })| {
            let done = done.load(Ordering::Relaxed);
            format!("{name} ({done} tests, {} s)", since.elapsed().as_secs())
        })
        .collect();
    if waiting > 0 {
        words.push(format!("{waiting} more to come"));
    }
    note(&format!("running: {}", words.join(", ")));
}

/// The part of the output that says what failed, or its end.
fn show_failure(name: &str, why: &str, lines: &[String], log: &Path) {
    let begin =
        lines.iter().position(|line| line == "failures:").unwrap_or_else(|| lines.len().saturating_sub(SHOWN_LINES));
    let part = &lines[begin..];
    let mut text = format!("--- {name} failed: {why}\n");
    for line in part.iter().take(SHOWN_LINES) {
        text.push_str(line);
        text.push('\n');
    }
    if part.len() > SHOWN_LINES {
        text.push_str(&format!("[{} more lines]\n", part.len() - SHOWN_LINES));
    }
    text.push_str(&format!("--- all of it: {}", log.display()));
    // In one piece: others print too.
    line(&text);
}

/// A test and its time, from a line such as `test a::b ... ok <0.123s>`.
fn time_of(line: &str) -> Option<(String, Duration)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = result.rsplit_once('<')?.1.strip_suffix("s>")?;
    let seconds: f64 = seconds.parse().ok()?;
    Some((name.to_owned(), Duration::try_from_secs_f64(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_test_is_read() {
        assert_eq!(time_of("test a::b ... ok <1.500s>"), Some(("a::b".to_owned(), Duration::from_millis(1500))));
        assert_eq!(
            time_of("test a - should panic ... FAILED <0.001s>"),
            Some(("a - should panic".to_owned(), Duration::from_millis(1)))
        );
        for line in ["test a ... ok", "test result: ok. 1 passed", "test a ... ok <x>", "test a ... ok <-1s>"] {
            assert_eq!(time_of(line), None, "{line}");
        }
    }
}
