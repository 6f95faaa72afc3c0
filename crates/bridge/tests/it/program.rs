//! The program from its start until it would serve: what it takes, what it gives up, and how it refuses.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sympozium_api::names::Digest;
use sympozium_harness::plan::stored_plan;
use sympozium_harness::{TIMEOUT, make_directories, write_inputs};
use sympozium_testkit::{as_user, command, wait_until};

use crate::check_network::PROGRAM;

/// Names the program in a test that runs again as another user.
const ELSEWHERE: &str = "SYMPOZIUM_TEST_BRIDGE";
const STARTED: &str = "the run's inputs were read";
const KEY: &str = "sk-61f0c9aa7e";
const OTHER_KEY: &str = "sk-0b7d44e1f2";

fn program() -> PathBuf {
    std::env::var_os(ELSEWHERE).map_or_else(|| PROGRAM.into(), PathBuf::from)
}

/// The directories of a run, with everything that the stored plan asks for.
struct Run {
    directory: tempfile::TempDir,
    digest: Digest,
}

impl Run {
    fn new() -> Self {
        let (plan, directory) = (stored_plan(), tempfile::tempdir().expect("a directory"));
        make_directories(directory.path(), &plan);
        let run = Self { digest: write_inputs(directory.path(), &plan), directory };
        run.remove("input/token");
        run
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.at(name), content).expect("a file");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.at(name)).expect("a file");
    }

    /// Starts with these variables, and more arguments than those that every start needs.
    fn start(&self, variables: &[(&str, &str)], more: &[&str]) -> Bridge<'_> {
        let log = fs::File::create(self.at("log")).expect("a log");
        let directory = |name: &str| format!("--{name}={}", self.at(name).display());
        let child = command(program())
            .arg(format!("--plan-digest={}", self.digest))
            .args(["input", "door", "ipc", "headers", "script"].map(directory))
            .args(more)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .expect("it starts");
        Bridge { child, run: self }
    }

    /// At a socket, as on one machine.
    fn start_here(&self, variables: &[(&str, &str)], more: &[&str]) -> Bridge<'_> {
        let gateway = format!("--gateway=unix:{}", self.at("gateway").display());
        let more = more.iter().copied();
        let more: Vec<&str> = more.chain([gateway.as_str()]).collect();
        self.start(variables, &more)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("log")).expect("a log")
    }
}

struct Bridge<'r> {
    child: Child,
    run: &'r Run,
}

impl Bridge<'_> {
    fn wait_for_log(&self, words: &str) {
        let there = wait_until(TIMEOUT, || self.run.log().contains(words));
        assert!(there, "no {words:?} in {}", self.run.log());
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join(name)
    }

    /// Whether a text is somewhere in memory that the process can write. For root, because the process is locked.
    fn holds(&self, text: &str) -> bool {
        let maps = fs::read_to_string(self.proc("maps")).expect("maps");
        let memory = fs::File::open(self.proc("mem")).expect("memory");
        let mut writable = maps.lines().filter(|line| line.contains(" rw"));
        writable.any(|line| {
            let range = line.split(' ').next().and_then(|it| it.split_once('-'));
            let (start, end) = range.expect("a range");
            let address = |text| u64::from_str_radix(text, 16).expect("an address");
            let (start, end) = (address(start), address(end));
            let mut content = vec![0; usize::try_from(end - start).expect("a size")];
            // What has been unmapped since holds nothing.
            if memory.read_exact_at(&mut content, start).is_err() {
                return false;
            }
            let mut places = content.windows(text.len());
            places.any(|place| place == text.as_bytes())
        })
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it lives");
    }

    /// The exit code of a program that ends by itself, and its log.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("an end");
        (status.code(), self.run.log())
    }

    /// Asserts that it did not start, and printed this error and this hint last.
    #[track_caller]
    fn assert_refuses(self, error: &str, hint: &str) {
        let (code, log) = self.end();
        assert_eq!(code, Some(1), "{log}");
        let lines: Vec<&str> = log.lines().rev().take(2).collect();
        let (last_but_one, last) = (lines[1], lines[0]);
        assert!(last_but_one.starts_with("error: ") && last_but_one.contains(error), "{log}");
        assert!(last.starts_with("hint: ") && last.contains(hint), "{log}");
    }
}

impl Drop for Bridge<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn takes_and_gives_up() {
    let run = Run::new();
    let variables = [("API_KEY", OTHER_KEY), ("ANTHROPIC_API_KEY", KEY), ("ANTHROPIC_API_KEY_2", "stays")];
    let bridge = run.start_here(&variables, &[]);
    bridge.wait_for_log(STARTED);
    let log = run.log();
    assert!(log.contains("\"key\":\"ANTHROPIC_API_KEY\""), "{log}");
    assert!(log.contains("locked down"), "{log}");
    for secret in [KEY, OTHER_KEY] {
        assert!(!log.contains(secret), "{log}");
    }
    // Non-dumpable: closed to its own user, and root finds nothing.
    match fs::read(bridge.proc("environ")) {
        Ok(environ) if as_user::is_root() => {
            let text = String::from_utf8(environ).expect("text");
            assert!(text.contains("ANTHROPIC_API_KEY_2=stays\0"), "{text}");
            assert!(!text.contains(KEY) && !text.contains(OTHER_KEY), "{text}");
            // What is not in use is nowhere; that the other is found shows that the search works.
            assert!(bridge.holds(KEY) && !bridge.holds(OTHER_KEY));
        }
        other => {
            let error = other.expect_err("it is closed");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        }
    }
    let status = fs::read_to_string(bridge.proc("status")).expect("a status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "no {line:?} in {status}");
    }
}

#[test]
fn keys_are_taken_and_the_process_is_locked() {
    takes_and_gives_up();
}

#[test]
fn keys_are_taken_and_the_process_is_locked_for_an_ordinary_user() {
    as_user::run_with(&[(ELSEWHERE, Path::new(PROGRAM))], takes_and_gives_up);
}

#[test]
fn the_first_key_that_is_not_empty_is_used() {
    for (variables, used) in [
        (&[("ANTHROPIC_API_KEY", ""), ("API_KEY", KEY)][..], "\"key\":\"API_KEY\""),
        (&[("API_KEY", KEY)], "\"key\":\"API_KEY\""),
        (&[("ANTHROPIC_API_KEY", "\n")], "\"credentials\":2"),
        (&[], "\"credentials\":2"),
    ] {
        let run = Run::new();
        run.start_here(variables, &[]).wait_for_log(STARTED);
        let log = run.log();
        let started = log.lines().find(|line| line.contains(STARTED));
        let started = started.unwrap_or_default();
        assert!(started.contains(used), "{log}");
        assert_eq!(started.contains("\"key\""), used.contains("key"), "{log}");
        let warned = log.contains("none of the variables for the model's key is set");
        assert_ne!(warned, used.contains("key"), "{log}");
    }
}

#[test]
fn a_key_that_is_none_is_refused_and_not_shown() {
    let run = Run::new();
    let bridge = run.start_here(&[("ANTHROPIC_API_KEY", "sk-61f0\nX-Other: 1")], &[]);
    bridge.assert_refuses(
        "the key in ANTHROPIC_API_KEY has a space, a control character",
        "the Secret that the model names",
    );
    assert!(!run.log().contains("sk-61f0"), "{}", run.log());
}

#[test]
fn over_tcp_there_must_be_a_token() {
    let run = Run::new();
    let gateway = ["--gateway=127.0.0.1:8443"];
    run.start(&[], &gateway).assert_refuses("input/token is missing", "kubectl describe pod");
    run.put("input/token", "eyJ.a.b");
    run.start(&[], &gateway).wait_for_log(STARTED);
}

#[test]
fn another_plan_is_refused() {
    let run = Run::new();
    let plan = fs::read(run.at("input/plan.json")).expect("a plan");
    run.put("input/plan.json", [&plan[..], b"\n"].concat());
    run.start_here(&[], &[]).assert_refuses("the plan has digest sha256:", "the plan was replaced");
}

/// By a rename, as kubelet and CLI do it.
#[test]
fn a_plan_that_comes_later_is_waited_for() {
    let run = Run::new();
    fs::rename(run.at("input/plan.json"), run.at("input/..new")).expect("renamed");
    let bridge = run.start_here(&[("API_KEY", KEY)], &[]);
    bridge.wait_for_log("waiting for the run's plan");
    fs::rename(run.at("input/..new"), run.at("input/plan.json")).expect("renamed");
    bridge.wait_for_log(STARTED);
    assert!(run.log().contains("\"key\":\"API_KEY\""), "{}", run.log());
}

#[test]
fn a_plan_that_never_comes_is_not_waited_for_longer_than_asked() {
    let run = Run::new();
    run.remove("input/plan.json");
    run.start_here(&[], &["--wait-for-input=0"]).assert_refuses("no plan came in 0 s", "name directories of the run");
}

#[test]
fn a_signal_ends_a_bridge_that_waits() {
    let run = Run::new();
    run.remove("input/plan.json");
    let bridge = run.start_here(&[], &["--wait-for-input=604800"]);
    bridge.wait_for_log("waiting for the run's plan");
    bridge.signal(Signal::TERM);
    bridge.assert_refuses("asked to end before there was a run", "no run has claimed");
}

#[test]
fn a_missing_credential_is_refused() {
    let run = Run::new();
    run.remove("input/credential-web");
    run.start_here(&[], &[]).assert_refuses("input/credential-web is missing", "name directories of the run");
}

#[test]
fn help_teaches() {
    let output = command(PROGRAM).arg("--help").output().expect("it starts");
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    let help = String::from_utf8(output.stdout).expect("text");
    for words in
        ["check-network", "--plan-digest", "INPUT/credential-NAME", "Examples:", "Exit codes:", "SYMPOZIUM_GATEWAY"]
    {
        assert!(help.contains(words), "no {words:?} in {help}");
    }
    let output = command(PROGRAM).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
}
