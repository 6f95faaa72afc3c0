//! cargo-fuzz, which builds the targets with coverage and AddressSanitizer, and libFuzzer, which is what it builds into
//! each of them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::targets::{TARGETS, Target};
use crate::launch::Role;
use crate::output::{hinted, note};
use crate::process::{Ended, Output, command, has_program, output, run as run_program, workspace_root};

/// The version that is installed where there is none.
const CARGO_FUZZ: &str = "cargo-fuzz@0.13.2";
/// An input may take this long, many times what the slowest needs: a busy machine is no find.
const INPUT_SECONDS: u64 = 60;
const MAX_MEMORY_MB: u64 = 2048;
/// What starting, reading the corpus and ending may take on top of the time for fuzzing.
const PATIENCE: Duration = Duration::from_secs(900);

/// A built set of targets.
pub struct Engine {
    target_directory: PathBuf,
    triple: String,
}

/// What one search came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub seconds: u64,
    pub statistics: Statistics,
    pub verdict: Verdict,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Nothing,
    /// A property broke, or an input took too long or too much memory; with the file that holds the input.
    Found(PathBuf),
    /// An input took too long in the search and not when it was run again: the machine was at a stand, and the search ended
    /// early.
    Stalled,
    /// The program did not get to its end and named no input; with the file that holds what it printed.
    Broken(PathBuf),
}

/// What libFuzzer prints about a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub executions: u64,
    /// With the corpus as it was.
    pub start: Coverage,
    pub end: Coverage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Edges of the program.
    pub edges: u64,
    /// Edges, distinguished by how often they were taken, and comparisons.
    pub features: u64,
}

impl Engine {
    /// Looks for a nightly toolchain, and installs cargo-fuzz if it is missing.
    pub fn install() -> anyhow::Result<Self> {
        let toolchains =
            if has_program("rustup") { output(command("rustup").args(["toolchain", "list"]))? } else { String::new() };
        let Some(triple) = nightly_triple(&toolchains) else {
            return Err(hinted(
                "fuzzing needs a nightly toolchain, and there is none",
                "rustup toolchain install nightly; the corpora run on stable in `make test`",
            ));
        };
        if !has_program("cargo-fuzz") {
            note(&format!("installing {CARGO_FUZZ}, which takes a few minutes"));
            let mut install = command("cargo");
            install.args(["install", "--locked", "--quiet", CARGO_FUZZ]);
            // Not in the workspace, whose configuration is for what we build there.
            output(install.current_dir(std::env::temp_dir()))?;
        }
        let target_directory = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(directory) => workspace_root().join(directory).join("fuzz"),
            None => workspace_root().join("fuzz/target"),
        };
        Ok(Self { target_directory, triple: triple.to_owned() })
    }

    /// Builds the targets that were chosen.
    pub fn build(&self, chosen: &[&Target]) -> anyhow::Result<()> {
        note("building the fuzz targets, which takes a quarter of an hour at first");
        let build = || {
            let mut build = nightly("cargo");
            build
                // Without the configuration that libraries may change for fuzzing: what is tried is what we ship.
                .args(["fuzz", "build", "--no-cfg-fuzzing", "--target-dir"])
                .arg(&self.target_directory)
                // Flags in the environment replace those of .cargo/config.toml, so nothing is linked static here:
                // AddressSanitizer cannot be. cargo-fuzz adds its own; of the debug information only lines are read.
                .env("RUSTFLAGS", "-Ctarget-feature=-crt-static -Cdebuginfo=line-tables-only")
                .env_remove("CARGO_ENCODED_RUSTFLAGS");
            build
        };
        if chosen.len() == TARGETS.len() {
            return output(&mut build()).map(drop);
        }
        // It takes one name, or none for all of them.
        for Target { name, package, .. } in chosen {
            output(build().args(["--no-default-features", "--features", package, name]))?;
        }
        Ok(())
    }

    /// Where the inputs of earlier searches on this machine are, beside those in the repository.
    pub fn work_corpus(&self, target: &str) -> PathBuf {
        self.target_directory.join("corpus").join(target)
    }

    /// Searches for `seconds`.
    pub fn fuzz(&self, target: &str, seconds: u64) -> anyhow::Result<Outcome> {
        let work = self.work_corpus(target);
        fs::create_dir_all(&work)?;
        let artifacts = workspace_root().join("fuzz/artifacts").join(target);
        fs::create_dir_all(&artifacts)?;
        let mut search = self.program(target);
        search
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg("-print_final_stats=1")
            // New inputs go to the first directory.
            .args([work, seeds(target)]);
        let started = Instant::now();
        let (ended, log) = self.run(&search, target, Duration::from_secs(seconds))?;
        let text = fs::read_to_string(&log)?;
        let verdict = match (ended, artifact(&text)) {
            (Ended::Well, _) => Verdict::Nothing,
            (_, Some(input)) if is_timeout(&input) && self.run_input(target, &input)? => {
                fs::remove_file(&input)?;
                Verdict::Stalled
            }
            (_, Some(input)) => Verdict::Found(input),
            (_, None) => Verdict::Broken(log),
        };
        Ok(Outcome { seconds: started.elapsed().as_secs(), statistics: Statistics::parse(&text), verdict })
    }

    /// Lets libFuzzer say in `control` which features each input of the directories reaches.
    pub fn measure(&self, target: &str, control: &Path) -> anyhow::Result<()> {
        let discarded = tempfile::tempdir()?;
        let mut merge = self.program(target);
        merge
            // The plain merge would name only what no input before had.
            .arg("-set_cover_merge=1")
            .arg(format!("-merge_control_file={}", control.display()))
            .arg(discarded.path())
            .args([seeds(target), self.work_corpus(target)]);
        let name = format!("{target}-merge");
        let (ended, log) = self.run(&merge, &name, Duration::ZERO)?;
        anyhow::ensure!(ended == Ended::Well, "minimising the corpus of {target} failed; see {}", log.display());
        Ok(())
    }

    /// Whether every property holds for the input.
    pub fn run_input(&self, target: &str, input: &Path) -> anyhow::Result<bool> {
        let mut run = self.program(target);
        // From where the caller is, and not from the root.
        run.arg(std::path::absolute(input)?);
        let run = run_program(&run, Role::Tool, PATIENCE, Output::Shown)?;
        Ok(run.ended == Ended::Well)
    }

    fn program(&self, target: &str) -> Command {
        let directory = self.target_directory.join(&self.triple).join("release");
        let mut program = command(directory.join(target));
        program
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-report_slow_units={INPUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MAX_MEMORY_MB}"))
            // As cargo-fuzz does: generated code is in several libraries.
            .env("ASAN_OPTIONS", "detect_odr_violation=0");
        program
    }

    /// Runs to the end, with what is printed in a file.
    fn run(&self, program: &Command, name: &str, expected: Duration) -> anyhow::Result<(Ended, PathBuf)> {
        let logs = self.target_directory.join("logs");
        fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{name}.log"));
        let mut file = File::create(&log)?;
        let written = Output::Lines(Box::new(move |line| {
            // What is missing there is missing in the table; no reason to stop.
            let _ = writeln!(file, "{line}");
        }));
        let run = run_program(program, Role::Background, expected + PATIENCE, written)?;
        Ok((run.ended, log))
    }
}

/// The seeds in the repository.
pub fn seeds(target: &str) -> PathBuf {
    workspace_root().join("fuzz/corpus").join(target)
}

/// A program of the nightly toolchain. By way of rustup, because the cargo that started us is the stable one and does
/// not know `+nightly`.
fn nightly(program: impl AsRef<OsStr>) -> Command {
    let mut rustup = command("rustup");
    rustup.args(["run", "nightly"]).arg(program).env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    rustup
}

/// The host of the nightly toolchain, which is none of those that have a date in their name.
fn nightly_triple(toolchains: &str) -> Option<&str> {
    let names = toolchains.lines().filter_map(|line| line.split_ascii_whitespace().next());
    names.filter_map(|name| name.strip_prefix("nightly-")).find(|host| host.starts_with(std::env::consts::ARCH))
}

/// As libFuzzer names inputs that took too long.
fn is_timeout(input: &Path) -> bool {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("timeout-")
}

/// The file that libFuzzer says it has put the input into. The last one: before it there may be inputs that were only slow.
fn artifact(log: &str) -> Option<PathBuf> {
    let line = log.lines().rev().find_map(|line| line.split_once("Test unit written to "))?;
    Some(line.1.trim().into())
}

impl Statistics {
    fn parse(log: &str) -> Self {
        let mut statistics = Self::default();
        for line in log.lines().filter(|line| line.starts_with('#')) {
            let Some(coverage) = Coverage::parse(line) else {
                continue;
            };
            if line.contains("INITED") {
                statistics.start = coverage;
            }
            statistics.end = coverage;
            let count = line.trim_start_matches('#').split_ascii_whitespace().next();
            let count = count.and_then(|count| count.parse().ok());
            statistics.executions = count.unwrap_or(statistics.executions);
        }
        statistics
    }
}

impl Coverage {
    fn parse(line: &str) -> Option<Self> {
        let number = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            rest.split_ascii_whitespace().next()?.parse().ok()
        };
        Some(Self { edges: number(" cov: ")?, features: number(" ft: ")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
INFO: Seed: 1
#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 30Mb
#9\tNEW    cov: 14 ft: 19 corp: 2/3b lim: 4 exec/s: 0 rss: 30Mb L: 2/2 MS: 1 ChangeBit-
";

    #[test]
    fn statistics_are_those_of_the_first_and_the_last_line() {
        let done = format!("{LOG}#77\tDONE   cov: 15 ft: 21 corp: 2/3b lim: 4 exec/s: 0 rss: 3Mb\nDone 77 runs\n");
        let statistics = Statistics::parse(&done);
        let start = Coverage { edges: 12, features: 13 };
        let end = Coverage { edges: 15, features: 21 };
        assert_eq!(statistics, Statistics { executions: 77, start, end });
        assert_eq!(artifact(&done), None);
    }

    #[test]
    fn a_nightly_of_some_day_is_not_the_nightly() {
        let arch = std::env::consts::ARCH;
        let host = format!("{arch}-unknown-linux-gnu");
        let dated = format!("stable-{host} (active, default)\nnightly-2026-01-02-{host}\n");
        assert_eq!(nightly_triple(&dated), None);
        let both = format!("{dated}nightly-{host} (override)\n");
        assert_eq!(nightly_triple(&both), Some(host.as_str()));
    }

    #[test]
    fn a_crash_names_its_input() {
        let crashed = format!(
            "{LOG}==1== ERROR: libFuzzer: deadly signal\nartifact_prefix='a/'; Test unit written to a/crash-1\n"
        );
        assert_eq!(artifact(&crashed), Some("a/crash-1".into()));
        assert!(!is_timeout(Path::new("a/crash-1")));
        assert!(is_timeout(Path::new("a/timeout-1")));
        assert_eq!(Statistics::parse(&crashed).executions, 9);
    }
}
