//! Hostile runs on one machine: `sympozium run` as it is, as root and as an ordinary user.
//!
//! Every test has a directory with a unique name, by which leftovers of its runs are found.

mod commands;
mod costs;
mod host;
mod killed;
mod leftovers;
mod many;
mod network;
mod origins;
mod ours;
mod sidecar;
mod state_directory;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sympozium_testkit::probe::{self, Findings};
use sympozium_testkit::{as_user, wait_until};
use tempfile::TempDir;

/// The first UID of the tests. Each home has its own, which identifies its processes. The UIDs of the conformance suite,
/// which may run at the same time, start at 61,300.
const FIRST_USER: u32 = 63_000;
/// The directories of `PATH` after the home's own.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The timeout of waits, for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum timeout of a command in seconds, four times the default. For commands that must complete on any machine.
pub const LONGEST_COMMAND: u32 = 120;
/// The pack whose commands attack.
pub const PACK: &str = "shell";

/// The user that starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    Ordinary,
}

impl Who {
    /// All users that the current user can become.
    pub fn all() -> Vec<Self> {
        match as_user::is_root() {
            true => vec![Self::Root, Self::Ordinary],
            false => vec![Self::Ordinary],
        }
    }
}

/// Calls `body` for each user.
pub fn for_each_user(body: impl Fn(&Home)) {
    for who in Who::all() {
        body(&Home::new(who));
    }
}

/// The directories of a user, outside of /tmp, because sandboxes have their own /tmp.
pub struct Home {
    directory: TempDir,
    user: Option<u32>,
}

impl Home {
    pub fn new(who: Who) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let user = (who == Who::Ordinary && as_user::is_root()).then_some(FIRST_USER + number);
        let directory = tempfile::Builder::new().prefix("sympozium-attack-").tempdir_in("/var/tmp").unwrap();
        let home = Self { directory, user };
        home.give(home.path());
        for name in ["state", "data", "config", "bin"] {
            fs::create_dir(home.at(name)).unwrap();
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(home.at(name), private).unwrap();
            home.give(&home.at(name));
        }
        home
    }

    /// Changes the owner of a file or directory to the user.
    pub fn give(&self, path: &Path) {
        if let Some(user) = self.user {
            chown(path, Some(user), Some(user)).unwrap();
        }
    }

    pub fn user(&self) -> Option<u32> {
        self.user
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The unique name of this home.
    pub fn name(&self) -> &str {
        self.path().file_name().and_then(|it| it.to_str()).unwrap()
    }

    /// The program, run by this user.
    pub fn sympozium(&self, arguments: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_sympozium");
        let mut command = match self.user {
            Some(user) => as_user::command(user, program),
            None => sympozium_testkit::command(program),
        };
        command
            .args(arguments)
            .current_dir(self.path())
            .env_clear()
            .env("PATH", format!("{}:{PATH}", self.at("bin").display()))
            .env("HOME", self.path())
            .env("SYMPOZIUM_STATE", self.at("state"))
            .env("SYMPOZIUM_CONFIG", self.at("config"))
            .env("SYMPOZIUM_DATA", self.at("data"))
            .stdin(Stdio::null());
        command
    }

    /// Installs a program for the user's packs.
    pub fn install(&self, program: &Path, name: &str) {
        let to = self.at("bin").join(name);
        sympozium_testkit::copy_program(program, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        self.give(&to);
    }

    /// Writes the manifests of a run, and returns their path.
    pub fn manifests(&self, scenario: &Scenario) -> String {
        let path = self.at(&format!("{}.yaml", scenario.name));
        fs::write(&path, scenario.text()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs a scenario to its end.
    pub fn run(&self, scenario: &Scenario) -> Ended<'_> {
        let file = self.manifests(scenario);
        let output = self.sympozium(&["run", &file, "--run", &scenario.name]).output().unwrap();
        let directory = self.directory_of(&scenario.name);
        Ended { home: self, output, directory }
    }

    /// Starts a run.
    pub fn start(&self, scenario: &Scenario) -> Child {
        let file = self.manifests(scenario);
        self.sympozium(&["run", &file, "--run", &scenario.name])
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.at("stderr")).unwrap())
            .spawn()
            .unwrap()
    }

    /// The directory of the run with this name.
    pub fn directory_of(&self, name: &str) -> PathBuf {
        let runs = fs::read_dir(self.at("state/runs")).into_iter().flatten();
        let mut found = runs.flatten().map(|it| it.path()).filter(|directory| {
            let record = fs::read(directory.join("run.json")).unwrap_or_default();
            serde_json::from_slice::<Value>(&record).is_ok_and(|record| record["name"] == name)
        });
        found.next().unwrap_or_else(|| self.at("state/runs/there-is-none"))
    }

    /// The output of `sympozium runs`, which also removes leftovers of killed runs.
    pub fn runs(&self) -> Vec<Value> {
        let output = self.sympozium(&["runs", "--all", "-o", "json"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
    }
}

/// A run that has ended.
pub struct Ended<'h> {
    home: &'h Home,
    pub output: Output,
    pub directory: PathBuf,
}

impl Ended<'_> {
    /// The results of the tool calls that the model got, in order.
    pub fn results(&self) -> Vec<String> {
        let lines = fs::read_to_string(self.directory.join("transcript.jsonl")).unwrap_or_default();
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|line| line["kind"] == "result")
            .map(|line| line["text"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    pub fn record(&self) -> Value {
        serde_json::from_slice(&fs::read(self.directory.join("run.json")).unwrap()).unwrap()
    }

    /// Asserts that the run has an answer, no leftovers and valid receipts.
    #[track_caller]
    pub fn assert_succeeded(&self) {
        self.assert_code(0);
    }

    /// Asserts that the run ended with this code, has no leftovers and valid receipts.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        let stderr = String::from_utf8_lossy(&self.output.stderr);
        let results = self.results();
        assert_eq!(self.output.status.code(), Some(code), "{stderr}\n{results:#?}");
        assert_eq!(leftovers::of(self.home), Vec::<String>::new());
        assert_eq!(self.record()["leftovers"], json!([]));
        let uid = self.record()["uid"].as_str().unwrap().to_owned();
        let verified = self.home.sympozium(&["audit", "verify", &uid]).output();
        let verified = verified.unwrap();
        assert!(verified.status.success(), "{verified:?}");
    }

    /// The findings of the probe in the result with this index.
    #[track_caller]
    pub fn findings(&self, number: usize) -> Findings {
        let results = self.results();
        let result = results.get(number).unwrap_or_else(|| {
            panic!("there is no result {number}: {results:#?} {}", String::from_utf8_lossy(&self.output.stderr))
        });
        Findings::parse(result.as_bytes())
    }
}

/// The objects of a run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    /// The turns of the model; an answer is added.
    pub turns: Vec<Value>,
    /// SkillPacks: name and spec.
    pub packs: Vec<(String, Value)>,
    /// Additional fields of the AgentRun's spec.
    pub run: Value,
    /// Other objects.
    pub others: Vec<Value>,
}

impl Scenario {
    /// One pack, [`PACK`], with these programs, in which the model calls these commands one after the other.
    pub fn commands(programs: &[&str], commands: &[&str]) -> Self {
        Self {
            name: "attack".to_owned(),
            turns: commands.iter().map(|it| call(PACK, it)).collect(),
            packs: vec![(PACK.to_owned(), pack(programs))],
            run: json!({}),
            others: Vec::new(),
        }
    }

    /// One command that makes these attempts with the probe, which must be installed.
    pub fn attempts(attempts: &[&str]) -> Self {
        let command = format!("probe attempt {}", attempts.join(" "));
        Self::commands(&["probe"], &[&command]).patient()
    }

    /// The same, with [`LONGEST_COMMAND`] for every command without a timeout.
    pub fn patient(mut self) -> Self {
        let calls = self.turns.iter_mut().filter_map(|turn| turn.get_mut("call")?.as_array_mut()).flatten();
        for call in calls.filter(|call| call["tool"] == "execute_command") {
            if let Some(arguments) = call["arguments"].as_object_mut() {
                arguments.entry("timeout").or_insert(json!(LONGEST_COMMAND));
            }
        }
        self
    }

    fn text(&self) -> String {
        let mut turns = self.turns.clone();
        turns.push(json!({"say": "It is done.", "then": "end"}));
        let script = json!({"turns": turns}).to_string();
        let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let skills: Vec<Value> = self.packs.iter().map(|(name, _)| json!({"skillPackRef": name})).collect();
        let mut run =
            json!({"agentRef": "attacker", "model": {"provider": "scripted", "model": "script"}, "task": "Attack."});
        for (key, value) in self.run.as_object().unwrap() {
            run[key] = value.clone();
        }
        let mut agent = json!({"skills": skills, "agents": {"default": {"model": "script"}}});
        if self.others.iter().any(|it| it["kind"] == "SympoziumPolicy") {
            agent["policyRef"] = json!("policy");
        }
        let mut objects = vec![
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": {"script.yaml": script}}),
            object("Agent", "attacker", agent),
            object("AgentRun", &self.name, run),
        ];
        objects.extend((self.packs.iter()).map(|(name, spec)| object("SkillPack", name, spec.clone())));
        objects.extend(self.others.iter().cloned());
        let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
        documents.join("\n---\n")
    }
}

/// A turn that calls a command of a pack.
pub fn call(pack: &str, command: &str) -> Value {
    json!({"call": [{"tool": "execute_command", "arguments": {"command": command, "target": pack}}]})
}

/// A pack with these programs of this machine, and the workspace.
pub fn pack(programs: &[&str]) -> Value {
    json!({
        "skills": [{"name": "skill", "description": "A skill", "content": "# A skill", "requires": {"bins": programs}}],
        "sidecar": {"image": "example.com/none:1", "mountWorkspace": true},
    })
}

/// Calls `body` for each user, with the probe installed.
pub fn for_each_user_with_probe(body: impl Fn(&Home)) {
    for_each_user(|home| {
        home.install(probe::path(), "probe");
        body(home);
    });
}

/// Waits for a condition; panics after a timeout.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(wait_until(TIMEOUT, condition), "timed out waiting until {what}");
}
