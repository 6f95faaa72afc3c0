//! The bridge in a process of its own: this test binary, started again for one test that runs the bridge. In the tests'
//! own process it would stop listening for all of them.

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

use crate::harness::KEY;

const DIRECTORY: &str = "SYMPOZIUM_TEST_BRIDGE";
const DIGEST: &str = "SYMPOZIUM_TEST_BRIDGE_DIGEST";

pub fn start(directory: &Path, digest: &Digest) -> Child {
    let log = std::fs::File::create(directory.join("bridge.log")).expect("a log");
    command(std::env::current_exe().expect("this program"))
        .args(["--exact", "bridge::runs_as_a_bridge_process"])
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

/// Not a real test: other tests start it as their bridge, and it fails when a bridge does.
#[test]
fn runs_as_a_bridge_process() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
        return;
    };
    let digest = std::env::var(DIGEST).expect("a digest");
    start_logging(&LogArguments { log_level: LogLevel::Info, log_format: LogFormat::Json });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let code = runtime.block_on(run(started(&directory, &Digest::new(digest))));
    assert_eq!(code, ExitCode::SUCCESS);
}

/// The context of the bridge's program without its lock-down, which must come before the first thread.
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
    // The program takes it from the environment, which must come before the first thread, too.
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
