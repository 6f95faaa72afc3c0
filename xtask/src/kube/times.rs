//! Where the time goes: every step of every command is noted in one file, and shown as a table at the end of a test run.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use super::events::seconds;

/// Names the file that collects the times; without it nothing is noted.
pub const VARIABLE: &str = "SYMPOZIUM_KUBE_TIMES";

/// Notes how long a step took, where times are collected.
pub fn note(step: &str, took: Duration) {
    if let Some(path) = std::env::var_os(VARIABLE) {
        note_in(Path::new(&path), step, took);
    }
}

/// Notes it in a given file. A table with a row missing is better than a failed step.
pub fn note_in(path: &Path, step: &str, took: Duration) {
    // One write of a whole line to a file opened for appending is not torn by other processes.
    let line = format!("{step}\t{}\n", took.as_millis());
    let file = OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// One row per step: how often, how long on average and at most.
pub fn table(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut order = Vec::new();
    let mut steps: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for (step, milliseconds) in text.lines().filter_map(|line| line.split_once('\t')) {
        let took = Duration::from_millis(milliseconds.parse().unwrap_or_default());
        let times = steps.entry(step).or_default();
        if times.is_empty() {
            order.push(step);
        }
        times.push(took);
    }
    let mut rows = vec![format!("{:<58}{:>6}{:>11}{:>11}", "step", "times", "mean", "longest")];
    for step in order {
        let times = &steps[step];
        let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
        let mean = times.iter().sum::<Duration>() / count;
        let longest = times.iter().max().copied().unwrap_or_default();
        rows.push(format!("{step:<58}{count:>6}{:>11}{:>11}", seconds(mean), seconds(longest)));
    }
    rows.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_shown_in_the_order_they_came_with_mean_and_longest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("times");
        fs::write(&path, "start\t1000\nbuild\t2000\nstart\t3000\n").unwrap();
        let table = table(&path);
        let rows: Vec<Vec<_>> = table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows, [["start", "2", "2.0", "s", "3.0", "s"], ["build", "1", "2.0", "s", "2.0", "s"]]);
    }
}
