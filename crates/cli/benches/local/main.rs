//! What a run on one machine costs: `make bench SUITE=local`. One function measures each row of `bench/rows/local.txt`.
//!
//! The program is the one that ships, as a whole process: it reads manifests, admits, plans, makes four sandboxes, runs an
//! agent with a scripted model to its end, and looks that nothing is left. What it is compared with is measured in turns
//! with it, so whatever else the machine does hits both.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

mod memory;
mod peers;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sympozium_testkit::bench::raw::spawn;
use sympozium_testkit::bench::{Suite, Target, median};
use sympozium_testkit::static_build;
use tempfile::TempDir;

/// Runs of each kind.
const ROUNDS: usize = 21;
/// Commands of a run with many.
const COMMANDS: usize = 40;

fn main() {
    let harness = Harness::new();
    let mut suite = Suite::new("local");
    whole_run(&mut suite, &harness);
    let further = further_commands(&mut suite, &harness);
    peers::compare(&mut suite, further);
    memory::measure(&mut suite, &harness);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// The program, and a directory for everything of its runs.
pub struct Harness {
    program: PathBuf,
    directory: TempDir,
}

impl Harness {
    fn new() -> Self {
        let program = static_build::shipped("sympozium").expect("the program is built");
        // Not below /tmp, which sandboxes have of their own; and on the disk that states are on.
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        Self { program, directory }
    }

    /// Manifests of a run with two skills whose model has one command after the other run.
    fn manifests(&self, name: &str, commands: &[&str]) -> PathBuf {
        let mut turns = String::new();
        for command in commands {
            turns += &format!(
                "      - call:\n          - tool: execute_command\n            arguments: {{target: first, command: '{command}'}}\n"
            );
        }
        let text = MANIFESTS.replace("TURNS", &turns);
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    fn command(&self, manifests: &Path) -> Command {
        let mut command = sympozium_testkit::command(&self.program);
        command
            .arg("run")
            .arg(manifests)
            .args(["-o", "json"])
            .env("SYMPOZIUM_STATE", self.directory.path().join("state"))
            .env("SYMPOZIUM_CONFIG", self.directory.path().join("config"))
            .env("SYMPOZIUM_DATA", self.directory.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// A whole run, as a process.
    fn run(&self, manifests: &Path) -> Duration {
        let start = Instant::now();
        let status = self.command(manifests).status().expect("it starts");
        let taken = start.elapsed();
        assert!(status.success(), "the run failed: {status}");
        taken
    }
}

const MANIFESTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: script}
data:
  turns.yaml: |
    turns:
TURNS      - say: Done.
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: first}
spec:
  skills: [{name: first, description: First., content: '# First', requires: {bins: [sleep]}}]
  sidecar: {image: 'example.com/first:1', mountWorkspace: true, resources: {cpu: '2', memory: 128Mi}}
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: second}
spec:
  skills: [{name: second, description: Second., content: '# Second'}]
  sidecar: {image: 'example.com/second:1', mountWorkspace: true}
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: measured}
spec:
  skills: [{skillPackRef: first}, {skillPackRef: second}]
  agents: {default: {model: script}}
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: measured}
spec:
  agentRef: measured
  model: {provider: scripted, model: script}
  task: Measure.
";

/// The whole process against bubblewrap with the same command, in the same binds.
fn whole_run(suite: &mut Suite, harness: &Harness) {
    let manifests = harness.manifests("one.yaml", &["echo hello"]);
    harness.run(&manifests);
    let (mut ratios, mut runs, mut wraps) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let wrapped = peers::bubblewrap();
        let run = harness.run(&manifests);
        ratios.push(run.as_secs_f64() / wrapped.as_secs_f64());
        runs.push(run.as_secs_f64() * 1e3);
        wraps.push(wrapped.as_secs_f64() * 1e3);
    }
    println!("whole run: {:.1} ms; bwrap: {:.1} ms", median(runs), median(wraps));
    suite.row(
        "`sympozium run`, two skills, one command, whole process, against bwrap --unshare-all of the command",
        median(ratios),
        "x",
        Target::AtMost(6.0),
    );
}

/// What each further command of a run takes, the model's turn included: a run with many less a run with one.
fn further_commands(suite: &mut Suite, harness: &Harness) -> Duration {
    let one = harness.manifests("one.yaml", &["echo hello"]);
    // An agent stops itself that makes the same call again and again.
    let all: Vec<String> = (0..=COMMANDS).map(|number| format!("echo {number}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let many = harness.manifests("many.yaml", &all);
    let raw = || {
        let start = Instant::now();
        for _ in 0..COMMANDS {
            spawn(c"/bin/sh", &[c"-c", c"echo hello"]);
        }
        start.elapsed().as_secs_f64() / COMMANDS as f64
    };
    let (mut added, mut further) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let raw = raw();
        let (single, all) = (harness.run(&one), harness.run(&many));
        let each = all.saturating_sub(single).as_secs_f64() / COMMANDS as f64;
        added.push((each - raw) * 1e3);
        further.push(each);
    }
    let further = median(further);
    println!("a further command: {:.2} ms", further * 1e3);
    suite.row(
        "a further command of a run, model turn included, beyond a raw spawn of the same",
        median(added),
        "ms",
        Target::AtMost(2.0),
    );
    Duration::from_secs_f64(further)
}
