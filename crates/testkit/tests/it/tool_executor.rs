//! `images/tool-executor.sh` against the cases of the file protocol.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sympozium_testkit::ipc_cases::{Volume, table};
use sympozium_testkit::static_build::workspace_root;
use sympozium_testkit::{as_user, skip};

/// Names a copy of the script that an ordinary user can read.
const SCRIPT: &str = "TOOL_EXECUTOR";

fn script() -> PathBuf {
    match std::env::var_os(SCRIPT) {
        Some(copy) => copy.into(),
        None => workspace_root().join("images/tool-executor.sh"),
    }
}

/// The script with what Debian has: bash, jq, coreutils.
fn start(volume: &Volume) -> Command {
    let mut command = sympozium_testkit::command(script());
    command
        .env("SYMPOZIUM_IPC_DIR", &volume.ipc)
        .env("SYMPOZIUM_WORKSPACE", &volume.workspace)
        .env("TMPDIR", volume.outside());
    let settings = [
        ("SYMPOZIUM_MAX_TIMEOUT", volume.settings.max_timeout),
        ("SYMPOZIUM_MAX_CONCURRENT", volume.settings.max_concurrent),
        ("SYMPOZIUM_CLAIM_LEASE", volume.settings.claim_lease),
    ];
    for (name, value) in settings {
        if let Some(value) = value {
            command.env(name, value.to_string());
        }
    }
    command
}

/// Where a program is.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|place| place.is_file())
}

/// The script as in an image where bash and jq were added to busybox, and nothing else.
fn start_on_busybox(volume: &Volume) -> Command {
    start_on_busybox_without(&[], volume)
}

fn start_on_busybox_without(missing: &[&str], volume: &Volume) -> Command {
    let tools = volume.outside().join("bin");
    if !tools.exists() {
        fs::create_dir(&tools).unwrap();
        let busybox = find("busybox").unwrap();
        let link = |target: &Path, name: &str| symlink(target, tools.join(name)).unwrap();
        let mut list = sympozium_testkit::command(&busybox);
        let list = list.arg("--list").output().unwrap().stdout;
        for name in String::from_utf8(list).unwrap().lines() {
            if !missing.contains(&name) {
                link(&busybox, name);
            }
        }
        for program in ["bash", "jq"] {
            link(&find(program).unwrap(), program);
        }
    }
    let mut command = start(volume);
    command.env("PATH", tools);
    command
}

mod with_coreutils {
    sympozium_testkit::ipc_conformance!(super::start, needs "jq");
}

mod on_busybox {
    sympozium_testkit::ipc_conformance!(super::start_on_busybox, needs "jq", needs "busybox");
}

#[test]
fn without_setsid_a_command_is_a_process_group() {
    if find("jq").and(find("busybox")).is_none() {
        skip!("no busybox or no jq");
    }
    table::every_request_of_the_table_gets_its_result(&|volume| start_on_busybox_without(&["setsid"], volume));
}

#[test]
fn an_ordinary_user_can_run_it() {
    if find("jq").is_none() {
        skip!("no jq");
    }
    as_user::run_with(&[(SCRIPT, &script())], || {
        table::every_request_of_the_table_gets_its_result(&start);
    });
}

/// What the script says when it cannot start, and that it does not.
fn refusal(change: impl FnOnce(&mut Command)) -> String {
    let volume = Volume::new(Default::default());
    let mut command = start(&volume);
    change(&mut command);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn an_invalid_setting_is_reported_and_nothing_starts() {
    for value in ["0", "87000", "-1", "1.5", "many", "1 2", "a[$(touch x)]"] {
        assert_eq!(
            refusal(|command| {
                command.env("SYMPOZIUM_MAX_TIMEOUT", value);
            }),
            "tool-executor: error: SYMPOZIUM_MAX_TIMEOUT is no number from 1 to 86400\n\
             tool-executor: hint: unset it for 120\n",
            "{value}"
        );
    }
}

#[test]
fn a_missing_program_is_named() {
    let tools = tempfile::tempdir().unwrap();
    for program in ["bash", "base64", "cat", "chmod", "head"] {
        symlink(find(program).unwrap(), tools.path().join(program)).unwrap();
    }
    assert_eq!(
        refusal(|command| {
            command.env("PATH", tools.path());
        }),
        "tool-executor: error: no jq in this image\ntool-executor: hint: install bash, jq and coreutils\n"
    );
}

#[test]
fn a_missing_volume_is_reported() {
    let said = refusal(|command| {
        command.env("SYMPOZIUM_IPC_DIR", "/nonexistent");
    });
    assert!(said.starts_with("tool-executor: error: /nonexistent is no directory\n"), "{said}");
}

#[test]
fn shellcheck_finds_nothing() {
    if find("shellcheck").is_none() {
        skip!("no shellcheck");
    }
    let output = sympozium_testkit::command("shellcheck").arg(script()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert!(output.status.success());
}

/// A worker of the script is killed, as the kernel does when memory is short: the request must still be answered.
#[test]
fn a_killed_worker_s_request_is_answered_and_not_run_again() {
    if find("jq").is_none() {
        skip!("no jq");
    }
    let volume = Volume::new(Default::default());
    let mut executor = volume.start(&start);
    // The command's parent supervises it, and the parent's parent is the worker.
    let command = "echo ran >> log; read -r _ _ _ worker _ < /proc/$PPID/stat; kill -KILL $worker; echo over";
    volume.ask("orphan", command);
    let outcome = volume.outcome("orphan");
    assert!(outcome.is_refusal("may have run"), "{outcome:?}");
    volume.ask("control", "echo hi");
    assert_eq!(volume.outcome("control").stdout, "hi\n");
    volume.write_done();
    assert_eq!(executor.wait(), 0);
    assert_eq!(fs::read_to_string(volume.workspace.join("log")).unwrap(), "ran\n");
}
