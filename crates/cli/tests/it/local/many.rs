//! Concurrent runs: all succeed, and none sees files of another.

use std::fs;
use std::process::Child;

use sympozium_testkit::cases;
use sympozium_testkit::processes::tree_of;

use super::{Home, Scenario, Who, eventually, leftovers};

/// The number of concurrent runs in `make test`; `make test-full` has [`ALL`].
const SAMPLE: usize = 12;
const ALL: usize = 100;

/// Writes a secret, waits until all runs have done so, and searches for the secrets of others.
fn scenario(number: usize, home: &Home) -> Scenario {
    let look = format!(
        "echo secret-of-run-{number} > /workspace/mine; echo secret-of-run-{number} > /tmp/mine; \
         while [ ! -e /workspace/go ]; do sleep 0.2; done; \
         for place in {state}/runs/*/workspace /var/tmp/*/workspace /workspace/.. /workspace/../.. /tmp /dev/shm /var/tmp /home /root /run /proc/[0-9]*/root/workspace /proc/[0-9]*/cwd; do \
           cat $place/mine $place/*/mine 2>/dev/null; done | grep -v '^secret-of-run-{number}$'; \
         ls {state} 2>/dev/null; echo looked",
        state = home.at("state").display(),
    );
    let mut scenario = Scenario::commands(&["sleep", "cat", "grep", "ls"], &[&look]).patient();
    scenario.name = format!("run-{number}");
    scenario
}

#[test]
fn concurrent_runs_do_not_see_each_other() {
    for who in Who::all() {
        let home = Home::new(who);
        let count = if cases::is_full() { ALL } else { SAMPLE };
        let scenarios: Vec<Scenario> = (0..count).map(|it| scenario(it, &home)).collect();
        let mut memory = Vec::new();
        let mut children: Vec<Child> = Vec::new();
        // Concurrently: one after the other, a hundred would exceed the timeout of the first command.
        for half in scenarios.chunks(count / 2) {
            children.extend(half.iter().map(|scenario| home.start(scenario)));
            for scenario in half {
                let workspace = || home.directory_of(&scenario.name).join("workspace");
                eventually("a run has written its secret", || workspace().join("mine").exists());
            }
            memory.push(children.iter().map(proportional).sum::<u64>());
        }
        let [half, all] = memory[..] else {
            panic!("{memory:?}");
        };
        let (half, all) = (half as f64, all as f64);
        for scenario in &scenarios {
            fs::write(home.directory_of(&scenario.name).join("workspace/go"), "").unwrap();
        }
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
        for (number, scenario) in scenarios.iter().enumerate() {
            let run = super::Ended {
                home: &home,
                output: home.sympozium(&["show", &scenario.name]).output().unwrap(),
                directory: home.directory_of(&scenario.name),
            };
            assert_eq!(run.results(), ["looked"], "run {number}");
        }
        let states: Vec<String> = (home.runs().iter()).map(|it| it["state"].as_str().unwrap().to_owned()).collect();
        assert_eq!(states, vec!["succeeded"; count]);
        assert_eq!(leftovers::of(&home), Vec::<String>::new());
        // Twice as many need at most twice as much.
        assert!(all > half && all < 3.0 * half, "{memory:?}");
        let mebibytes = all / count as f64 / 1_048_576.0;
        eprintln!("{count} runs as {who:?}: {mebibytes:.1} MiB each");
    }
}

/// The proportional set size of a run's processes, in bytes.
fn proportional(child: &Child) -> u64 {
    let all = tree_of(i32::try_from(child.id()).unwrap()).into_iter();
    all.filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find(|it| it.starts_with("Pss:"))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    })
    .map(|kibibytes| kibibytes * 1024)
    .sum()
}
