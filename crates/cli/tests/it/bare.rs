//! `sympozium run` where user namespaces are blocked: what is still isolated, and what is refused.
//!
//! The program runs as an ordinary user in a user namespace whose own limit of user namespaces is zero.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sympozium_testkit::probe::{self, Findings};
use sympozium_testkit::{as_user, command, copy_program, skip, wait_until};

use crate::{stderr, stdout};

/// The user in that namespace.
const USER: u32 = 61_235;
/// The IDs of that namespace, each mapped to itself.
const IDS: &str = "0 0 65536";
/// The timeout of waits, for a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The hint of `sympozium doctor` if the limit is zero.
const REMEDY: &str = "sudo sysctl -w user.max_user_namespaces=15000";
/// With IDs mapped, an executed program has root's capabilities in the namespace: it sets the limit, then drops them.
const ENTER: &str = r#"read -r go && exec sh -c 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --reuid="$0" --regid="$0" --clear-groups "$@"' "$0" "$@""#;

/// A machine on which user namespaces are blocked, from the program's point of view.
struct Blocked {
    directory: tempfile::TempDir,
}

impl Blocked {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let this = Self { directory };
        for (name, owner) in [("home", USER), ("bin", 0)] {
            fs::create_dir(this.at(name)).unwrap();
            chown(this.at(name), Some(owner), Some(owner)).unwrap();
            fs::set_permissions(this.at(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        fs::write(this.at("home/secret"), "of the user").unwrap();
        // Otherwise its mode and times would be protected independently of the sandbox.
        chown(this.at("home/secret"), Some(USER), Some(USER)).unwrap();
        for (name, from) in [("sympozium", Path::new(env!("CARGO_BIN_EXE_sympozium"))), ("probe", probe::path())] {
            let to = this.at("bin").join(name);
            copy_program(from, &to).unwrap();
            fs::set_permissions(to, PermissionsExt::from_mode(0o755)).unwrap();
        }
        this
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.at("home/state")
    }

    /// Runs the program in the namespace to its end.
    fn sympozium(&self, arguments: &[&str]) -> Output {
        self.start(arguments).wait_with_output().unwrap()
    }

    /// The program in the namespace.
    fn start(&self, arguments: &[&str]) -> Child {
        let bin = self.at("bin");
        let mut program = command("unshare");
        program
            .args(["--user", "sh", "-c", ENTER])
            .arg(USER.to_string())
            .arg(bin.join("sympozium"))
            .args(arguments)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("HOME", self.at("home"))
            .env("SYMPOZIUM_STATE", self.state())
            .current_dir(self.at("home"));
        entered(program)
    }

    /// Runs a manifest.
    fn run(&self, manifest: &str, more: &[&str]) -> Output {
        let run = self.start_run(manifest, more);
        run.wait_with_output().unwrap()
    }

    fn start_run(&self, manifest: &str, more: &[&str]) -> Child {
        let file = self.at("run.yaml");
        fs::write(&file, manifest).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let arguments = ["run", &file, "--approve", "none", "-o", "jsonl"];
        self.start(&[&arguments[..], more].concat())
    }

    /// The directory of the only run.
    fn record(&self) -> PathBuf {
        let runs = fs::read_dir(self.state().join("runs")).unwrap();
        let mut runs: Vec<PathBuf> = runs.map(|it| it.unwrap().path()).collect();
        assert_eq!(runs.len(), 1);
        runs.remove(0)
    }

    /// The processes with a path of this machine on their command line.
    fn processes(&self) -> Vec<String> {
        let name = self.directory.path().to_str().unwrap();
        let all = fs::read_dir("/proc").unwrap();
        let lines = all.filter_map(|it| fs::read(it.ok()?.path().join("cmdline")).ok());
        let lines = lines.map(|it| String::from_utf8_lossy(&it).replace('\0', " "));
        lines.filter(|it| it.contains(name)).collect()
    }
}

/// Starts a program in a user namespace of its own, and gives it IDs.
fn entered(mut program: Command) -> Child {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let of_process = |file: &str| format!("/proc/{}/{file}", child.id());
    let ours = fs::read_link("/proc/self/ns/user").unwrap();
    let is_inside = || fs::read_link(of_process("ns/user")).is_ok_and(|it| it != ours);
    assert!(wait_until(TIMEOUT, is_inside));
    for file in ["uid_map", "gid_map"] {
        fs::write(of_process(file), IDS).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    child
}

fn events(output: &Output) -> Vec<Value> {
    let lines = stdout(output).lines();
    lines.map(|it| serde_json::from_str(it).unwrap()).collect()
}

fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|it| it["event"] == kind).collect()
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    let events = events(output);
    let ended = of(&events, "ended")[0];
    assert_eq!(ended["outcome"]["is"], "refused", "{ended}");
    assert_eq!(ended["leftovers"], serde_json::json!([]));
    assert_eq!(of(&events, "isolated").len(), 0);
    ended["outcome"]["why"].as_str().unwrap().to_owned()
}

/// Two packs, an agent and a run that has `command` run by the first.
fn manifest(command: &str, sidecar: &str, skill: &str) -> String {
    let command = serde_json::to_string(command).unwrap();
    format!(
        r##"
apiVersion: v1
kind: ConfigMap
metadata: {{name: script}}
data:
  script.yaml: |
    turns:
      - say: I look.
        call:
          - tool: execute_command
            arguments: {{command: {command}, target: shell, timeout: 120}}
          - tool: write_file
            arguments: {{path: /workspace/by-agent, content: written}}
      - say: Done.
        then: end
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {{name: shell}}
spec:
  skills:
    - name: look
      description: Look
      requires: {{bins: [probe, cat, setsid, sleep]}}
      content: "# Look"
{skill}
  sidecar:
    image: example.com/shell:1
    executor: injected
    mountWorkspace: true
{sidecar}
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {{name: other}}
spec:
  skills: [{{name: other, description: Other, content: "# Other"}}]
  sidecar: {{image: "example.com/other:1", executor: injected}}
---
apiVersion: sympozium.ai/v1alpha1
kind: SympoziumPolicy
metadata: {{name: strict}}
spec:
  sandboxPolicy: {{minimumIsolation: [filesystem, network, processes, syscalls, memory, pids]}}
---
apiVersion: sympozium.ai/v1alpha1
kind: SympoziumPolicy
metadata: {{name: held}}
spec:
  sandboxPolicy: {{minimumIsolation: [filesystem, network, processes, syscalls]}}
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {{name: a}}
spec:
  skills: [{{skillPackRef: shell}}, {{skillPackRef: other}}]
  agents: {{default: {{model: script}}}}
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {{name: r}}
spec:
  agentRef: a
  model: {{provider: scripted, model: script}}
  task: Look around
"##
    )
}

#[test]
fn a_run_is_isolated_without_namespaces() {
    if !as_user::is_root() {
        skip!("a user namespace with several IDs needs root");
    }
    let machine = Blocked::new();
    let home = machine.at("home");
    let at = |name: &str| home.join(name).display().to_string();
    let refused = [
        // No sockets of any kind.
        "tcp-socket".to_owned(),
        "udp-socket".to_owned(),
        "ipv6-socket".to_owned(),
        "netlink-socket".to_owned(),
        "vsock-socket".to_owned(),
        "unix-socket".to_owned(),
        "unix-socket-pair".to_owned(),
        // Only its own files.
        format!("read-file={}", at("secret")),
        format!("list-directory={}", at("")),
        format!("list-directory={}", at("state")),
        format!("list-directory={}", at("state/runs")),
        "list-directory=..".to_owned(),
        "read-file=../run.json".to_owned(),
        "read-file=../plan.json".to_owned(),
        "list-directory=../live/ipc/other".to_owned(),
        "list-directory=../live/ipc/shell/tools".to_owned(),
        "list-directory=../live/gateway".to_owned(),
        "read-file=../live/volume-bridge-input/token".to_owned(),
        "list-directory=../live/tmp-skill-other".to_owned(),
        "list-directory=/tmp".to_owned(),
        "list-directory=/etc".to_owned(),
        "read-file=/etc/passwd".to_owned(),
        "read-file=/proc/self/environ".to_owned(),
        "see-processes".to_owned(),
        // No terminals of users.
        "read-file=/dev/ptmx".to_owned(),
        "list-directory=/dev/pts".to_owned(),
        // No other processes.
        "signal".to_owned(),
        "signal-by-pidfd".to_owned(),
        "signal-group".to_owned(),
        "proc-environ".to_owned(),
        "proc-mem".to_owned(),
        "ptrace".to_owned(),
        "unshare-user".to_owned(),
        // No objects that outlive it, and no metadata of files that it may not open.
        "make-shared-memory".to_owned(),
        "make-semaphores".to_owned(),
        "make-queue".to_owned(),
        "make-posix-queue".to_owned(),
        "use-ipc-object".to_owned(),
        format!("change-times={}", at("secret")),
        format!("change-times-by-high-pointer={}", at("secret")),
    ];
    let possible = ["list-directory=.", "list-directory=/usr/bin"];
    let attempts = refused.iter().map(String::as_str).chain(possible);
    let attempts: Vec<&str> = attempts.collect();
    let secret = home.join("secret");
    let before = fs::metadata(&secret).unwrap();
    // With `exec`, so that its parent is the supervisor and not the shell.
    let look = format!(
        "/usr/bin/chmod 666 {0}; /usr/bin/touch -c -d 2001-01-01 {0}; /usr/bin/touch ./touched; echo $HOME > $TMPDIR/x && cat $TMPDIR/x > home && exec probe attempt {1} > found 2>&1",
        secret.display(),
        attempts.join(" ")
    );
    let output = machine.run(&manifest(&look, "", ""), &[]);
    assert_eq!(output.status.code(), Some(0), "{} {}", stdout(&output), stderr(&output));
    let events = events(&output);
    let directory = machine.record();
    let found = fs::read(directory.join("workspace/found"));
    let found = found.unwrap_or_else(|_| panic!("{}", stdout(&output)));
    let found = Findings::parse(&found);
    found.assert_refused(refused.iter().map(String::as_str));
    found.assert_possible(possible);
    // Files that it may not open are not changed by path either, which Landlock does not check.
    let after = fs::metadata(&secret).unwrap();
    assert_eq!(after.permissions(), before.permissions());
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    assert!(directory.join("workspace/touched").exists());
    let by_agent = fs::read_to_string(directory.join("workspace/by-agent"));
    assert_eq!(by_agent.unwrap(), "written");
    let its_home = fs::read_to_string(directory.join("workspace/home")).unwrap();
    assert!(its_home.trim().ends_with("/live/tmp-skill-shell/home"), "{its_home}");

    // The warning has a hint, and the isolation of each part is recorded.
    let warnings = of(&events, "warning");
    let warnings: Vec<&str> = (warnings.iter()).map(|it| it["text"].as_str().unwrap()).collect();
    let warning = warnings.iter().find(|it| it.contains("namespaces"));
    let warning = warning.unwrap_or_else(|| panic!("{warnings:?}"));
    for part in [
        "user namespaces are blocked on this machine",
        "memory, pids, cpu, kernel",
        "commands cannot use sockets",
        REMEDY,
    ] {
        assert!(warning.contains(part), "{part:?} in {warning}");
    }
    let isolated = of(&events, "isolated");
    assert_eq!(isolated.len(), 4);
    for it in isolated {
        let report = &it["report"];
        assert_eq!(report["profile"], "container");
        for (guarantee, state) in [
            ("filesystem", "enforced"),
            ("network", "enforced"),
            ("processes", "enforced"),
            ("syscalls", "enforced"),
            ("memory", "not-held"),
            ("pids", "not-held"),
            ("cpu", "not-held"),
            ("kernel", "not-held"),
        ] {
            assert_eq!(report["guarantees"][guarantee]["state"], state, "{it}");
        }
    }
    let record = fs::read(directory.join("run.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["isolation"]["skill-shell"]["profile"], "container");
    let show = machine.sympozium(&["show", "r"]);
    assert!(stdout(&show).contains("skill-shell (container): "), "{}", stdout(&show));

    // Nothing is left.
    assert_eq!(of(&events, "ended")[0]["leftovers"], serde_json::json!([]));
    assert!(!directory.join("live").exists() && !directory.join("control.sock").exists());
    assert_eq!(machine.processes(), Vec::<String>::new());
}

#[test]
fn a_floor_that_needs_no_namespaces_is_met() {
    if !as_user::is_root() {
        skip!("a user namespace with several IDs needs root");
    }
    let machine = Blocked::new();
    let output = machine.run(&manifest("echo hello > said", "", ""), &["--policy", "held"]);
    assert_eq!(output.status.code(), Some(0), "{} {}", stdout(&output), stderr(&output));
    let said = fs::read_to_string(machine.record().join("workspace/said"));
    assert_eq!(said.unwrap(), "hello\n");
}

#[test]
fn runs_that_need_namespaces_are_refused_with_a_hint() {
    if !as_user::is_root() {
        skip!("a user namespace with several IDs needs root");
    }
    let egress = "    egress: [{host: tickets.example.com}]";
    let files = "      files: [{path: look.sh, content: \"#!/bin/sh\", executable: true}]";
    for (sidecar, skill, more, reason) in [
        ("", "", &["--policy", "strict"][..], "its isolation floor requires memory, pids\n"),
        (egress, "", &[], "pack shell has egress, which needs a network namespace\n"),
        ("", files, &[], "pack shell needs files at the fixed paths /skills/shell\n"),
    ] {
        let machine = Blocked::new();
        let why = refusal(&machine.run(&manifest("true", sidecar, skill), more));
        assert!(why.starts_with("user namespaces are blocked on this machine ("), "{why}");
        assert!(why.contains(&format!("the run needs them: {reason}")), "{why}");
        assert!(why.contains(&format!("hint: {REMEDY}")), "{why}");
        assert_eq!(machine.processes(), Vec::<String>::new());
    }
}

/// Without a pid namespace, the end of one process does not end the others: orphans of a killed sandbox are killed too.
#[test]
fn a_run_that_is_cancelled_at_once_leaves_nothing() {
    if !as_user::is_root() {
        skip!("a user namespace with several IDs needs root");
    }
    let machine = Blocked::new();
    // Its name is on the command line of the orphans.
    let name = machine.directory.path().display();
    let stay = format!("(setsid sh -c 'trap \"\" TERM; echo > started; sleep 600; :' {name} &); sleep 600");
    let run = machine.start_run(&manifest(&stay, "", ""), &[]);
    let has_started = || {
        let runs = fs::read_dir(machine.state().join("runs"));
        let mut runs = runs.into_iter().flatten().flatten();
        runs.any(|it| it.path().join("workspace/started").exists())
    };
    assert!(wait_until(TIMEOUT, has_started));
    let pid = Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
    // Repeated until the run has ended, because two simultaneous signals count as one.
    let is_over = || {
        kill_process(pid, Signal::INT).unwrap();
        let record = fs::read_to_string(machine.record().join("run.json")).unwrap();
        record.contains("\"endedMs\"")
    };
    assert!(wait_until(TIMEOUT, is_over));
    let output = run.wait_with_output().unwrap();
    assert_eq!(machine.processes(), Vec::<String>::new());
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    // A further signal may truncate the output, but not the record.
    let record = fs::read(machine.record().join("run.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["outcome"]["is"], "cancelled");
    assert_eq!(record["leftovers"], serde_json::json!([]));
    assert!(!machine.record().join("live").exists());
}
