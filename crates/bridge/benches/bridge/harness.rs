//! A run, from its plan to its processes: gateway, bridge, and an executor where a bench wants one. Unlike that of the tests,
//! all of them are processes as they ship, and of the user that parts have.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{ModelEndpoint, WireFormat};
use sympozium_harness::credential::{KEY_FILE, token};
use sympozium_harness::plan::{MODEL_CREDENTIAL, open_plan, set_endpoint};
use sympozium_harness::{Agent, KEY, make_directories, write_inputs};
use sympozium_testkit::model_server::ModelServer;
use sympozium_testkit::{as_user, static_build, wait_until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::MODEL_HOST;
use crate::model::MODEL_PATH;

/// The pack whose executor runs commands.
pub const SHELL_PACK: &str = "cluster";
const TIMEOUT: Duration = Duration::from_secs(60);

static BRIDGE: LazyLock<PathBuf> = LazyLock::new(|| shipped("ipc-bridge"));
static GATEWAY: LazyLock<PathBuf> = LazyLock::new(|| shipped("sympozium-gateway"));
static SIDECAR: LazyLock<PathBuf> = LazyLock::new(|| shipped("skill-sidecar"));

fn shipped(name: &str) -> PathBuf {
    static_build::shipped(name).expect("it can be built")
}

/// One run.
pub struct BenchHarness {
    pub bridge: Process,
    plan: RunPlan,
    _gateway: Process,
    executor: Option<Process>,
    directory: TempDir,
}

impl BenchHarness {
    /// Starts gateway and bridge for a run whose model is this server.
    pub fn start(model: &ModelServer) -> Self {
        let plan = plan(model);
        let directory = directories(&plan, model);
        let (gateway, bridge) = (start_gateway(directory.path()), start_bridge(directory.path(), &plan, model));
        Self { bridge, plan, _gateway: gateway, executor: None, directory }
    }

    /// Starts the executor of the pack.
    pub fn start_executor(&mut self) {
        let volume = self.at("ipc").join(SHELL_PACK);
        let mut command = ordinary(&SIDECAR, self.directory.path());
        command
            .args(["ipc", "--log-level=error"])
            .arg(format!("--ipc-dir={}", volume.display()))
            .arg(format!("--workspace={}", self.at("workspace").display()))
            .env("SYMPOZIUM_SKILL_PACK", SHELL_PACK);
        self.executor = Some(Process::start(&mut command));
    }

    /// The agent, at the door.
    pub async fn agent(&self) -> Agent {
        Agent::connect(&self.at("door")).await
    }

    /// A tunnel to the model, as the bridge has one.
    pub async fn tunnel(&self) -> UnixStream {
        let gateway = UnixStream::connect(self.at("gateway.sock")).await;
        let mut gateway = gateway.expect("the gateway listens");
        let endpoint = self.plan.model.endpoint.as_ref().expect("an endpoint");
        let target = format!("{}:{}", endpoint.host, endpoint.port);
        let pair = STANDARD.encode(token(self.plan.run.uid.as_str(), MODEL_CREDENTIAL));
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {pair}\r\n\r\n");
        let sent = gateway.write_all(head.as_bytes()).await;
        sent.expect("the gateway reads");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(gateway.read_u8().await.expect("an answer"));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        gateway
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The open plan with its model at the server, and limits that no bench meets.
fn plan(server: &ModelServer) -> RunPlan {
    let mut plan = open_plan(WireFormat::OpenAi);
    for tool in &mut plan.tools {
        tool.limits.per_minute = u32::MAX;
    }
    plan.limits.model_requests = u32::MAX;
    plan.limits.model_requests_per_minute = u32::MAX;
    plan.limits.tool_calls = u32::MAX;
    let endpoint = ModelEndpoint {
        encrypted: server.ca_pem().is_some(),
        host: MODEL_HOST.into(),
        port: server.address().port(),
        path: MODEL_PATH.into(),
    };
    set_endpoint(&mut plan, endpoint);
    plan
}

/// The directories of a run and the files in them, all of the user that its processes run as.
fn directories(plan: &RunPlan, model: &ModelServer) -> TempDir {
    // Not below /tmp, which commands may write to.
    let base = if as_user::is_root() { "/run" } else { env!("CARGO_TARGET_TMPDIR") };
    let directory = tempfile::tempdir_in(base).expect("a directory");
    let at = |name: &str| directory.path().join(name);
    make_directories(directory.path(), plan);
    write_inputs(directory.path(), plan);
    for pack in plan.parts.iter().filter_map(|part| part.role.pack()) {
        fs::create_dir(at("ipc").join(pack).join("tools")).expect("a directory");
    }
    for name in ["plans", "records"] {
        fs::create_dir(at(name)).expect("a directory");
    }
    fs::copy(at("input/plan.json"), at("plans/run.json")).expect("a plan");
    fs::write(at("keys"), KEY_FILE).expect("a file");
    if let Some(authority) = model.ca_pem() {
        fs::write(at("authority"), authority).expect("a file");
    }
    give(directory.path());
    directory
}

fn start_gateway(directory: &Path) -> Process {
    let at = |name: &str| directory.join(name).display().to_string();
    let socket = at("gateway.sock");
    let mut command = ordinary(&GATEWAY, directory);
    command
        .args(["serve", "--dns=127.0.0.1:53", "--log-level=error"])
        .arg("--allow-loopback")
        .arg(format!("--listen=unix:{socket}"))
        .arg(format!("--plans={}", at("plans")))
        .arg(format!("--records={}", at("records")))
        .arg(format!("--key-file={}", at("keys")));
    let gateway = Process::start(&mut command);
    let listens = wait_until(TIMEOUT, || StdUnixStream::connect(&socket).is_ok());
    assert!(listens, "the gateway does not start");
    gateway
}

fn start_bridge(directory: &Path, plan: &RunPlan, model: &ModelServer) -> Process {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut command = ordinary(&BRIDGE, directory);
    command
        .arg(format!("--plan-digest={}", RunPlan::digest_of(&plan.to_bytes().expect("JSON"))))
        .arg(format!("--gateway=unix:{}", at("gateway.sock")))
        .args(["input", "door", "ipc", "headers", "script"].map(|name| format!("--{name}={}", at(name))))
        .arg("--log-level=error")
        .env_clear()
        .env(plan.model.keys[0].variable.as_str(), KEY);
    if model.ca_pem().is_some() {
        command.arg(format!("--certificates={}", at("authority")));
    }
    Process::start(&mut command)
}

/// A program that the parts' user can reach.
fn ordinary(program: &Path, directory: &Path) -> Command {
    let copy = as_user::readable_copy(program, directory).expect("a copy of the program");
    as_user::command(as_user::ORDINARY, copy)
}

/// Hands a file, or a directory with all that is in it, to the user that the parts run as.
fn give(path: &Path) {
    if as_user::is_root() {
        let owner = Some(as_user::ORDINARY);
        chown(path, owner, owner).expect("a file of the parts");
    }
    let mode = if path.is_dir() { 0o2770 } else { 0o600 };
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
    if path.is_dir() {
        fs::read_dir(path).expect("a directory").for_each(|entry| give(&entry.expect("an entry").path()));
    }
}

/// A process that runs until this is dropped.
pub struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(started.expect("it starts"))
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a pid")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
