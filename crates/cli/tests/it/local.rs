//! Hostile runs on one machine: `sympozium run` as it is, as root and as an ordinary user.
//!
//! Every test has a directory of its own whose name nothing else on the machine has; what is left of a run is found by it.

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

/// The first of the users that tests are; each home has one of its own, so that what belongs to it can be told. The users of
/// the conformance suite, which may run at the same time, begin at 61,300.
const FIRST_USER: u32 = 63_000;
/// Directories in which programs are looked for, besides the home's own.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long anything here may take on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The most seconds that a command may have; without a word about it, it has a quarter of them. For commands that must
/// come to their end, however slow the machine is.
pub const LONGEST_COMMAND: u32 = 120;
/// The pack whose commands attack.
pub const PACK: &str = "shell";

/// As whom a run is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    Ordinary,
}

impl Who {
    /// Everybody whom whoever runs the tests can be.
    pub fn all() -> Vec<Self> {
        match as_user::is_root() {
            true => vec![Self::Root, Self::Ordinary],
            false => vec![Self::Ordinary],
        }
    }
}

/// Does the same as everybody.
pub fn as_everybody(body: impl Fn(&Home)) {
    for who in Who::all() {
        body(&Home::new(who));
    }
}

/// A user's directories, outside /tmp, of which sandboxes have one of their own.
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

    /// Makes a file or directory the user's.
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

    /// The name by which everything of this home is found.
    pub fn name(&self) -> &str {
        self.path().file_name().and_then(|it| it.to_str()).unwrap()
    }

    /// The program, as this user.
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

    /// Puts a program where the user's packs find it.
    pub fn install(&self, program: &Path, name: &str) {
        let to = self.at("bin").join(name);
        sympozium_testkit::copy_program(program, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        self.give(&to);
    }

    /// Writes the manifests of a run, and says where.
    pub fn manifests(&self, scenario: &Scenario) -> String {
        let path = self.at(&format!("{}.yaml", scenario.name));
        fs::write(&path, scenario.text()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A run, to its end.
    pub fn run(&self, scenario: &Scenario) -> Ended<'_> {
        let file = self.manifests(scenario);
        let output = self.sympozium(&["run", &file, "--run", &scenario.name]).output().unwrap();
        let directory = self.directory_of(&scenario.name);
        Ended { home: self, output, directory }
    }

    /// A run that goes on.
    pub fn start(&self, scenario: &Scenario) -> Child {
        let file = self.manifests(scenario);
        self.sympozium(&["run", &file, "--run", &scenario.name])
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.at("stderr")).unwrap())
            .spawn()
            .unwrap()
    }

    /// The directory of the run of this name.
    pub fn directory_of(&self, name: &str) -> PathBuf {
        let runs = fs::read_dir(self.at("state/runs")).into_iter().flatten();
        let mut found = runs.flatten().map(|it| it.path()).filter(|directory| {
            let record = fs::read(directory.join("run.json")).unwrap_or_default();
            serde_json::from_slice::<Value>(&record).is_ok_and(|record| record["name"] == name)
        });
        found.next().unwrap_or_else(|| self.at("state/runs/there-is-none"))
    }

    /// What `sympozium runs` says of every run, which also clears away what the dead left.
    pub fn runs(&self) -> Vec<Value> {
        let output = self.sympozium(&["runs", "--all", "-o", "json"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
    }
}

/// A run that is over.
pub struct Ended<'h> {
    home: &'h Home,
    pub output: Output,
    pub directory: PathBuf,
}

impl Ended<'_> {
    /// What the model was told of each tool call, in order.
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

    /// Asserts that it has an answer, that nothing of it is left and that its record verifies.
    #[track_caller]
    pub fn assert_well(&self) {
        self.assert_code(0);
    }

    /// Asserts that it ended with this code, that nothing of it is left and that its record verifies.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        let said = String::from_utf8_lossy(&self.output.stderr);
        let results = self.results();
        assert_eq!(self.output.status.code(), Some(code), "{said}\n{results:#?}");
        assert_eq!(leftovers::of(self.home), Vec::<String>::new());
        assert_eq!(self.record()["leftovers"], json!([]));
        let uid = self.record()["uid"].as_str().unwrap().to_owned();
        let verified = self.home.sympozium(&["audit", "verify", &uid]).output();
        let verified = verified.unwrap();
        assert!(verified.status.success(), "{verified:?}");
    }

    /// What the probe found in the result of this number.
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
    /// What the model does, turn by turn; an answer is added.
    pub turns: Vec<Value>,
    /// SkillPacks: name and spec.
    pub packs: Vec<(String, Value)>,
    /// The spec of the AgentRun, besides agent, model and task.
    pub run: Value,
    /// Anything else.
    pub others: Vec<Value>,
}

impl Scenario {
    /// One pack, [`PACK`], with these programs; the model calls these commands in it, one after the other.
    pub fn commands(programs: &[&str], commands: &[&str]) -> Self {
        Self {
            name: "attack".to_owned(),
            turns: commands.iter().map(|it| call(PACK, it)).collect(),
            packs: vec![(PACK.to_owned(), pack(programs))],
            run: json!({}),
            others: Vec::new(),
        }
    }

    /// One command that makes attempts with the probe, which must be installed.
    pub fn attempts(attempts: &[&str]) -> Self {
        let command = format!("probe attempt {}", attempts.join(" "));
        Self::commands(&["probe"], &[&command]).patient()
    }

    /// The same, with [`LONGEST_COMMAND`] for every command of which nothing else is said.
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

/// A turn in which the model calls a command of a pack.
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

/// A home in which the probe is a program that packs can name.
pub fn as_everybody_with_probe(body: impl Fn(&Home)) {
    as_everybody(|home| {
        home.install(probe::path(), "probe");
        body(home);
    });
}

/// Waits, and fails when it does not come to be.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(wait_until(PATIENCE, condition), "never: {what}");
}
