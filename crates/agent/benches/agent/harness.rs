//! The directory of a run, the agent and its fake bridge.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sympozium_api::run_plan::{AgentView, Root, WireFormat};
use sympozium_harness::plan::stored_plan;
use sympozium_ipc::door::SOCKET_NAME;
use sympozium_plan::plan::agent_view;
use sympozium_testkit::{as_user, static_build};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;

use crate::bare_client;
use crate::fake_bridge::{self, Recording};

/// A line of a file.
const LINE: &str = "let answer = \"forty-two\"; // an old constant\n";
/// More rounds than any measurement has.
const UNLIMITED: u32 = 1000;

static AGENT: LazyLock<PathBuf> = LazyLock::new(|| static_build::shipped("agent-runner").expect("it can be built"));

pub struct Harness {
    directory: TempDir,
    program: PathBuf,
    /// One for each turn.
    files: Vec<String>,
    answers: Arc<[Bytes]>,
}

pub struct Start(Instant);

impl Start {
    /// Time to the first request.
    pub fn elapsed_until(&self, recording: &Recording) -> Duration {
        recording.requests[0].arrived - self.0
    }
}

impl Harness {
    /// A run with this many turns, each of which reads another file of this size.
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
        Self {
            program: program.expect("a copy of the program"),
            answers: fake_bridge::answers(&files),
            files,
            directory,
        }
    }

    /// Runs an agent from start to end.
    pub fn run(&self, runtime: &Runtime, variables: &[(&str, &str)]) -> (Start, Recording) {
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
        let recording = runtime.block_on(fake_bridge::serve(listener, Arc::clone(&self.answers)));
        let ended = agent.wait().expect("it ends");
        assert!(ended.success(), "the agent has no answer: {ended}");
        assert_eq!(recording.requests.len(), self.answers.len());
        (Start(started), recording)
    }

    /// Sends the requests of a recorded run with the bare client.
    pub fn run_bare_client(&self, runtime: &Runtime, as_heard: &Recording) -> Recording {
        let listener = self.listener(runtime);
        let socket = self.at("door").join(SOCKET_NAME);
        let requests: Vec<usize> = as_heard.requests.iter().map(|it| it.bytes).collect();
        let files = self.files.clone();
        let client = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(bare_client::exchange(&socket, &requests, &files));
        });
        let recording = runtime.block_on(fake_bridge::serve(listener, Arc::clone(&self.answers)));
        client.join().expect("a client");
        assert_eq!(recording.requests.len(), self.answers.len());
        recording
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

/// The view of the stored plan, with all its tools, for one directory.
fn view(workspace: &Path) -> AgentView {
    let mut view = agent_view(&stored_plan());
    view.wire = WireFormat::OpenAi;
    view.limits.iterations = UNLIMITED;
    view.limits.model_tokens = None;
    view.roots = vec![Root { path: workspace.display().to_string(), writable: true }];
    view
}

fn directory() -> TempDir {
    // The path of a socket is limited to 108 bytes.
    let base = if as_user::is_root() { "/run" } else { "/tmp" };
    tempfile::tempdir_in(base).expect("a directory")
}

/// Hands a file to the user of the agent.
fn give(path: &Path, mode: u32) {
    if as_user::is_root() {
        let owner = Some(as_user::ORDINARY);
        chown(path, owner, owner).expect("a file of the agent");
    }
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
}
