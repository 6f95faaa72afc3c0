//! A volume as a bridge sees it, an executor on it, and what comes back.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{as_user, processes, static_build, wait_until};

/// How long anything may take that is expected to happen: generous, because it is waited for only when it fails.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What an executor is told besides its directories.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `SYMPOZIUM_SKILL_PACK`, which the driver sets itself.
    pub pack: Option<&'static str>,
    /// The longest timeout in seconds, if not the executor's own.
    pub max_timeout: Option<u64>,
    /// The most commands at once, if not the executor's own.
    pub max_concurrent: Option<u64>,
    /// After how many seconds a claim without a result is given up, if not the executor's own.
    pub claim_lease: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { pack: Some("Test-Pack"), max_timeout: None, max_concurrent: None, claim_lease: None }
    }
}

/// The directories that an executor shares with the requester.
#[derive(Debug)]
pub struct Volume {
    /// What a skill sees as `/ipc`. Exists and is empty.
    pub ipc: PathBuf,
    /// What a skill sees as `/workspace`.
    pub workspace: PathBuf,
    /// For the one who starts the executor.
    pub settings: Settings,
    /// A word that commands put into their processes' command lines.
    pub marker: String,
    directory: tempfile::TempDir,
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "the executor said:\n{}", self.log());
        }
    }
}

/// What a result file says besides its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `exitCode`.
    pub exit_code: i64,
    /// `stdout`.
    pub stdout: String,
    /// `stderr`.
    pub stderr: String,
    /// `timedOut`.
    pub timed_out: bool,
}

impl Volume {
    /// An empty volume and an empty workspace.
    ///
    /// # Panics
    ///
    /// When the machine has no room for them.
    pub fn new(settings: Settings) -> Self {
        // Not below /tmp: an executor that hides the volume from commands cannot do so where they may write.
        let base = if as_user::is_root() { PathBuf::from("/run") } else { static_build::target_directory() };
        // Whoever can write to neither of these is a test that has become another user, with a home of its own.
        let directory = tempfile::tempdir_in(base).or_else(|_| tempfile::tempdir()).expect("a temporary directory");
        let volume = Self {
            ipc: directory.path().join("ipc"),
            workspace: directory.path().join("workspace"),
            settings,
            marker: processes::new_marker(),
            directory,
        };
        for made in [&volume.ipc, &volume.workspace] {
            fs::create_dir(made).expect("a directory of the volume");
        }
        volume
    }

    /// A place outside of both directories.
    pub fn outside(&self) -> &Path {
        self.directory.path()
    }

    /// Where requests and results are.
    pub fn tools(&self) -> PathBuf {
        self.ipc.join("tools")
    }

    /// The request file of `id`.
    pub fn request(&self, id: &str) -> PathBuf {
        self.tools().join(format!("exec-request-{id}.json"))
    }

    /// The result file of `id`.
    pub fn result(&self, id: &str) -> PathBuf {
        self.tools().join(format!("exec-result-{id}.json"))
    }

    /// The claim on `id`.
    pub fn claim(&self, id: &str) -> PathBuf {
        self.tools().join(format!(".claim-{id}"))
    }

    /// Puts `{W}` (the workspace) and `{M}` (the marker) into a text.
    pub fn fill(&self, text: &str) -> String {
        text.replace("{W}", &self.workspace.to_string_lossy()).replace("{M}", &self.marker)
    }

    /// Writes a request the way a bridge does, under another name first.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn put(&self, id: &str, request: &Value) {
        self.put_bytes(id, self.fill(&request.to_string()).as_bytes());
    }

    /// As [`put`](Self::put), with any content.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn put_bytes(&self, id: &str, content: &[u8]) {
        fs::create_dir_all(self.tools()).expect("the directory for requests");
        let hidden = self.outside().join("request.part");
        fs::write(&hidden, content).expect("a request");
        fs::rename(hidden, self.request(id)).expect("a request in its place");
    }

    /// A shell line as a request.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn ask(&self, id: &str, command: &str) {
        self.put(id, &serde_json::json!({"id": id, "command": command}));
    }

    /// The result of `id` as soon as it is there.
    ///
    /// # Panics
    ///
    /// When none comes, or when what comes is not exactly what the protocol says.
    #[track_caller]
    pub fn outcome(&self, id: &str) -> Outcome {
        let mut content = Vec::new();
        let came = wait_until(PATIENCE, || match fs::read(self.result(id)) {
            Ok(read) => {
                content = read;
                true
            }
            Err(_) => false,
        });
        assert!(came, "{id}: no result");
        match Outcome::parse(id, &content) {
            Ok(outcome) => outcome,
            Err(what) => panic!("{id}: {what}: {}", String::from_utf8_lossy(&content)),
        }
    }

    /// Tells the executor that the run is over.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write_done(&self) {
        fs::write(self.ipc.join("done"), "done").expect("the last file of a run");
    }

    /// The lines of a file in the workspace, or none.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.workspace.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The names in the tools directory, sorted.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    pub fn listing(&self) -> Vec<String> {
        let entries = fs::read_dir(self.tools()).expect("the directory for requests");
        let mut names: Vec<String> = entries
            .map(|entry| {
                let name = entry.expect("an entry").file_name();
                name.to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    }

    /// What the executors have said so far.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.outside().join("log")
    }

    /// Starts an executor.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(&self, start: &dyn Fn(&Self) -> Command) -> Executor {
        let mut command = start(self);
        match self.settings.pack {
            Some(pack) => command.env("SYMPOZIUM_SKILL_PACK", pack),
            None => command.env_remove("SYMPOZIUM_SKILL_PACK"),
        };
        let log = fs::File::options().append(true).create(true).open(self.log_file()).expect("a file for the log");
        let child = command
            .env("SKILL_TOKEN", "a-token-of-the-executor")
            .env("SKILL_TOKEN_FILE", "/nonexistent")
            .env("SYMPOZIUM_TEST_SETTING", "the executor's own")
            .env("API_URL", "https://api.example.com")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the same file again"))
            .stderr(log)
            .spawn()
            .expect("the executor starts");
        Executor { child }
    }
}

impl Outcome {
    /// Reads a result file: the five fields of the protocol, each with its type, and nothing else but one object `_meta`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(id: &str, content: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let mut fields = match value {
            Value::Object(fields) => fields,
            _ => return Err("no object".to_owned()),
        };
        if let Some(meta) = fields.remove("_meta")
            && !meta.is_object()
        {
            return Err("_meta is no object".to_owned());
        }
        let mut names: Vec<&str> = fields.keys().map(String::as_str).collect();
        names.sort_unstable();
        if names != ["exitCode", "id", "stderr", "stdout", "timedOut"] {
            return Err(format!("the fields are {names:?}"));
        }
        if fields["id"] != id {
            return Err("another id".to_owned());
        }
        let text = |name: &str| {
            let text = fields[name].as_str().map(str::to_owned);
            text.ok_or_else(|| format!("{name} is no string"))
        };
        Ok(Self {
            exit_code: fields["exitCode"].as_i64().ok_or("exitCode is no integer")?,
            stdout: text("stdout")?,
            stderr: text("stderr")?,
            timed_out: fields["timedOut"].as_bool().ok_or("timedOut is no boolean")?,
        })
    }

    /// Whether this is the answer to a request that was not run, for a reason that names `field`.
    pub fn is_refusal(&self, field: &str) -> bool {
        self.exit_code == 125
            && self.stdout.is_empty()
            && !self.timed_out
            && self.stderr.to_lowercase().contains(&field.to_lowercase())
    }
}

/// A running executor; ended when dropped.
#[derive(Debug)]
pub struct Executor {
    child: Child,
}

impl Executor {
    /// The process of the executor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the executor itself.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // Gone already is for the test to notice.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits until it has ended and gives its exit code, or the number of its signal as a negative one.
    ///
    /// # Panics
    ///
    /// When it does not end.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        let mut status = None;
        wait_until(PATIENCE, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        let status = status.expect("the executor ends");
        match (status.code(), status.signal()) {
            (Some(code), _) => code,
            (None, signal) => -signal.unwrap_or_default(),
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Asked first: it ends its commands, which we do not know.
        self.signal(Signal::TERM);
        let ended = wait_until(Duration::from_secs(120), || !matches!(self.child.try_wait(), Ok(None)));
        if !ended {
            let _ = writeln!(std::io::stderr(), "the executor had to be killed");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_taken_only_as_the_protocol_has_it() {
        let whole = r#"{"id":"a","exitCode":0,"stdout":"o","stderr":"e","timedOut":false}"#;
        let outcome = Outcome { exit_code: 0, stdout: "o".to_owned(), stderr: "e".to_owned(), timed_out: false };
        assert_eq!(Outcome::parse("a", whole.as_bytes()), Ok(outcome.clone()));
        let with_meta = whole.replace('}', r#","_meta":{"truncated":true}}"#);
        assert_eq!(Outcome::parse("a", with_meta.as_bytes()), Ok(outcome));
        for (from, to) in [
            (r#""id":"a""#, r#""id":"b""#),
            (r#""exitCode":0"#, r#""exitCode":"0""#),
            (r#""exitCode":0"#, r#""exitCode":0.5"#),
            (r#""stdout":"o""#, r#""stdout":null"#),
            (r#""timedOut":false"#, r#""timedOut":0"#),
            (r#","timedOut":false"#, ""),
            (r#","timedOut":false"#, r#","timedOut":false,"more":1"#),
            (r#","timedOut":false"#, r#","timedOut":false,"_meta":1"#),
            ("}", ""),
        ] {
            let wrong = whole.replacen(from, to, 1);
            assert!(Outcome::parse("a", wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_refusal_ran_nothing_and_says_why() {
        let refusal = Outcome {
            exit_code: 125,
            stdout: String::new(),
            stderr: "x: workDir cannot be entered".to_owned(),
            timed_out: false,
        };
        assert!(refusal.is_refusal("workdir"));
        assert!(!refusal.is_refusal("timeout"));
        for wrong in [
            Outcome { exit_code: 1, ..refusal.clone() },
            Outcome { stdout: "ran".to_owned(), ..refusal.clone() },
            Outcome { timed_out: true, ..refusal.clone() },
        ] {
            assert!(!wrong.is_refusal("workDir"));
        }
    }
}
