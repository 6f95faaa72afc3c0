//! `sympozium run` on a pseudo-terminal.

mod ended;
mod piped;
mod prompts;
mod screen;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::{command, wait_until};
use tempfile::TempDir;

/// The timeout of waits.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A choice below each question.
const PROMPT: &str = "[s]how again";

/// The pack and the agent of every test.
const MANIFESTS: &str = r"
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: shell}
spec:
  skills:
    - name: shell
      description: Runs commands.
      content: Use execute_command.
      requires: {bins: [sleep]}
  sidecar: {image: example.com/shell:1, executor: injected, mountWorkspace: true}
---
apiVersion: sympozium.ai/v1alpha1
kind: SympoziumPolicy
metadata: {name: asking}
spec:
  approvalPolicy: {allowRunScope: true}
  toolGating: {defaultAction: allow, rules: [{tool: execute_command, action: ask}]}
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: worker}
spec:
  agents: {default: {model: unused}}
  skills: [{skillPackRef: shell}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: script}
data:
  script.yaml: |
";

/// A directory with the manifests and the state of one run.
struct Harness {
    directory: TempDir,
}

/// A run that was started.
struct Running {
    child: Child,
    code: Option<i32>,
}

impl Harness {
    /// With a scripted model that has these turns.
    fn new(turns: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let turns: String = turns.lines().map(|it| format!("    {it}\n")).collect();
        fs::write(directory.path().join("run.yaml"), format!("{MANIFESTS}{turns}")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Sets arguments, directory and environment.
    fn prepare(&self, program: &mut Command, arguments: &[&str]) {
        program
            .args(["run", "run.yaml", "--model", "scripted/script", "--task", "Look around."])
            .args(arguments)
            .current_dir(self.directory.path())
            .env("SYMPOZIUM_STATE", self.path("state"))
            .env("SYMPOZIUM_CONFIG", self.path("config"))
            .env("USER", "ada");
    }

    /// Starts the run on a terminal, as a shell would.
    fn spawn_on(&self, terminal: &Terminal, arguments: &[&str]) -> Running {
        self.spawn_on_with(terminal, arguments, |_| {})
    }

    fn spawn_on_with(&self, terminal: &Terminal, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Running {
        let mut program = terminal.command(env!("CARGO_BIN_EXE_sympozium")).unwrap();
        self.prepare(&mut program, arguments);
        change(&mut program);
        let child = program.spawn().unwrap();
        Running { child, code: None }
    }

    /// Starts the run with files instead of a terminal.
    fn spawn_piped(&self, arguments: &[&str]) -> (Running, PathBuf, PathBuf) {
        let (stdout, stderr) = (self.path("stdout"), self.path("stderr"));
        let mut program = command(env!("CARGO_BIN_EXE_sympozium"));
        self.prepare(&mut program, arguments);
        let child = program
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        (Running { child, code: None }, stdout, stderr)
    }

    /// The record of the only run.
    fn record(&self) -> Value {
        let runs = fs::read_dir(self.path("state/runs")).unwrap();
        let runs: Vec<_> = runs.map(|it| it.unwrap().path().join("run.json")).collect();
        let [record] = runs.as_slice() else {
            panic!("not one run: {runs:?}");
        };
        serde_json::from_slice(&fs::read(record).unwrap()).unwrap()
    }
}

impl Running {
    /// Waits for the end. Returns the exit code.
    fn wait(&mut self) -> i32 {
        let mut is_over = || match self.child.try_wait().unwrap() {
            Some(status) => {
                self.code = Some(status.code().unwrap_or(-1));
                true
            }
            None => false,
        };
        assert!(wait_until(TIMEOUT, &mut is_over), "the run did not end");
        self.code.unwrap()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.code.is_none() {
            // A test failed: end the run.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn wait_for_prompts(terminal: &Terminal, count: usize) {
    let raw = || terminal.raw().matches(PROMPT).count();
    let came = wait_until(TIMEOUT, || raw() >= count);
    assert!(came, "{}", terminal.screen());
}
