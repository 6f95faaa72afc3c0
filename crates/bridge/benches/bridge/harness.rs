//! A run, from its plan to its processes: gateway, bridge, and an executor where a bench wants one.

use std::fmt;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sympozium_api::RunPlan;
use sympozium_api::names::EnvName;
use sympozium_api::run_plan::{Destination, Gate, ModelEndpoint, ModelKey, WireFormat};
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_ipc::run_api::RUN_CREDENTIAL;
use sympozium_testkit::model_server::ModelServer;
use sympozium_testkit::{as_user, static_build, wait_until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::MODEL_HOST;
use crate::agent::Agent;
use crate::model::MODEL_PATH;

/// The pack whose executor runs commands.
pub const SHELL_PACK: &str = "cluster";
/// The model, as the plan has it.
pub const MODEL: &str = "test-model";
/// The credential for it.
const MODEL_CREDENTIAL: &str = "model";
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
const KEY: &str = "sk-bench-0f6d2a9c41b7";
const PLAN: &[u8] = include_bytes!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
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
    run: String,
    _gateway: Process,
    executor: Option<Process>,
    directory: TempDir,
}

impl BenchHarness {
    /// Starts gateway and bridge for a run whose model is this server.
    pub fn start(model: &ModelServer) -> Self {
        let plan = plan(model);
        let directory = directories(&plan);
        let run = plan.run.uid.to_string();
        let at = |name: &str| directory.path().join(name);
        let bytes = plan.to_bytes().expect("JSON");
        put(&at("plans/run.json"), &bytes);
        put(&at("input/plan.json"), &bytes);
        put(&at("keys"), keys_text().as_bytes());
        let names = plan.credentials.iter().map(|it| it.name.as_str());
        for name in names.chain([RUN_CREDENTIAL]) {
            let file = match name {
                RUN_CREDENTIAL => "input/token".to_owned(),
                name => format!("input/credential-{name}"),
            };
            put(&at(&file), signed(&run, name).as_bytes());
        }
        let gateway = start_gateway(directory.path());
        let bridge = start_bridge(directory.path(), &bytes, model);
        Self { bridge, run, _gateway: gateway, executor: None, directory }
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
        let plan = RunPlan::read(&fs::read(self.at("plans/run.json")).expect("a plan"));
        let endpoint = plan.expect("a plan").model.endpoint.expect("an endpoint");
        let target = format!("{}:{}", endpoint.host, endpoint.port);
        let pair = STANDARD.encode(signed(&self.run, MODEL_CREDENTIAL));
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

/// The stored plan: its tools open, its model at the server, and bounds that no bench meets.
fn plan(server: &ModelServer) -> RunPlan {
    let mut plan = RunPlan::read(PLAN).expect("a plan");
    for tool in &mut plan.tools {
        tool.gate = Gate::Allow;
        tool.limits.per_minute = u32::MAX;
    }
    plan.limits.model_requests = u32::MAX;
    plan.limits.model_requests_per_minute = u32::MAX;
    plan.limits.tool_calls = u32::MAX;
    let port = server.address().port();
    plan.model.provider = "openai".into();
    plan.model.model = MODEL.into();
    plan.model.wire = WireFormat::OpenAi;
    plan.model.endpoint = Some(ModelEndpoint {
        encrypted: server.ca_pem().is_some(),
        host: MODEL_HOST.into(),
        port,
        path: MODEL_PATH.into(),
    });
    let secret = plan.model.keys[0].secret.clone();
    plan.model.keys = vec![ModelKey { variable: EnvName::new(KEY_VARIABLE), secret }];
    let credentials = plan.credentials.iter_mut();
    for credential in credentials.filter(|it| it.name == MODEL_CREDENTIAL) {
        credential.reach.destinations = vec![Destination { host: MODEL_HOST.into(), port: Some(port) }];
    }
    plan
}

/// The directories of a run, all of the user's that its processes run as.
fn directories(plan: &RunPlan) -> TempDir {
    // Not below /tmp, which commands may write to.
    let base = match as_user::is_root() {
        true => "/run",
        false => env!("CARGO_TARGET_TMPDIR"),
    };
    let directory = tempfile::tempdir_in(base).expect("a directory");
    let packs = plan.parts.iter().filter_map(|part| part.role.pack());
    let volumes = packs.flat_map(|pack| [format!("ipc/{pack}"), format!("ipc/{pack}/tools")]);
    let places = ["", "plans", "input", "door", "ipc", "records", "workspace"];
    for name in places.map(str::to_owned).into_iter().chain(volumes) {
        let path = directory.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        give(&path, 0o2770);
    }
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

fn start_bridge(directory: &Path, plan: &[u8], model: &ModelServer) -> Process {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut command = ordinary(&BRIDGE, directory);
    command
        .arg(format!("--plan-digest={}", RunPlan::digest_of(plan)))
        .arg(format!("--gateway=unix:{}", at("gateway.sock")))
        .args(["input", "door", "ipc", "headers", "script"].map(|name| format!("--{name}={}", at(name))))
        .arg("--log-level=error")
        .env_clear()
        .env(KEY_VARIABLE, KEY);
    if let Some(authority) = model.ca_pem() {
        put(&directory.join("authority"), authority.as_bytes());
        command.arg(format!("--certificates={}", at("authority")));
    }
    Process::start(&mut command)
}

/// A program that the parts' user can reach.
fn ordinary(program: &Path, directory: &Path) -> Command {
    let copy = as_user::readable_copy(program, directory).expect("a copy of the program");
    as_user::command(as_user::ORDINARY, copy)
}

fn put(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("a file");
    give(path, 0o600);
}

/// To the user that the parts run as.
fn give(path: &Path, mode: u32) {
    if as_user::is_root() {
        let owner = Some(as_user::ORDINARY);
        chown(path, owner, owner).expect("a file of the parts");
    }
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
}

fn keys_text() -> String {
    format!("k1 {}\n", "5a".repeat(KEY_BYTES))
}

fn signed(run: &str, name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let claims =
        Claims { run: run.to_owned(), name: name.to_owned(), expires: now.expect("after 1970").as_secs() + 3600 };
    let keys = KeyRing::parse(&keys_text()).expect("keys");
    let credential = keys.sign(&claims).expect("a credential");
    format!("{}:{}", credential.user, *credential.password)
}

/// A process that runs until this is dropped.
pub struct Process(Child);

/// Mebibytes of a process that are in memory.
#[derive(Debug)]
pub struct Memory {
    pub resident: f64,
    /// Its own.
    pub anonymous: f64,
    /// Of files, such as its program; processes of the same program share them.
    pub files: f64,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(started.expect("it starts"))
    }

    /// How often its threads have given up the processor, by themselves or not.
    pub fn switches(&self) -> u64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("a process");
        let threads = threads.map(|thread| thread.expect("a thread").path().join("status"));
        threads
            .map(|path| fs::read_to_string(path).expect("a thread"))
            .map(|status| field(&status, "voluntary_ctxt_switches:") + field(&status, "nonvoluntary_ctxt_switches:"))
            .sum()
    }

    pub fn memory(&self) -> Memory {
        let path = format!("/proc/{}/status", self.0.id());
        let status = fs::read_to_string(path).expect("a process");
        let mebibytes = |name| field(&status, name) as f64 / 1024.0;
        Memory {
            resident: mebibytes("VmRSS:"),
            anonymous: mebibytes("RssAnon:"),
            files: mebibytes("RssFile:") + mebibytes("RssShmem:"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} MiB resident, {:.2} of them its own, {:.2} of files",
            self.resident, self.anonymous, self.files
        )
    }
}

/// The number after a name in a status of /proc.
fn field(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    let number = value.and_then(|it| it.split_ascii_whitespace().next());
    number.and_then(|it| it.parse().ok()).expect("a number")
}
