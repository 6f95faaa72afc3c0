//! Command lines that one crate writes and another parses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::{CommandFactory as _, Parser as _};
use sympozium_api::RunPlan;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::run_plan::{Part, ToolHandler};
use sympozium_plan::render::{ExecutorProfile, ExecutorSettings, executor_arguments, platform_argument};
use sympozium_program::{LogFormat, LogLevel};
use sympozium_sidecar::arguments::{Arguments, Command, GuaranteeArgument, IpcArguments, ProfileChoice};

use super::*;
use crate::unprivileged::{self, ExecutorDirectories};

const PLAN: &[u8] = include_bytes!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
/// Limits of the plan that differ from the defaults of the executor.
const SECONDS: u32 = 77;
const CONCURRENT_CALLS: u32 = 3;

/// Options that the executor without namespaces does not get: there `--readable` and `--workspace` are the whole view
/// of its commands, so that nothing else is writable and nothing must be hidden.
const NOT_WITHOUT_NAMESPACES: &[&str] = &["hidden", "writable"];

fn plan() -> RunPlan {
    let mut plan = RunPlan::read(PLAN).unwrap();
    let part = skill(&plan).name.clone();
    for tool in &mut plan.tools {
        if matches!(&tool.acts, ToolHandler::Shell { part: of } | ToolHandler::Program { part: of, .. } if *of == part)
        {
            tool.limits.timeout_seconds = SECONDS;
        }
    }
    plan.limits.concurrent_tool_calls = CONCURRENT_CALLS;
    plan.isolation.floor = vec![Guarantee::Network];
    plan
}

fn skill(plan: &RunPlan) -> &Part {
    plan.parts.iter().find(|it| it.is_attested()).unwrap()
}

/// The options of `skill-sidecar ipc` that a variable can set, each with its variable.
fn options() -> Vec<(String, String)> {
    let program = Arguments::command();
    let ipc = program.find_subcommand("ipc").unwrap();
    let options: Vec<(String, String)> = ipc
        .get_arguments()
        .filter_map(|it| Some((it.get_long()?, it.get_env()?)))
        .map(|(long, variable)| (long.to_owned(), variable.to_str().unwrap().to_owned()))
        .collect();
    assert!(options.len() >= 12, "{options:?}");
    options
}

#[track_caller]
fn read(line: &[String]) -> IpcArguments {
    let words = [SIDECAR.to_owned()].into_iter().chain(line.to_vec());
    let words: Vec<OsString> = words.map(OsString::from).collect();
    match Arguments::parse_command_line(&words).unwrap().command {
        Command::Ipc(read) => read,
        other => panic!("another front end: {other:?}"),
    }
}

fn unprivileged_arguments(plan: &RunPlan) -> Vec<String> {
    let directories = ExecutorDirectories {
        ipc: Path::new("/live/ipc/cluster"),
        workspace: Path::new("/live/workspace"),
        scratch: Path::new("/live/tmp"),
        readable: &[PathBuf::from("/usr"), PathBuf::from("/live/programs")],
    };
    unprivileged::executor_arguments(plan, skill(plan), &directories).unwrap()
}

/// An option that a variable can set and that is not on the command line would have the executor's default: a change
/// that adds one must decide here what plans say about it.
#[test]
fn every_option_of_the_executor_comes_from_the_plan() {
    let mut plan = plan();
    let options = options();
    let check = |plan: &RunPlan, line: &[String], exceptions: &[&str]| {
        for (option, _) in &options {
            let flag = format!("--{option}=");
            let is_given = line.iter().any(|it| it.starts_with(&flag));
            assert_ne!(is_given, exceptions.contains(&option.as_str()), "{flag}");
        }
        let read = read(line);
        assert!(read.injected && read.authenticated);
        assert_eq!(read.pack.as_deref(), skill(plan).role.pack());
        assert_eq!(read.max_timeout, u64::from(SECONDS));
        assert_eq!(read.claim_lease, Some(u64::from(SECONDS) + 30));
        assert_eq!(u32::from(read.max_concurrent), 2 * CONCURRENT_CALLS);
        assert_eq!(read.log.log_level, LogLevel::Info);
        assert_eq!(read.log.log_format, LogFormat::Json);
        let minimum = read.sandbox.minimum_isolation.as_deref().unwrap();
        let minimum: Vec<&str> = GuaranteeArgument::guarantees(minimum).map(|it| it.as_str()).collect();
        let floor = plan.isolation.floor.iter().map(|it| it.as_str());
        assert_eq!(minimum, floor.collect::<Vec<_>>());
    };
    for guarantees in [Vec::new(), Guarantee::ALL.to_vec()] {
        plan.isolation.floor.clone_from(&guarantees);
        for profile in [ExecutorProfile::Detected, ExecutorProfile::Container, ExecutorProfile::Gvisor] {
            let at = ExecutorSettings { profile, platform: guarantees.clone() };
            check(&plan, &executor_arguments(&plan, skill(&plan), &at), &[]);
        }
        check(&plan, &unprivileged_arguments(&plan), NOT_WITHOUT_NAMESPACES);
    }
}

/// The variable that makes a test act as the executor in a hostile image.
const IS_CHILD: &str = "TEST_IS_IN_HOSTILE_IMAGE";

/// The variables of such an image: each would widen what commands may do.
const HOSTILE: &[(&str, &str)] = &[
    ("SYMPOZIUM_IPC_DIR", "/evil"),
    ("SYMPOZIUM_MAX_TIMEOUT", "86400"),
    ("SYMPOZIUM_MAX_CONCURRENT", "1024"),
    ("SYMPOZIUM_CLAIM_LEASE", "172800"),
    ("SYMPOZIUM_SKILL_PACK", "evil"),
    ("SYMPOZIUM_WORKSPACE", "/evil"),
    ("SYMPOZIUM_WRITABLE", "/:/evil"),
    ("SYMPOZIUM_HIDDEN", "/evil"),
    ("SYMPOZIUM_PROFILE", "host-root"),
    ("SYMPOZIUM_MINIMUM_ISOLATION", "none"),
    ("SYMPOZIUM_LOG_LEVEL", "error"),
    ("SYMPOZIUM_LOG_FORMAT", "text"),
];

/// Renderer and executor together: the executor uses what the renderer wrote, whatever the image's `ENV` sets.
#[test]
fn the_environment_of_an_image_changes_nothing() {
    if std::env::var_os(IS_CHILD).is_some() {
        return read_in_hostile_image();
    }
    let variables: Vec<String> = options().into_iter().map(|(_, it)| it).collect();
    let mut hostile: Vec<&str> = HOSTILE.iter().map(|(variable, _)| *variable).collect();
    hostile.retain(|it| variables.iter().any(|variable| variable == it));
    assert_eq!(hostile.len(), variables.len(), "{variables:?}");
    // Once as valid text, once as bytes that are not UTF-8.
    let bytes = OsStr::from_bytes(b"\xff");
    let images: [Vec<(&str, &OsStr)>; 2] = [
        HOSTILE.iter().map(|(it, value)| (*it, OsStr::new(*value))).collect(),
        HOSTILE.iter().map(|(it, _)| (*it, bytes)).collect(),
    ];
    for image in images {
        let program = std::env::current_exe().unwrap();
        let mut child = sympozium_testkit::command(program);
        let test = "parts::tests::the_environment_of_an_image_changes_nothing";
        child.args(["--exact", test, "--nocapture"]);
        let output = child.env(IS_CHILD, "1").envs(image).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        // A wrong name of the test would run no test, which is a success, too.
        assert!(
            output.status.success() && stdout.contains("1 passed"),
            "{stdout}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn read_in_hostile_image() {
    // The variables are set, and are used unless the executor ignores the environment.
    let honest = [SIDECAR, "ipc"].map(OsString::from);
    match Arguments::parse_command_line(&honest) {
        Ok(Arguments { command: Command::Ipc(read) }) => assert_eq!(read.pack.as_deref(), Some("evil")),
        Ok(other) => panic!("another front end: {other:?}"),
        // Not UTF-8.
        Err(_) => {}
    }
    let plan = plan();
    let part = skill(&plan);
    let at = ExecutorSettings { profile: ExecutorProfile::Container, platform: vec![Guarantee::Network] };
    let given = read(&executor_arguments(&plan, part, &at));
    assert_eq!(given.pack.as_deref(), Some("cluster"));
    assert_eq!(given.ipc_dir, Path::new("/ipc"));
    assert_eq!(given.sandbox.workspace, Path::new("/workspace"));
    assert_eq!(given.sandbox.hidden, [PathBuf::from("/run/sympozium")]);
    let writable = ["/tmp", "/dev/shm", "/workspace"].map(PathBuf::from);
    assert_eq!(given.sandbox.writable, writable);
    assert_eq!(given.sandbox.profile, ProfileChoice::Container);
    let bare = read(&unprivileged_arguments(&plan));
    assert_eq!(bare.pack.as_deref(), Some("cluster"));
    assert_eq!(bare.ipc_dir, Path::new("/live/ipc/cluster"));
    assert_eq!(bare.sandbox.workspace, Path::new("/live/workspace"));
    assert_eq!(bare.sandbox.scratch, Path::new("/live/tmp"));
    let nothing: [PathBuf; 0] = [];
    assert_eq!(bare.sandbox.hidden, nothing);
    assert_eq!(bare.sandbox.writable, nothing);
    assert_eq!(bare.sandbox.profile, ProfileChoice::Container);
    let floor = plan.isolation.floor.iter().map(|it| it.as_str());
    let floor: Vec<&str> = floor.collect();
    for read in [given, bare] {
        assert_eq!(read.max_timeout, u64::from(SECONDS));
        assert_eq!(read.claim_lease, Some(u64::from(SECONDS) + 30));
        assert_eq!(u32::from(read.max_concurrent), 2 * CONCURRENT_CALLS);
        assert_eq!(read.log.log_level, LogLevel::Info);
        assert_eq!(read.log.log_format, LogFormat::Json);
        let minimum = read.sandbox.minimum_isolation.unwrap();
        let minimum: Vec<&str> = GuaranteeArgument::guarantees(&minimum).map(|it| it.as_str()).collect();
        assert_eq!(minimum, floor);
    }
}

#[test]
fn the_bridge_reads_the_guarantees_of_the_platform() {
    let digest = format!("--plan-digest=sha256:{}", "0".repeat(64));
    for platform in [Vec::new(), Guarantee::ALL.to_vec()] {
        let words = [BRIDGE, digest.as_str(), "--gateway=unix:/x"].map(str::to_owned);
        let words = words.into_iter().chain([platform_argument(&platform)]);
        let read = sympozium_bridge::arguments::Arguments::try_parse_from(words).unwrap();
        assert_eq!(read.serve.platform_guarantees(), platform);
    }
}
