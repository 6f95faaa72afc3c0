//! The bridge, in a process of its own: this very program, started again for one test that is the bridge. In the tests' own
//! process it would give up listening for all of them.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};

use sympozium_api::names::Digest;
use sympozium_bridge::bridge::run;
use sympozium_bridge::egress_client::GatewayAddress;
use sympozium_bridge::inputs::{Directories, Inputs, TokenRequirement, read_plan};
use sympozium_bridge::key::ProviderKey;
use sympozium_bridge::program::ServeContext;
use sympozium_exec::lockdown::LockdownReport;
use sympozium_program::{LogArguments, LogFormat, LogLevel, start_logging};
use sympozium_testkit::command;

use crate::world::KEY;

/// The run's directory, where this process is to be its bridge.
const DIRECTORY: &str = "SYMPOZIUM_TEST_BRIDGE";
/// The digest of its plan.
const DIGEST: &str = "SYMPOZIUM_TEST_BRIDGE_DIGEST";

/// Starts the bridge of the run in a directory.
pub fn start(directory: &Path, digest: &Digest) -> Child {
    let log = std::fs::File::create(directory.join("bridge.log")).expect("a log");
    command(std::env::current_exe().expect("this program"))
        .args(["--exact", "bridge::is_one_where_it_was_started_as_one"])
        .args(["--nocapture", "--test-threads=1"])
        .env_clear()
        .env(DIRECTORY, directory)
        .env(DIGEST, digest.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .spawn()
        .expect("it starts")
}

/// Not a test among others: the other tests start it as their bridge, and it fails when a bridge does.
#[test]
fn is_one_where_it_was_started_as_one() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
        return;
    };
    let digest = std::env::var(DIGEST).expect("a digest");
    start_logging(&LogArguments { log_level: LogLevel::Info, log_format: LogFormat::Json });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let code = runtime.block_on(run(started(&directory, &Digest::new(digest))));
    assert_eq!(code, ExitCode::SUCCESS);
}

/// What the bridge's program reads, without its lock-down: that must come before the first thread, and a test has two.
fn started(directory: &Path, digest: &Digest) -> ServeContext {
    let at = |name: &str| directory.join(name);
    let places = Directories {
        input: at("input"),
        door: at("door"),
        ipc: at("ipc"),
        headers: at("headers"),
        script: at("script"),
    };
    let plan = read_plan(&places.input, digest).expect("the plan").expect("a plan");
    // Taking it out of the environment, as the program does, is for before the first thread, too.
    let variable = plan.model.keys[0].variable.clone();
    let key = ProviderKey::new(variable, KEY.as_bytes().to_vec().into()).expect("a key");
    let inputs = Inputs::read(plan, digest.clone(), &places, TokenRequirement::Optional);
    ServeContext {
        platform: Vec::new(),
        inputs: inputs.expect("inputs"),
        key,
        gateway: GatewayAddress::Unix(at("gateway.sock")),
        lockdown: LockdownReport { landlock_abi: 0, live: std::collections::BTreeSet::new() },
        directories: places,
        roots: None,
        verifying: std::collections::BTreeSet::new(),
    }
}
