//! In a pod: UID 1000, a root that is read-only, no capability. A private root of our own executor stands in for it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use sympozium_exec::layout::{Bind, BindAccess};
use sympozium_exec::{Cancel, Config, Executor, Outcome, Profile, Request, RunError, StageProgram};
use sympozium_testkit::as_user::is_root;
use sympozium_testkit::{copy_program, probe, static_build, wait_until};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(180);
/// Where the image has the program: not among the skills.
const PROGRAM: &str = "/opt/sympozium/bin/skill-sidecar";

/// A sidecar in a root of its own, and the volume that it shares with us.
struct Pod {
    directory: TempDir,
    cancel: Cancel,
    running: Option<JoinHandle<Result<Outcome, RunError>>>,
}

impl Pod {
    fn start(arguments: &[&str]) -> Self {
        let binary = static_build::program("skill-sidecar").expect("a static binary");
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["ipc", "workspace", "bin", "skills"] {
            let path = directory.path().join(name);
            fs::create_dir(&path).expect("a directory");
            fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a mode");
        }
        copy_program(&binary, &directory.path().join("bin/skill-sidecar")).expect("a copy");
        let probe = directory.path().join("skills/probe");
        copy_program(probe::path(), &probe).expect("a copy");
        fs::set_permissions(&probe, PermissionsExt::from_mode(0o755)).expect("a mode");
        let (profile, identity) = if is_root() { (Profile::HostRoot, Some(1000)) } else { (Profile::HostUser, None) };
        let mut config = Config::new(profile);
        config.layout.identity = identity;
        config.stage = StageProgram::At(binary);
        for (name, target, access) in [
            ("ipc", "/ipc", BindAccess::ReadWrite),
            ("workspace", "/workspace", BindAccess::ReadWrite),
            ("bin", "/opt/sympozium/bin", BindAccess::ReadOnly),
            ("skills", "/usr/local/bin", BindAccess::ReadOnly),
        ] {
            config = config.with_bind(Bind { source: directory.path().join(name), target: target.into(), access });
        }
        let executor = Executor::new(config).expect("a private root");
        let mut request = Request::argv([PROGRAM].iter().chain(arguments));
        request.timeout = PATIENCE * 5;
        let cancel = Cancel::new().expect("a descriptor");
        let cancel_command = cancel.clone();
        let running = std::thread::spawn(move || executor.run(&request, Some(&cancel_command)));
        Self { directory, cancel, running: Some(running) }
    }

    fn tools(&self) -> PathBuf {
        self.directory.path().join("ipc/tools")
    }

    /// Writes a request and waits for its result, as plain files.
    fn ask(&self, id: &str, mut request: Value) -> Value {
        request["id"] = id.into();
        assert!(wait_until(PATIENCE, || self.tools().is_dir()), "the sidecar does not start");
        let part = self.tools().join(".part.tmp");
        fs::write(&part, request.to_string()).expect("a request");
        fs::rename(part, self.tools().join(format!("exec-request-{id}.json"))).expect("a request");
        let result = self.tools().join(format!("exec-result-{id}.json"));
        assert!(wait_until(PATIENCE, || result.exists()), "no result");
        serde_json::from_slice(&fs::read(result).expect("a result")).expect("JSON")
    }

    /// Waits until the sidecar exits.
    fn end(mut self) -> Outcome {
        let running = self.running.take().expect("it runs");
        running.join().expect("no panic").expect("an outcome")
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(running) = self.running.take() {
            let ended = running.join();
            if std::thread::panicking() {
                eprintln!("the sidecar: {ended:?}");
            }
        }
    }
}

#[test]
fn requests_are_executed_with_a_read_only_root_and_no_capability() {
    let pod = Pod::start(&["ipc", "--pack", "demo"]);
    let line = "id -u; pwd; grep CapEff /proc/self/status; touch /x /usr/x /opt/x /ipc/x; ls /ipc; touch made";
    let result = pod.ask("1", json!({"command": line}));
    let lines: Vec<_> = result["stdout"].as_str().unwrap_or_default().lines().collect();
    assert_eq!(lines, ["1000", "/workspace", "CapEff:\t0000000000000000"], "{result}");
    assert!(pod.directory.path().join("workspace/made").exists(), "{result}");
    assert!(!pod.directory.path().join("ipc/x").exists(), "{result}");
    assert_eq!(result["_meta"]["isolation"]["guarantees"]["filesystem"], "enforced");
    fs::write(pod.directory.path().join("ipc/done"), "done").expect("the end");
    let outcome = pod.end();
    assert_eq!(outcome.termination.exit_code(), 0, "{}", outcome.stderr.text());
}
