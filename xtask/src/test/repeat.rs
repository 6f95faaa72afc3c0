//! Hunting for tests that fail now and then: many times over, or with the machine busy.

use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::pool::{Outcome, Pool};
use super::suites::Suite;
use super::{cores, marked};
use crate::launch::{Role, launch};
use crate::output::{line, note};
use crate::process::command;

/// Tests whose subject is time: deadlines, signals, races.
const TIMING_SENSITIVE: &str = "test/timing-sensitive.txt";
/// In a row, without a failure.
const BUSY_ROUNDS: usize = 3;
/// Programs for each core that do nothing but compute.
const LOAD_PER_CORE: usize = 2;

/// The timing-sensitive tests, beside programs that keep every core busy.
pub fn run_busy(pool: &Pool<'_>, suites: &[Suite]) -> Result<Vec<Outcome>> {
    let mut chosen = Vec::new();
    for mark in marked::read(TIMING_SENSITIVE)? {
        let suite = suites.iter().find(|suite| mark.is_for(suite));
        chosen.push(mark.select(suite.context("a mark for a binary that is not there")?));
    }
    ensure!(!chosen.is_empty(), "{TIMING_SENSITIVE} names no test");
    let _load = Load::start(cores() * LOAD_PER_CORE)?;
    let mut outcomes = Vec::new();
    for round in 1..=BUSY_ROUNDS {
        note(&format!("--- busy, round {round} of {BUSY_ROUNDS}"));
        outcomes.extend(pool.run(chosen.clone()));
    }
    Ok(outcomes)
}

/// The tests whose name contains `name`, `times` times.
pub fn run_named(pool: &Pool<'_>, suites: &[Suite], times: usize, name: &str) -> Result<Vec<Outcome>> {
    let mut chosen = Vec::new();
    for suite in suites {
        if suite.list()?.iter().any(|test| test.contains(name)) {
            chosen.push(suite.with_arguments(suite.name.clone(), vec![name.to_owned()]));
        }
    }
    ensure!(!chosen.is_empty(), "no test has `{name}` in its name");
    let mut outcomes = Vec::new();
    for round in 1..=times {
        note(&format!("--- round {round} of {times}"));
        outcomes.extend(pool.run(chosen.clone()));
    }
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    line(&format!("{failed} of {} runs failed", outcomes.len()));
    Ok(outcomes)
}

/// Programs that compute until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start(count: usize) -> Result<Self> {
        let mut spin = command("sh");
        spin.args(["-c", "while :; do :; done"]);
        let mut load = Self(Vec::new());
        for _ in 0..count {
            let mut program = launch(&spin, Role::Test);
            let child = program.stdin(Stdio::null()).spawn();
            load.0.push(child.context("starting a load")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
