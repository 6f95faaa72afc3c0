//! A run's directory, the agent in it, and its neighbour.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{AgentView, Root, WireFormat};
use sympozium_ipc::door::SOCKET_NAME;
use sympozium_plan::plan::agent_view;
use sympozium_testkit::{as_user, static_build};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;

use crate::bare;
use crate::neighbour::{self, Heard};

const PLAN: &[u8] = include_bytes!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
/// A line of a file.
const LINE: &str = "let answer = \"forty-two\"; // what it is about, nobody remembers\n";
/// More rounds than any measurement has.
const MANY: u32 = 1000;

static AGENT: LazyLock<PathBuf> = LazyLock::new(|| static_build::shipped("agent-runner").expect("it can be built"));

/// A run's directory.
pub struct World {
    directory: TempDir,
    program: PathBuf,
    /// The files that the model wants to read, one in each turn.
    files: Vec<String>,
    answers: Arc<[Bytes]>,
}

/// When an agent was started.
pub struct Start(Instant);

impl Start {
    /// How long it took until its first request was there.
    pub fn elapsed_until(&self, heard: &Heard) -> Duration {
        heard.requests[0].arrived - self.0
    }
}

impl World {
    /// A run of so many turns, in each of which another file of so many bytes is read.
    pub fn new(turns: usize, bytes: usize) -> Self {
        let directory = directory();
        let at = |name: &str| directory.path().join(name);
        for name in ["", "input", "door", "workspace"] {
            fs::create_dir_all(at(name)).expect("a directory");
            give(&at(name), 0o2770);
        }
        let text: String = LINE.chars().cycle().take(bytes).collect();
        let file = |index: usize| {
            let path = at("workspace").join(format!("file-{index}.rs"));
            fs::write(&path, &text).expect("a file");
            give(&path, 0o600);
            path.display().to_string()
        };
        let files: Vec<String> = (1..=turns).map(file).collect();
        let view = serde_json::to_vec(&view(&at("workspace"))).expect("JSON");
        let input = at("input").join(AgentView::FILE);
        fs::write(&input, view).expect("a file");
        give(&input, 0o600);
        let program = as_user::readable_copy(&AGENT, directory.path());
        Self { program: program.expect("a copy of the program"), answers: neighbour::answers(&files), files, directory }
    }

    /// One run, from the agent's start to its end.
    pub fn run(&self, runtime: &Runtime, variables: &[(&str, &str)]) -> (Start, Heard) {
        let listener = self.listener(runtime);
        let mut command = as_user::command(as_user::ORDINARY, &self.program);
        command
            .arg(format!("--input={}", self.at("input").display()))
            .arg(format!("--door={}", self.at("door").display()))
            .arg("--log-level=error")
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let started = Instant::now();
        let mut agent = command.spawn().expect("it starts");
        let heard = runtime.block_on(neighbour::serve(listener, Arc::clone(&self.answers)));
        let ended = agent.wait().expect("it ends");
        assert!(ended.success(), "the agent has no answer: {ended}");
        assert_eq!(heard.requests.len(), self.answers.len());
        (Start(started), heard)
    }

    /// The exchanges of a run, by a client that does nothing else.
    pub fn run_bare(&self, runtime: &Runtime, as_heard: &Heard) -> Heard {
        let listener = self.listener(runtime);
        let socket = self.at("door").join(SOCKET_NAME);
        let requests: Vec<usize> = as_heard.requests.iter().map(|it| it.bytes).collect();
        let files = self.files.clone();
        let client = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(bare::speak(&socket, &requests, &files));
        });
        let heard = runtime.block_on(neighbour::serve(listener, Arc::clone(&self.answers)));
        client.join().expect("a client");
        assert_eq!(heard.requests.len(), self.answers.len());
        heard
    }

    fn listener(&self, runtime: &Runtime) -> UnixListener {
        let socket = self.at("door").join(SOCKET_NAME);
        let _ = fs::remove_file(&socket);
        let _inside = runtime.enter();
        let listener = UnixListener::bind(&socket).expect("a socket");
        give(&socket, 0o600);
        listener
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// What the agent reads of the stored plan, with all the tools of that, for the one directory.
fn view(workspace: &Path) -> AgentView {
    let mut view = agent_view(&RunPlan::read(PLAN).expect("a plan"));
    view.wire = WireFormat::OpenAi;
    view.limits.iterations = MANY;
    view.limits.model_tokens = None;
    view.roots = vec![Root { path: workspace.display().to_string(), writable: true }];
    view
}

fn directory() -> TempDir {
    let base = match as_user::is_root() {
        true => "/run",
        // A path of a socket has no room for more.
        false => "/tmp",
    };
    tempfile::tempdir_in(base).expect("a directory")
}

/// To the user that the agent runs as.
fn give(path: &Path, mode: u32) {
    if as_user::is_root() {
        let owner = Some(as_user::ORDINARY);
        chown(path, owner, owner).expect("a file of the agent");
    }
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
}
