//! A server of the real binary, as the ordinary user, with skills of its own.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use sympozium_testkit::{as_user, copy_program, probe, wait_until, write_program};
use tempfile::TempDir;

use crate::serve_http::{Answer, Client};

/// Enough for the slowest machine; a passing test does not wait for it.
pub const LONG: Duration = Duration::from_secs(180);
/// The tokens of two callers.
pub const TOKENS: [&str; 2] = ["first-token-0123456789", "second-token-0123456789"];

/// A directory that the ordinary user can reach and commands cannot write to.
pub fn directory() -> TempDir {
    let base = if as_user::is_root() { Path::new("/run") } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
    let directory =
        tempfile::Builder::new().prefix("skill-sidecar-").tempdir_in(base).expect("a directory can be made");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("it is ours");
    directory
}

/// The binary, where the ordinary user can start it.
pub fn binary(directory: &Path) -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_skill-sidecar"));
    as_user::readable_copy(binary, directory).expect("it can be copied")
}

/// How a server is started.
pub struct Setup {
    pub directory: TempDir,
    pub arguments: Vec<String>,
    pub variables: Vec<(String, String)>,
}

impl Setup {
    /// Two callers, and the skills `probe`, `true`, `sleep` and `args`; as an ordinary user those of the system.
    pub fn new() -> Self {
        let directory = directory();
        let tokens = directory.path().join("tokens");
        fs::write(&tokens, format!("# callers\n{}\n{}\n", TOKENS[0], TOKENS[1])).expect("it can be written");
        fs::set_permissions(&tokens, Permissions::from_mode(0o400)).expect("it is ours");
        let mut arguments = vec!["--listen".to_owned(), "127.0.0.1:0".to_owned()];
        let skills = if as_user::is_root() {
            chown(&tokens, Some(as_user::ORDINARY), None).expect("we are root");
            let skills = directory.path().join("skills");
            fs::create_dir(&skills).expect("it can be made");
            fs::set_permissions(&skills, Permissions::from_mode(0o755)).expect("it is ours");
            skills
        } else {
            PathBuf::from("/usr/bin")
        };
        arguments.extend(["--skills-dir".to_owned(), text(&skills)]);
        let setup = Self { arguments, variables: vec![("SKILL_TOKEN_FILE".to_owned(), text(&tokens))], directory };
        if as_user::is_root() {
            setup.skill_from("probe", probe::path());
            setup.skill_from("true", Path::new("/bin/true"));
            setup.skill_from("sleep", Path::new("/bin/sleep"));
            setup.script("args", "for word; do echo \"[$word]\"; done; cat");
        }
        setup
    }

    pub fn skills(&self) -> PathBuf {
        self.directory.path().join("skills")
    }

    pub fn tokens(&self) -> PathBuf {
        self.directory.path().join("tokens")
    }

    pub fn skill_from(&self, name: &str, program: &Path) {
        let path = self.skills().join(name);
        copy_program(program, &path).expect("it can be copied");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
    }

    pub fn script(&self, name: &str, lines: &str) {
        script(&self.skills(), name, lines);
    }

    pub fn with(mut self, arguments: &[&str]) -> Self {
        (self.arguments).extend(arguments.iter().map(|&word| word.to_owned()));
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn spawn(&self) -> Child {
        as_user::command(as_user::ORDINARY, binary(self.directory.path()))
            .arg("serve")
            .args(&self.arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts")
    }

    /// Starts a server that must exit by itself; returns its status and its standard error.
    pub fn start_and_fail(&self) -> (ExitStatus, String) {
        let output = self.spawn().wait_with_output().expect("it ends");
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub fn start(self) -> Server {
        let mut child = self.spawn();
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().expect("no panic").push(line);
            }
        });
        let mut server = Server { setup: self, child, log, address: None };
        server.address = Some(server.listening("listening for callers"));
        server
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("it is text").to_owned()
}

/// A shell script as a skill.
pub fn script(skills: &Path, name: &str, lines: &str) {
    let path = skills.join(name);
    write_program(&path, &format!("#!/bin/sh\n{lines}\n")).expect("it can be written");
}

/// A server that runs. Killed when dropped.
pub struct Server {
    pub setup: Setup,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    address: Option<SocketAddr>,
}

impl Server {
    pub fn start() -> Self {
        Setup::new().start()
    }

    pub fn address(&self) -> SocketAddr {
        self.address.expect("it is known once it has started")
    }

    /// The address in the log line with this message.
    pub fn listening(&mut self, message: &str) -> SocketAddr {
        let mut found = None;
        wait_until(LONG, || {
            found = (self.log().iter()).find_map(|line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == message).then(|| line["address"].as_str()?.parse().ok())?
            });
            let ended = self.child.try_wait().expect("it is our child").is_some();
            found.is_some() || ended
        });
        found.unwrap_or_else(|| panic!("it does not listen: {:#?}", self.log()))
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("no panic").clone()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("it is a pid")
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("it is a pid");
        rustix::process::kill_process(pid, signal).expect("it is our child");
    }

    /// Waits until it exits.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let mut status = None;
        wait_until(LONG, || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        status
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// Calls a skill as the first caller.
    pub fn call(&self, skill: &str, body: &str) -> Answer {
        self.call_as(TOKENS[0], skill, body)
    }

    pub fn call_as(&self, token: &str, skill: &str, body: &str) -> Answer {
        let path = format!("/skill/{skill}");
        (self.client()).send("POST", &path, &[("X-Skill-Token", token)], body.as_bytes())
    }

    /// Calls the probe with these arguments, and returns the result.
    pub fn probe(&self, arguments: &[&str]) -> Value {
        let body = serde_json::json!({ "args": arguments }).to_string();
        let answer = self.call("probe", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, TOKENS[0])
    }

    pub fn ask(&self, method: &str, path: &str, token: &str) -> Answer {
        (self.client()).send(method, path, &[("X-Skill-Token", token)], b"")
    }

    /// Waits until a task has finished, and returns its result.
    pub fn finished(&self, id: &str) -> Value {
        let mut result = Value::Null;
        wait_until(LONG, || {
            let answer = self.get(&format!("/task/{id}"));
            assert_eq!(answer.status, 200, "{answer:?}");
            result = answer.json();
            result["status"] != "pending"
        });
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
