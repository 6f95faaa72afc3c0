//! `skill-sidecar ipc --injected`: started in an image that it confines, whose `ENV` must have no effect.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::CommandFactory as _;
use serde_json::{Value, json};
use sympozium_exec::features::is_gvisor;
use sympozium_sidecar::arguments::Arguments;
use sympozium_testkit::ipc_cases::volume::PATIENCE;
use sympozium_testkit::ipc_cases::{Settings, Volume};
use sympozium_testkit::{skip, wait_until};

const PACK: &str = "mine";

/// An executor that ends with its test.
struct Executor(Child);

impl Drop for Executor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command line with what must be on it and what a test of files needs, and nothing that a variable could add.
fn injected(volume: &Volume, floor: &str, platform: &str) -> Command {
    let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_skill-sidecar"));
    command
        .args(["ipc", "--injected", "--profile=auto"])
        .arg(format!("--pack={PACK}"))
        .arg(format!("--minimum-isolation={floor}"))
        .arg(format!("--platform-holds={platform}"))
        .arg(format!("--ipc-dir={}", volume.ipc.display()))
        .arg(format!("--workspace={}", volume.workspace.display()));
    command
}

impl Executor {
    fn start(mut command: Command, volume: &Volume) -> Self {
        let log = fs::File::create(log_of(volume)).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.stderr(log).spawn().expect("it starts"))
    }

    /// The result of a request; or the log, where the executor exits without one.
    fn answer(&mut self, volume: &Volume, id: &str) -> Result<Value, String> {
        let log = || fs::read_to_string(log_of(volume)).unwrap_or_default();
        let result = volume.result(id);
        let mut ended = None;
        let in_time = wait_until(PATIENCE, || {
            ended = self.0.try_wait().expect("a child");
            result.exists() || ended.is_some()
        });
        assert!(in_time, "{id}: it neither answers nor exits: {}", log());
        match fs::read(result) {
            Ok(content) => Ok(serde_json::from_slice(&content).expect("JSON")),
            Err(_) => Err(format!("{ended:?}: {}", log())),
        }
    }
}

fn log_of(volume: &Volume) -> PathBuf {
    volume.outside().join("log-of-executor")
}

/// What the commands of an executor can do, and the isolation that it reports.
fn observe(command: Command, volume: &Volume) -> Result<(String, Value), String> {
    let more = volume.outside().join("more");
    fs::create_dir_all(&more).expect("a directory");
    let line = format!(
        "ls {}/tools >/dev/null 2>&1 && echo sees; touch {}/x 2>/dev/null && echo writes; env | grep -c '^SYMPOZIUM_'; pwd",
        volume.ipc.display(),
        more.display()
    );
    volume.put("1", &json!({"id": "1", "command": line, "target": PACK}));
    let result = Executor::start(command, volume).answer(volume, "1")?;
    let stdout = result["stdout"].as_str().expect("a text").to_owned();
    Ok((stdout, result["_meta"]["isolation"].clone()))
}

/// The variables of every option of `ipc`, from its definition.
fn variables() -> Vec<String> {
    let program = Arguments::command();
    let ipc = program.find_subcommand("ipc").expect("a front end");
    let variables = ipc.get_arguments().filter_map(|argument| argument.get_env());
    variables.map(|name| name.to_str().expect("a name").to_owned()).collect()
}

#[test]
fn no_variable_of_the_image_changes_anything() {
    let mut variables = variables();
    assert!(variables.iter().any(|name| name == "SYMPOZIUM_PROFILE"));
    variables.push("SYMPOZIUM_SOMETHING_NEW".to_owned());
    let observed = |variables: &[(&str, &str)]| {
        let volume = Volume::new(Settings::default());
        let mut command = injected(&volume, "filesystem,processes,syscalls", "none");
        let more = volume.outside().join("more");
        let more = more.to_str().expect("a path");
        let fill = |value: &str| value.replace("{more}", more);
        command.envs(variables.iter().map(|(name, value)| (name, fill(value))));
        let (stdout, isolation) = observe(command, &volume).unwrap_or_else(|log| panic!("{variables:?}: {log}"));
        // Each volume has its own path.
        let workspace = volume.workspace.to_str().expect("a path");
        (stdout.replace(workspace, "WORKSPACE"), isolation)
    };
    let plain = observed(&[]);
    if !is_gvisor() {
        assert_eq!(plain.0, "0\nWORKSPACE\n");
    }
    for variable in &variables {
        assert_eq!(observed(&[(variable, "no such value")]), plain, "{variable}");
    }
    // What an image would set to be less confined.
    let hostile = [
        ("SYMPOZIUM_PROFILE", "gvisor"),
        ("SYMPOZIUM_MINIMUM_ISOLATION", "none"),
        ("SYMPOZIUM_WRITABLE", "{more}"),
        ("SYMPOZIUM_HIDDEN", "/"),
        ("SYMPOZIUM_SKILL_PACK", "another"),
        ("SYMPOZIUM_MAX_CONCURRENT", "0"),
    ];
    assert_eq!(observed(&hostile), plain);
}

/// Also with an empty floor, because the profile of gVisor leaves the file system to the pod.
#[test]
fn a_profile_of_another_kernel_is_refused() {
    if is_gvisor() {
        skip!("this kernel is gVisor's");
    }
    for by_variable in [false, true] {
        let volume = Volume::new(Settings::default());
        let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_skill-sidecar"));
        command
            .args(["ipc", "--minimum-isolation=none"])
            .arg(format!("--ipc-dir={}", volume.ipc.display()))
            .arg(format!("--workspace={}", volume.workspace.display()));
        if by_variable {
            command.env("SYMPOZIUM_PROFILE", "gvisor");
        } else {
            command.arg("--profile=gvisor");
        }
        let log = observe(command, &volume).expect_err("it must not start");
        assert!(log.contains("the kernel here is not gVisor's"), "{log}");
    }
}

#[test]
fn what_is_left_to_the_platform_must_be_held_by_it() {
    for (floor, platform, word) in [
        ("pids", "none", None),
        ("pids", "memory,cpu", None),
        ("pids", "pids", Some("delegated")),
        ("network", "none", None),
        ("network", "network", Some("delegated")),
        ("kernel", "none", None),
        ("kernel", "kernel", Some("delegated")),
        ("syscalls", "none", Some("enforced")),
    ] {
        if floor == "kernel" && is_gvisor() {
            continue;
        }
        let volume = Volume::new(Settings::default());
        match (observe(injected(&volume, floor, platform), &volume), word) {
            (Ok((_, isolation)), Some(word)) => {
                assert_eq!(&isolation["guarantees"][floor], word, "{floor} on {platform}");
            }
            (Err(log), None) => {
                let is_reported = log.contains("below the floor") && log.contains(floor);
                assert!(is_reported, "{floor} on {platform}: {log}");
            }
            (observed, _) => panic!("{floor} on {platform}: {observed:?}"),
        }
    }
}

/// A bridge treats a result without isolation as one of an executor that has none.
#[test]
fn every_result_reports_what_is_live() {
    let volume = Volume::new(Settings::default());
    volume.put_bytes("broken", b"[]");
    let missing = json!({"id": "missing", "argv": ["/no/such/program"], "target": PACK});
    volume.put("missing", &missing);
    let elsewhere = json!({"id": "elsewhere", "command": "true", "workDir": "/nowhere"});
    volume.put("elsewhere", &elsewhere);
    let mut executor = Executor::start(injected(&volume, "none", "none"), &volume);
    for id in ["broken", "missing", "elsewhere"] {
        let result = executor.answer(&volume, id).expect("an answer");
        let isolation = &result["_meta"]["isolation"]["guarantees"];
        assert!(isolation["syscalls"].is_string(), "{id}: {result}");
    }
}
