//! Directories of runs in the form in which `sympozium run` stores them, for commands that read them.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::StoredReport;
use sympozium_ipc::receipt::{Actor, CallDecision, Chain, Event, Outcome, OutputSize, ReportedIsolation};
use sympozium_ipc::run_api::{AgentEnd, BridgePhase, Usage};

use crate::{format_output, program};

/// A text with escape sequences for a terminal.
pub const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\u{9b}31m\u{202e}evil";
/// 2026-11-16T13:44:01.042Z.
pub const AT: u64 = 1_794_836_641_042;

/// A state directory of its own.
pub struct State {
    temporary: tempfile::TempDir,
}

/// A run in it.
pub struct Run {
    pub directory: PathBuf,
    pub uid: String,
    pub record: Value,
}

impl State {
    pub fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self { temporary }
    }

    pub fn root(&self) -> PathBuf {
        self.temporary.path().join("state")
    }

    pub fn runs(&self) -> PathBuf {
        self.root().join("runs")
    }

    /// The program, with this state.
    pub fn sympozium(&self, arguments: &[&str]) -> Output {
        let mut program = program(arguments);
        program.env("SYMPOZIUM_STATE", self.root());
        program.output().unwrap()
    }

    /// Exit code and output of the program, with the path of the state directory replaced.
    pub fn snapshot(&self, arguments: &[&str]) -> String {
        let output = self.sympozium(arguments);
        format_output(&output).replace(self.root().to_str().unwrap(), "STATE")
    }

    /// A run that started three days ago, took 12 seconds and succeeded. Its UID starts with `number` eight times.
    pub fn run(&self, number: u8, name: &str) -> Run {
        let uid = format!("{}-0000-4000-8000-000000000000", format!("{number:x}").repeat(8));
        let directory = self.runs().join(&uid);
        fs::create_dir_all(directory.join("logs")).unwrap();
        for path in [&self.root(), &self.runs()] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(path, mode).unwrap();
        }
        fs::write(directory.join("lock"), "").unwrap();
        let started = now_ms() - 3 * 86_400_000 - u64::from(number) * 1000;
        let plan = format!("{{\"number\":{number}}}");
        let digest = RunPlan::digest_of(plan.as_bytes());
        fs::write(directory.join("plan.json"), plan).unwrap();
        let record = json!({
            "format": 1,
            "uid": uid,
            "name": name,
            "namespace": "default",
            "agent": "assistant",
            "task": "Count the files.\nThen say how many.",
            "model": "scripted/counter",
            "skills": ["files", "git"],
            "plan": digest,
            "pid": 4242,
            "startedMs": started,
            "endedMs": started + 12_000,
            "phase": "ended",
            "workspace": directory.join("workspace"),
            "usage": {"modelRequests": 2, "inputTokens": 1200, "outputTokens": 34, "estimated": false, "toolCalls": 1},
            "outcome": {"is": "succeeded", "answer": "There are 3 files.\nThat is all."},
            "leftovers": [],
        });
        let run = Run { directory, uid, record };
        run.write();
        run.report(events());
        run
    }
}

impl Run {
    /// Writes the record.
    pub fn write(&self) {
        let text = serde_json::to_string_pretty(&self.record).unwrap();
        fs::write(self.at("run.json"), text).unwrap();
    }

    /// Changes the record.
    pub fn with(mut self, fields: Value) -> Self {
        for (name, value) in fields.as_object().unwrap() {
            match value {
                Value::Null => self.record.as_object_mut().unwrap().remove(name),
                value => self.record.as_object_mut().unwrap().insert(name.clone(), value.clone()),
            };
        }
        self.write();
        self
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn plan(&self) -> Digest {
        Digest::from(self.record["plan"].as_str().unwrap())
    }

    /// Writes the receipts of these events, and a report that covers them all.
    pub fn report(&self, events: Vec<Event>) -> StoredReport {
        let mut chain = Chain::new(self.plan());
        let mut text = String::new();
        for (number, event) in events.into_iter().enumerate() {
            text.push_str(&chain.add(AT + number as u64, event).unwrap().text);
            text.push('\n');
        }
        fs::write(self.at("receipts.jsonl"), &text).unwrap();
        let report = StoredReport {
            run: self.uid.clone(),
            plan: self.plan(),
            phase: BridgePhase::Ended,
            progress: None,
            usage: Usage::default(),
            receipts: chain.len(),
            head: chain.head().clone(),
            ending: Some(AgentEnd::Answered { text: "x".into() }),
            reports: 1,
            last_report: Digest::from(""),
            receipts_bytes: text.len() as u64,
            transcript_bytes: 0,
            transcript_cut: false,
        };
        self.write_report(&report);
        report
    }

    pub fn write_report(&self, report: &StoredReport) {
        let text = serde_json::to_string_pretty(report).unwrap();
        fs::write(self.at("report.json"), text).unwrap();
    }

    /// Writes a transcript of these lines, all of them reported.
    pub fn transcript(&self, lines: &[Value]) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(self.at("transcript.jsonl"), &text).unwrap();
        let mut report = self.report(events());
        report.transcript_bytes = text.len() as u64;
        self.write_report(&report);
    }

    /// Takes the lock of the run, as its process would.
    pub fn alive(&self) -> OwnedFd {
        let lock = fs::File::open(self.at("lock")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        lock.into()
    }

    /// Listens on the run's socket, and sends one reply to each request.
    pub fn answering(&self, answers: Vec<Value>) -> JoinHandle<Vec<Value>> {
        let listener = bound(&self.at("control.sock"));
        std::thread::spawn(move || {
            let mut requests = Vec::new();
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                requests.push(attend(&stream, &[answer]));
            }
            requests
        })
    }
}

/// Binds a socket, even if the path of its directory is too long for a socket address.
pub fn bound(path: &Path) -> UnixListener {
    let directory = fs::File::open(path.parent().unwrap()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&directory);
    let name = path.file_name().unwrap().to_str().unwrap();
    UnixListener::bind(format!("/proc/self/fd/{number}/{name}")).unwrap()
}

/// Reads a request, and replies with these lines.
pub fn attend(stream: &UnixStream, lines: &[Value]) -> Value {
    let mut request = String::new();
    BufReader::new(stream).read_line(&mut request).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut writer = stream;
    writer.write_all(text.as_bytes()).unwrap();
    serde_json::from_str(&request).unwrap()
}

/// A question in the form of the control socket.
pub fn question(approval: &str, letter: char, shown: &str) -> Value {
    json!({
        "approval": approval,
        "tool": "execute_command",
        "pack": "git",
        "action": action(letter),
        "shown": shown,
        // Formatted as `5h 1m` for almost a minute.
        "deadlineMs": now_ms() + 3_600_000 * 5 + 119_000,
        "runScope": letter == 'a',
    })
}

pub fn action(letter: char) -> String {
    format!("sha256:{}", letter.to_string().repeat(64))
}

pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// The receipts of a run with one event of each kind.
pub fn events() -> Vec<Event> {
    let digest = |letter: char| Digest::from(action(letter).as_str());
    vec![
        Event::Started { run: "11111111-0000-4000-8000-000000000000".into(), by: "ipc-bridge 0.1.0".into() },
        Event::Model {
            request: 0,
            status: Some(200),
            sent_bytes: 2048,
            received_bytes: 512,
            input_tokens: Some(1200),
            output_tokens: Some(34),
            duration_ms: 1500,
            error: None,
        },
        Event::Called {
            call: 0,
            tool: "execute_command".into(),
            pack: Some("git".into()),
            arguments: digest('b'),
            gate: Some(sympozium_api::run_plan::Gate::Ask),
            decided: CallDecision::Waiting,
            reason: None,
        },
        Event::Asked { call: 0, action: digest('a'), approval: "q1".into() },
        Event::Answered { call: 0, action: digest('a'), decided: CallDecision::Allowed, by: Some("ada".into()) },
        Event::Acted {
            call: 0,
            by: Actor::Skill,
            action: digest('a'),
            outcome: Outcome::Exited { code: 0 },
            output: OutputSize { bytes: 42, truncated: true },
            duration_ms: 12,
            isolation: Some(ReportedIsolation {
                profile: "host-user".into(),
                guarantees: vec!["filesystem".into(), "network".into()],
            }),
        },
        Event::Called {
            call: 1,
            tool: "rm_everything".into(),
            pack: None,
            arguments: digest('c'),
            gate: None,
            decided: CallDecision::Refused,
            reason: Some("there is no such tool".into()),
        },
        Event::Ended { outcome: Outcome::Done, result: Some(digest('d')) },
    ]
}
