//! The bridge together with what runs commands in a skill: our `skill-sidecar`, and the script for images that are built the
//! documented way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use sympozium_api::RunPlan;
use sympozium_api::guarantee::Guarantee;
use sympozium_harness::{POLL_INTERVAL, RunHarness};
use sympozium_ipc::door::{RefusalCode, ToolAnswer};
use sympozium_ipc::receipt::{Event, Outcome, ReportedIsolation};
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::ipc_cases::has_program;
use sympozium_testkit::static_build::{self, workspace_root};
use sympozium_testkit::{as_user, command, processes, skip};
use tempfile::TempDir;
use tokio::time::sleep;

use super::{PROGRAM, open_plan};

/// A key that no other test has, because commands here look for it in every process, and a bridge that another test is
/// just starting has not taken its own out of the environment yet.
fn new_key() -> String {
    format!("sk-test-{}", processes::new_marker())
}

/// A directory where commands of a skill may not write: an executor hides the volume from them.
fn directory() -> TempDir {
    let base = if as_user::is_root() { PathBuf::from("/run") } else { static_build::target_directory() };
    tempfile::tempdir_in(base).expect("a directory")
}

fn start_with_key(plan: RunPlan, key: &str) -> RunHarness {
    RunHarness::setup_in(directory(), plan).env("OPENAI_API_KEY", key).start(PROGRAM)
}

/// An executor on the volume of `cluster`.
struct Sidecar(Child);

impl Sidecar {
    fn start(run: &RunHarness, mut program: Command) -> Self {
        let log = fs::File::create(run.at("sidecar-log")).expect("a log");
        let child = program
            .env("SYMPOZIUM_SKILL_PACK", "cluster")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        Self(child)
    }

    /// Waits until it has left by itself.
    async fn left(&mut self) -> Option<i32> {
        loop {
            match self.0.try_wait().expect("a child") {
                Some(status) => return status.code(),
                None => sleep(POLL_INTERVAL).await,
            }
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program(run: &RunHarness, binary: &Path) -> Command {
    let mut program = command(binary);
    program
        .args(["ipc", "--ipc-dir"])
        .arg(run.volume("cluster"))
        .arg("--workspace")
        .arg(run.at("workspace"))
        .arg("--authenticated");
    program
}

fn script(run: &RunHarness) -> Command {
    let mut program = command("bash");
    program
        .arg(workspace_root().join("images/tool-executor.sh"))
        .env("SYMPOZIUM_IPC_DIR", run.volume("cluster"))
        .env("SYMPOZIUM_WORKSPACE", run.at("workspace"));
    program
}

/// What every executor does, in answers and in receipts.
async fn commands_run(
    run: &mut RunHarness,
    key: &str,
    mut sidecar: Sidecar,
) -> Vec<(Outcome, u64, bool, Option<ReportedIsolation>)> {
    let agent = run.agent().await;
    let answer = agent.execute("cluster", "echo out; echo err >&2; exit 7").await;
    let expected = ToolAnswer::Command {
        exit_code: 7,
        stdout: "out\n".to_owned(),
        stderr: "err\n".to_owned(),
        timed_out: false,
        truncated: false,
    };
    let log = || fs::read_to_string(run.at("sidecar-log")).unwrap_or_default();
    assert_eq!(answer, Ok(expected), "{}\n{}", run.log(), log());
    // Exactly as much as is kept, and a byte more.
    for (bytes, cut) in [(51_200, false), (51_201, true)] {
        let line = format!("head -c {bytes} /dev/zero | tr '\\0' a");
        match agent.execute("cluster", &line).await {
            Ok(ToolAnswer::Command { exit_code: 0, stdout, truncated, .. }) => {
                assert_eq!(stdout.len(), 51_200);
                assert!(truncated == cut || !truncated, "{bytes}");
            }
            other => panic!("{other:?}"),
        }
    }
    let marker = processes::new_marker();
    let line = format!("sh -c 'sleep 60; true' {marker} & sh -c 'sleep 60; true' {marker}");
    let arguments = json!({ "target": "cluster", "command": line, "timeout": 1 });
    match agent.call("execute_command", arguments).await {
        Ok(ToolAnswer::Command { timed_out: true, .. }) => {}
        other => panic!("{other:?}: {}", log()),
    }
    // The key and the gateway's credentials are not where commands run.
    match agent.execute("cluster", "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'").await {
        Ok(ToolAnswer::Command { stdout, stderr, .. }) => {
            assert!(!stdout.contains(key) && !stderr.contains(key))
        }
        other => panic!("{other:?}"),
    }
    let bad = json!({ "target": "cluster", "command": "true", "workdir": "/no/such/directory" });
    match agent.call("execute_command", bad).await {
        Ok(ToolAnswer::Command { exit_code, .. }) => assert_ne!(exit_code, 0),
        Err(refused) => assert_eq!(refused.code, RefusalCode::Unknown),
        other => panic!("{other:?}"),
    }
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert_eq!(sidecar.left().await, Some(0), "the end of the run ends it");
    assert_eq!(processes::with_marker(&marker), [0; 0], "nothing is left of what ran too long");
    let tools = run.volume("cluster").join("tools");
    let left: Vec<_> = fs::read_dir(tools).expect("tools").flatten().map(|it| it.file_name()).collect();
    assert_eq!(left, Vec::<std::ffi::OsString>::new());
    (run.events().into_iter())
        .filter_map(|event| match event {
            Event::Acted { outcome, output, isolation, .. } => {
                Some((outcome, output.bytes, output.truncated, isolation))
            }
            _ => None,
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn our_sidecar_runs_what_the_agent_calls() {
    // Before the run: it may have to be built, and an agent is not waited for that long.
    let binary = static_build::program("skill-sidecar").expect("a sidecar");
    let key = new_key();
    let mut run = start_with_key(open_plan(), &key);
    let sidecar = Sidecar::start(&run, program(&run, &binary));
    let acted = commands_run(&mut run, &key, sidecar).await;
    let outcomes: Vec<_> = acted.iter().map(|(outcome, bytes, cut, _)| (outcome.clone(), *bytes, *cut)).collect();
    assert_eq!(outcomes[0], (Outcome::Exited { code: 7 }, 8, false));
    assert_eq!(outcomes[1], (Outcome::Exited { code: 0 }, 51_200, false));
    assert_eq!(outcomes[2], (Outcome::Exited { code: 0 }, 51_200, true));
    assert_eq!(outcomes[3].0, Outcome::TimedOut);
    assert!(matches!(outcomes[5].0, Outcome::Failed { .. } | Outcome::Exited { code: 1.. }), "{:?}", outcomes[5]);
    // Every receipt of a command that ran says what was live around it.
    for (outcome, _, _, isolation) in &acted[..5] {
        let isolation = isolation.as_ref().unwrap_or_else(|| panic!("{outcome:?} does not say"));
        assert!(!isolation.profile.is_empty(), "{isolation:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_runs_what_the_agent_calls() {
    for name in ["bash", "jq"] {
        if !has_program(name) {
            skip!("no {name}");
        }
    }
    let key = new_key();
    let mut run = start_with_key(open_plan(), &key);
    let sidecar = Sidecar::start(&run, script(&run));
    let acted = commands_run(&mut run, &key, sidecar).await;
    let outcomes: Vec<_> = acted.iter().map(|(outcome, bytes, _, _)| (outcome.clone(), *bytes)).collect();
    assert_eq!(outcomes[0], (Outcome::Exited { code: 7 }, 8));
    assert_eq!(outcomes[1], (Outcome::Exited { code: 0 }, 51_200));
    assert_eq!(outcomes[2], (Outcome::Exited { code: 0 }, 51_200));
    assert_eq!(outcomes[3].0, Outcome::TimedOut);
    // There is no attestation of the isolation of its commands.
    assert!(acted.iter().all(|(.., isolation)| isolation.is_none()));
}

/// An executor that was restarted has lost its key, however it was killed: the run ends with that, and its command is not run again.
#[tokio::test(flavor = "multi_thread")]
async fn our_sidecar_that_is_restarted_ends_the_run() {
    let binary = static_build::program("skill-sidecar").expect("a sidecar");
    let mut run = start_with_key(open_plan(), &new_key());
    let mut sidecar = Sidecar::start(&run, program(&run, &binary));
    let agent = run.agent().await;
    let workspace = run.at("workspace");
    let line = format!("echo begun >> {}/log; sleep 60", workspace.display());
    let restart = async {
        // Not only until the file is there: the shell writes its line after it has made the file.
        while fs::read_to_string(workspace.join("log")).unwrap_or_default().is_empty() {
            sleep(POLL_INTERVAL).await;
        }
        sidecar.0.kill().expect("it runs");
        sidecar.0.wait().expect("it ends");
        Sidecar::start(&run, program(&run, &binary))
    };
    let (answer, mut restarted) = tokio::join!(agent.execute("cluster", &line), restart);
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    match run.ending() {
        AgentEnd::Failed { error } => assert!(error.contains("was started again"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(restarted.left().await, Some(0), "it is told that the run is over");
    let log = fs::read_to_string(workspace.join("log")).expect("a log");
    assert_eq!(log, "begun\n", "nothing was run twice");
}

/// Both ends with what a backend tells them: requests are signed, and results are held against the plan's floor. An executor that
/// was told a lower floor than the plan's runs its command, and the run ends with that.
#[tokio::test(flavor = "multi_thread")]
async fn our_injected_sidecar_is_held_to_the_plans_floor() {
    use Guarantee::{Filesystem, Memory, Processes, Syscalls};
    let binary = static_build::program("skill-sidecar").expect("a sidecar");
    for (floor, minimum, lacking) in [
        (vec![Filesystem, Processes, Syscalls], "filesystem,processes,syscalls", None),
        (vec![Filesystem, Memory], "filesystem", Some("memory is delegated to a platform that does not hold it")),
    ] {
        let mut plan = open_plan();
        plan.isolation.floor = floor;
        let mut run = start_with_key(plan, &new_key());
        let mut injected = program(&run, &binary);
        injected
            .args(["--injected", "--pack=cluster", "--profile=auto"])
            .arg(format!("--minimum-isolation={minimum}"))
            .arg("--platform-holds=none")
            // The image's, which counts for nothing.
            .env("SYMPOZIUM_MINIMUM_ISOLATION", "none")
            .env("SYMPOZIUM_PROFILE", "gvisor");
        // The agent first: below the floor the executor's start ends the run, and the door is gone.
        let agent = run.agent().await;
        let mut sidecar = Sidecar::start(&run, injected);
        let ran = run.at("workspace").join("ran");
        let line = format!("touch {}; echo served", ran.display());
        let answer = agent.execute("cluster", &line).await;
        let log = fs::read_to_string(run.at("sidecar-log")).unwrap_or_default();
        let served = matches!(&answer, Ok(ToolAnswer::Command { stdout, .. }) if stdout == "served\n");
        assert_eq!(served, lacking.is_none(), "{answer:?}: {log}");
        // Its start is compared: below the floor not one command runs.
        assert_eq!(ran.exists(), served);
        if served {
            agent.finish("done").await;
        }
        drop(agent);
        assert_eq!(run.wait_exit().await, 0, "{}", run.log());
        match (run.ending(), lacking) {
            (AgentEnd::Answered { text }, None) => assert_eq!(text, "done"),
            (AgentEnd::Failed { error }, Some(lacking)) => {
                assert!(error.ends_with(lacking), "{error}");
            }
            (other, _) => panic!("{other:?}: {log}"),
        }
        assert_eq!(sidecar.left().await, Some(0), "{log}");
    }
}
