//! `skill-sidecar ipc --authenticated`: nothing runs that the bridge did not sign, where commands can write to the volume too.
//!
//! The key is handed over as plain files, as the protocol describes it. In some tests the executor has no Landlock, as on
//! gVisor: its commands see the volume and may write to it.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use clap::Parser as _;
use rustix::process::Signal;
use sympozium_exec::{Config, Floor, Layer, StageProgram};
use sympozium_ipc::{ExecRequest, RequestId, RequestKey, Signer, StartReport};
use sympozium_sidecar::arguments::{self, Arguments};
use sympozium_testkit::ipc_cases::volume::PATIENCE;
use sympozium_testkit::ipc_cases::{Executor, Outcome, Settings, Volume};
use sympozium_testkit::probe::{self, Findings};
use sympozium_testkit::wait_until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_skill-sidecar");
/// Holds the command line of an executor that this test program becomes.
const ARGUMENTS: &str = "SIDECAR_TEST_ARGUMENTS";

fn ipc_arguments(volume: &Volume, more: &[&str]) -> Vec<String> {
    let mut arguments = vec!["ipc".to_owned()];
    arguments.push(format!("--ipc-dir={}", volume.ipc.display()));
    arguments.push(format!("--workspace={}", volume.workspace.display()));
    arguments.extend(more.iter().map(|&argument| argument.to_owned()));
    arguments
}

fn shipped(volume: &Volume) -> Command {
    let mut command = sympozium_testkit::command(PROGRAM);
    command.args(ipc_arguments(volume, &["--authenticated"]));
    command
}

/// The executor without Landlock, in a process of its own.
fn without_landlock(volume: &Volume, more: &[&str]) -> Command {
    let mut command = sympozium_testkit::command(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "ipc_authenticated::is_the_executor_when_asked", "--nocapture"])
        .env(ARGUMENTS, ipc_arguments(volume, more).join("\n"));
    command
}

/// Not a test by itself: what [`without_landlock`] starts.
#[test]
fn is_the_executor_when_asked() {
    let Ok(words) = std::env::var(ARGUMENTS) else {
        return;
    };
    let words = std::iter::once("skill-sidecar").chain(words.lines());
    let arguments = Arguments::try_parse_from(words).expect("a command line");
    let arguments::Command::Ipc(arguments) = arguments.command else {
        panic!("only `ipc` can be without layers");
    };
    let change = |config: Config| {
        let mut config = config.without_layers([Layer::LandlockFilesystem, Layer::LandlockScopes, Layer::LandlockTcp]);
        config.floor = Floor::none();
        config.stage = StageProgram::At(PROGRAM.into());
        config
    };
    let served = sympozium_sidecar::ipc::run_with(&arguments, change);
    std::process::exit(i32::from(served.is_err()));
}

/// The bridge's side of a volume.
struct Bridge<'v> {
    volume: &'v Volume,
    signer: Signer,
    digits: String,
}

impl<'v> Bridge<'v> {
    fn new(volume: &'v Volume, seed: u8) -> Self {
        Self {
            volume,
            signer: Signer::new(RequestKey::from_bytes([seed; 32])),
            digits: format!("{seed:02x}").repeat(32),
        }
    }

    /// The nonce that the executor has announced.
    fn start(&self) -> Option<String> {
        let report = StartReport::parse(&fs::read(self.volume.ipc.join(".start")).ok()?)?;
        Some(report.nonce.to_hex())
    }

    /// Waits for a start other than `before`.
    fn await_start(&self, before: Option<&str>) -> String {
        let mut start = None;
        let in_time = wait_until(PATIENCE, || {
            start = self.start();
            start.is_some() && start.as_deref() != before
        });
        assert!(in_time, "no start is announced");
        start.expect("it was waited for")
    }

    /// Hands over the key for a start.
    fn hand_key(&self, start: &str) {
        let hidden = self.volume.outside().join("key.part");
        fs::write(&hidden, format!("{start} {}\n", self.digits)).expect("a key");
        fs::rename(hidden, self.volume.ipc.join(".key")).expect("a key in its place");
    }

    fn signed(&mut self, id: &str, command: &str) -> Vec<u8> {
        let id = RequestId::parse(id).expect("an id");
        let mut request = ExecRequest::new(id, self.volume.fill(command));
        let expires = SystemTime::now() + Duration::from_secs(3600);
        self.signer.sign(&mut request, expires).expect("a counter");
        request.to_json().expect("a good request")
    }

    fn execute(&mut self, id: &str, command: &str) -> Outcome {
        let request = self.signed(id, command);
        self.volume.put_bytes(id, &request);
        let outcome = self.volume.outcome(id);
        fs::remove_file(self.volume.request(id)).expect("the request");
        fs::remove_file(self.volume.result(id)).expect("the result");
        let _ = fs::remove_dir(self.volume.claim(id));
        outcome
    }
}

/// A volume with an executor that has its key.
fn keyed(volume: &Volume, start: &dyn Fn(&Volume) -> Command) -> Executor {
    let bridge = Bridge::new(volume, 7);
    let executor = volume.start(start);
    bridge.hand_key(&bridge.await_start(None));
    executor
}

fn probe_is_answered(volume: &Volume) -> bool {
    let mut command = sympozium_testkit::command(PROGRAM);
    command.args(["healthcheck", "--pack", "Test-Pack", "--timeout", "60"]).arg("--ipc-dir").arg(&volume.ipc);
    command.status().expect("it runs").success()
}

#[test]
fn nothing_is_served_before_the_key_arrives_and_only_signed_requests_after() {
    let volume = Volume::new(Settings::default());
    let mut bridge = Bridge::new(&volume, 7);
    let signed = bridge.signed("2", "echo signed; touch {W}/signed");
    volume.ask("1", "touch {W}/unsigned");
    volume.put_bytes("2", &signed);
    let mut executor = volume.start(&shipped);
    let start = bridge.await_start(None);
    // Each probe is one iteration of the loop, which therefore has read the volume.
    for _ in 0..2 {
        assert!(probe_is_answered(&volume));
    }
    assert_eq!(volume.listing(), ["exec-request-1.json", "exec-request-2.json"]);
    bridge.hand_key(&start);
    assert_eq!(volume.outcome("2").stdout, "signed\n");
    assert_eq!(bridge.execute("3", "echo {W}; ls {W}").stdout, volume.fill("{W}\nsigned\n"));
    assert!(!volume.workspace.join("unsigned").exists());
    // It may be looked at after what came later.
    assert!(wait_until(PATIENCE, || volume.log().contains("it carries no MAC")), "{}", volume.log());
    assert!(!volume.workspace.join("unsigned").exists());
    assert!(!volume.ipc.join(".key").exists());
    volume.write_done();
    assert_eq!(executor.wait(), 0);
}

/// What the red team did: a command that was allowed writes a request, which is executed once the command has ended.
const ENQUEUE: &str = "printf '%s' '{\"id\":\"222\",\"command\":\"echo forged >> {W}/log\"}' > {I}/tools/.part && \
    mv {I}/tools/.part {I}/tools/exec-request-222.json && echo enqueued";

#[test]
fn a_command_that_can_write_to_the_volume_enqueues_nothing() {
    let volume = Volume::new(Settings::default());
    let enqueue = ENQUEUE.replace("{I}", &volume.ipc.to_string_lossy());
    // Without a key the protocol is what it was, and so the attack works: this test can fail.
    let mut executor = volume.start(&|volume: &Volume| without_landlock(volume, &[]));
    volume.ask("111", &enqueue);
    assert_eq!(volume.outcome("111").stdout, "enqueued\n");
    assert_eq!(volume.outcome("222").exit_code, 0);
    assert_eq!(volume.lines("log"), ["forged"]);
    volume.write_done();
    assert_eq!(executor.wait(), 0);

    let volume = Volume::new(Settings::default());
    let authenticated = |volume: &Volume| without_landlock(volume, &["--authenticated"]);
    let _executor = keyed(&volume, &authenticated);
    let mut bridge = Bridge::new(&volume, 7);
    let tools = volume.tools().display().to_string();
    let enqueue = ENQUEUE.replace("{I}", &volume.ipc.to_string_lossy());
    assert_eq!(bridge.execute("111", &enqueue).stdout, "enqueued\n");
    // Its own request again, under its own name once the bridge has taken it away, and under another.
    let copy = format!(
        "cp {tools}/exec-request-112.json {{W}}/copy; sed s/112/113/ {{W}}/copy > {tools}/exec-request-113.json; echo ran >> {{W}}/log"
    );
    assert_eq!(bridge.execute("112", &copy).exit_code, 0);
    let replay = format!("mv {{W}}/copy {tools}/exec-request-112.json");
    assert_eq!(bridge.execute("114", &replay).exit_code, 0);
    // A further claim, result, key and start, written by a command.
    let litter = format!(
        "mkdir {tools}/.claim-115; echo x > {tools}/exec-result-116.json; echo x > {0}/.key; echo x > {0}/.start",
        volume.ipc.display()
    );
    assert_eq!(bridge.execute("117", &litter).exit_code, 0);
    assert_eq!(bridge.execute("118", "echo still served").stdout, "still served\n");
    assert_eq!(volume.lines("log"), ["ran"], "{}", volume.log());
    let log = volume.log();
    for (name, why) in [
        ("exec-request-222.json", "it carries no MAC"),
        ("exec-request-113.json", "its MAC is wrong"),
        ("exec-request-112.json", "it is replayed"),
    ] {
        let logged = wait_until(PATIENCE, || {
            let log = volume.log();
            log.lines().any(|line| line.contains(name) && line.contains(why))
        });
        assert!(logged, "{name}: {log}");
    }
}

/// Where a key may be looked for by a command of the same user, without Landlock.
#[test]
fn a_command_cannot_take_the_key_from_the_executor() {
    let volume = Volume::new(Settings::default());
    let authenticated = |volume: &Volume| without_landlock(volume, &["--authenticated"]);
    let executor = keyed(&volume, &authenticated);
    let mut bridge = Bridge::new(&volume, 7);
    let pid = executor.pid();
    let probe = probe::path().display();
    let mut attempts = vec![
        "ptrace",
        "read-memory",
        "write-memory",
        "proc-mem",
        "proc-mem-write",
        "proc-maps",
        "proc-environ",
        "steal-descriptor",
    ];
    // The directory of a process that is closed to others is root's, who may list the numbers in it, even without capabilities.
    if !rustix::process::geteuid().is_root() {
        attempts.push("proc-fd");
    }
    let attempts: Vec<String> = attempts.iter().map(|attempt| format!("{attempt}={pid}")).collect();
    let outcome = bridge.execute("1", &format!("{probe} attempt {}", attempts.join(" ")));
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    let findings = Findings::parse(outcome.stdout.as_bytes());
    for attempt in &attempts {
        let finding = findings.of(attempt);
        assert!(!finding.possible, "{finding:?}");
    }
    let leads = format!("ls -l /proc/{pid}/fd 2>/dev/null | grep -c -e '->'");
    let outcome = bridge.execute("3", &leads);
    assert_eq!(outcome.stdout, "0\n", "{outcome:?}");
    // Nor is it in a file, an argument or a variable that a command can read.
    // In two steps: a search has the digits in its own command line. The shell has them too, in pieces.
    let search = format!(
        "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' > {{W}}/seen; \
         grep -c {digits} {{W}}/seen; grep -rc {digits} {ipc} | grep -v :0$; ls -A {ipc}",
        digits = "07070''70707",
        ipc = volume.ipc.display(),
    );
    let outcome = bridge.execute("2", &search);
    assert_eq!(outcome.stdout, "0\n.start\ntools\n", "{outcome:?}");
    assert!(!volume.log().contains(&bridge.digits[..16]), "{}", volume.log());
}

#[test]
fn a_restarted_executor_serves_nothing_whatever_was_planted() {
    let volume = Volume::new(Settings::default());
    let mut executor = keyed(&volume, &shipped);
    let mut bridge = Bridge::new(&volume, 7);
    assert_eq!(bridge.execute("1", "echo served").stdout, "served\n");
    let first = bridge.start().expect("a start");
    let late = bridge.signed("2", "echo {M} >> {W}/log");
    executor.signal(Signal::KILL);
    assert!(executor.wait() < 0);
    // What a command could have left behind: a request of the run, a key of its own with the start that it knew, and a request
    // that the key signs.
    let mut attacker = Bridge::new(&volume, 9);
    attacker.hand_key(&first);
    let forged = attacker.signed("3", "echo forged >> {W}/log");
    volume.put_bytes("2", &late);
    volume.put_bytes("3", &forged);
    let _executor = volume.start(&shipped);
    let second = bridge.await_start(Some(&first));
    for _ in 0..2 {
        assert!(probe_is_answered(&volume));
    }
    assert_eq!(volume.listing(), ["exec-request-2.json", "exec-request-3.json"]);
    assert_eq!(volume.lines("log"), Vec::<String>::new());
    assert!(wait_until(PATIENCE, || !volume.ipc.join(".key").exists()), "what was planted does not stay");
    // It is alive: with a key for this start it would serve.
    let mut rekeyed = Bridge::new(&volume, 11);
    rekeyed.hand_key(&second);
    assert_eq!(rekeyed.execute("4", "echo alive").stdout, "alive\n");
    assert_eq!(volume.lines("log"), Vec::<String>::new());
}

/// A `done` that a command wrote makes the executor exit. The kubelet restarts it: then it must look neither like one that died
/// nor like one that keeps crashing, because each would end the whole run.
#[test]
fn an_executor_restarted_after_done_neither_announces_another_start_nor_exits_again() {
    let volume = Volume::new(Settings::default());
    let mut executor = keyed(&volume, &shipped);
    let bridge = Bridge::new(&volume, 7);
    let first = bridge.start();
    volume.write_done();
    assert_eq!(executor.wait(), 0);
    let mut restarted = volume.start(&shipped);
    assert!(probe_is_answered(&volume), "it lives");
    assert_eq!(bridge.start(), first);
    restarted.signal(Signal::TERM);
    assert_eq!(restarted.wait(), 0);
    assert_eq!(bridge.start(), first);
}
