//! What the tests share: executors in every profile this machine has, with the probe inside.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use sympozium_exec::layout::{Bind, BindAccess};
use sympozium_exec::{Config, Executor, Floor, Invocation, Layer, Outcome, Profile, Request, StageProgram};
use sympozium_testkit::as_user::is_root;
use sympozium_testkit::probe::{self, Findings};

/// Where host sandboxes see the probe.
const PROBE_INSIDE: &str = "/probe";

/// Names the stage program in a test that runs again as another user.
pub const STAGE: &str = "SYMPOZIUM_TEST_STAGE";

/// The program that is the helper stage for this test binary.
pub fn stage() -> PathBuf {
    std::env::var_os(STAGE).map_or_else(|| env!("CARGO_BIN_EXE_exec-run").into(), PathBuf::from)
}

/// The host profile that this user can have.
pub fn host() -> Profile {
    if is_root() { Profile::HostRoot } else { Profile::HostUser }
}

/// Every profile in which commands can run here.
pub fn profiles() -> [Profile; 3] {
    [Profile::Container, Profile::Gvisor, host()]
}

/// The profile as it ships, with the probe inside.
pub fn config(profile: Profile) -> Config {
    let mut config = Config::new(profile);
    config.stage = StageProgram::At(stage());
    if profile == Profile::Gvisor {
        // On an ordinary kernel: all of the profile but the kernel.
        config.floor = Floor::none();
    }
    config.with_bind(Bind {
        source: probe::path().to_owned(),
        target: PROBE_INSIDE.into(),
        access: BindAccess::ReadOnly,
    })
}

/// An executor of that profile.
pub fn executor(profile: Profile) -> Executor {
    Executor::new(config(profile)).unwrap_or_else(|error| panic!("{profile}: {error:?}"))
}

/// The probe's path as commands of `profile` see it.
pub fn probe_path(profile: Profile) -> &'static Path {
    if profile.is_host() { Path::new(PROBE_INSIDE) } else { probe::path() }
}

/// A request that makes the probe do something.
pub fn probe_request<'a>(profile: Profile, words: impl IntoIterator<Item = &'a str>) -> Request {
    let program = probe_path(profile).to_str().expect("a path in UTF-8");
    Request::argv([program].into_iter().chain(words))
}

/// `probe do --marker MARKER …`.
pub fn action<'a>(profile: Profile, marker: &'a str, words: impl IntoIterator<Item = &'a str>) -> Request {
    probe_request(profile, ["do", "--marker", marker].into_iter().chain(words))
}

/// Runs a request that must give an outcome.
#[track_caller]
pub fn run(executor: &Executor, request: &Request) -> Outcome {
    executor.run(request, None).unwrap_or_else(|error| panic!("{error:?}"))
}

/// What the probe could do in a sandbox.
#[track_caller]
pub fn attempt<'a>(config: Config, attempts: impl IntoIterator<Item = &'a str>) -> Findings {
    let profile = config.profile;
    let without_own_root = config.without.contains(&Layer::MountNamespace);
    let executor = Executor::new(config).unwrap_or_else(|error| panic!("{profile}: {error:?}"));
    let mut request = probe_request(profile, ["attempt"].into_iter().chain(attempts));
    if let (true, Invocation::Argv(argv)) = (without_own_root, &mut request.invocation) {
        argv[0] = probe::path().into();
    }
    request.output_bytes = 1024 * 1024;
    request.timeout = std::time::Duration::from_secs(120);
    let outcome = run(&executor, &request);
    assert!(!outcome.timed_out, "{outcome:?}");
    Findings::parse(&outcome.stdout.bytes)
}

/// Nothing with this marker lives: at the moment a call returns, not some time later.
#[track_caller]
pub fn assert_gone(marker: &str) {
    let left = sympozium_testkit::processes::with_marker(marker);
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Waits for a condition that must come true.
#[track_caller]
pub fn eventually(condition: impl FnMut() -> bool) {
    let came_true = sympozium_testkit::wait_until(std::time::Duration::from_secs(60), condition);
    assert!(came_true, "waited a minute in vain");
}

/// Starts `exec-run`, an executor in a process of its own, and gives it its document.
pub fn exec_run(document: &serde_json::Value, stdout: Stdio) -> Child {
    let mut child =
        sympozium_testkit::command(stage()).stdin(Stdio::piped()).stdout(stdout).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(document.to_string().as_bytes()).expect("it reads");
    child
}
