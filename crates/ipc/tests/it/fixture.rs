//! A volume in a temporary directory, and the other side's hands.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sympozium_ipc::inbox::INCOMPLETE_TIMEOUT;
use sympozium_ipc::{Arrival, ExecRequest, ExecResult, Inbox, InboxSettings, RequestId, Volume, WatchMode, names};
use sympozium_testkit::wait_until;
use tempfile::TempDir;

/// Long enough for any machine; only a failing test waits for it.
pub const TIMEOUT: Duration = Duration::from_secs(90);

pub struct Fixture {
    pub volume: Volume,
    directory: TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        // In memory, as the volumes of a pod are, where there is such a place.
        let memory = tempfile::tempdir_in("/dev/shm");
        let directory = memory.or_else(|_| tempfile::tempdir()).expect("there is room");
        let volume = Volume::open(directory.path()).expect("it can be opened");
        Self { volume, directory }
    }

    /// A path in the IPC directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A path in `tools`.
    pub fn tools(&self, name: &str) -> PathBuf {
        self.path(names::TOOLS).join(name)
    }

    /// Puts a file into `tools` as a careful writer does.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let temporary = self.tools("writer.tmp");
        fs::write(&temporary, content).expect("there is room");
        fs::rename(temporary, self.tools(name)).expect("it can be renamed");
    }

    /// Asks for a command, and gives back the request's file.
    pub fn ask(&self, number: u64, command: &str) -> PathBuf {
        let name = names::request(&id(number));
        self.put(&name, json(number, command));
        self.tools(&name)
    }

    pub fn claim_as_other(&self, number: u64) {
        let claim = self.tools(&names::claim(&id(number)));
        fs::DirBuilder::new().mode(0o750).create(claim).expect("no claim exists");
    }

    pub fn has_claim(&self, number: u64) -> bool {
        self.tools(&names::claim(&id(number))).is_dir()
    }

    pub fn inbox(&self) -> Inbox {
        Inbox::new(&self.volume, InboxSettings::default())
    }

    pub fn inbox_of(&self, pack: &str) -> Inbox {
        let pack = Some(pack.to_owned());
        Inbox::new(&self.volume, InboxSettings { pack, ..InboxSettings::default() })
    }

    /// An inbox that does not wait for results of other executors.
    pub fn inbox_with_short_lease(&self) -> Inbox {
        let none = Duration::ZERO;
        let settings = InboxSettings { max_timeout: none, lease_grace: none, ..InboxSettings::default() };
        Inbox::new(&self.volume, settings)
    }

    pub fn polling_inbox(&self) -> Inbox {
        let watch = WatchMode::Polling;
        Inbox::new(&self.volume, InboxSettings { watch, ..InboxSettings::default() })
    }

    pub fn result(&self, number: u64) -> Option<ExecResult> {
        let bytes = fs::read(self.tools(&names::result(&id(number)))).ok()?;
        Some(ExecResult::parse(&bytes, &id(number)).expect("a result is whole"))
    }

    /// The names in `tools`, sorted.
    pub fn listing(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path(names::TOOLS)).expect("it is there");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("it is readable").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

pub fn id(number: u64) -> RequestId {
    RequestId::from_nanoseconds(number)
}

pub fn json(number: u64, command: &str) -> Vec<u8> {
    ExecRequest::new(id(number), command).to_json().expect("it is a good request")
}

pub fn ok(number: u64, stdout: &str) -> ExecResult {
    ExecResult {
        id: id(number),
        exit_code: 0,
        stdout: stdout.to_owned(),
        stderr: String::new(),
        timed_out: false,
        meta: None,
    }
}

/// What an inbox gives now, without waiting for anything.
pub fn pull(inbox: &mut Inbox) -> Option<Arrival> {
    inbox.next().expect("the volume is fine")
}

/// What an inbox gives soon.
pub fn await_arrival(inbox: &mut Inbox) -> Arrival {
    let mut arrival = None;
    assert!(
        wait_until(TIMEOUT, || {
            arrival = pull(inbox);
            arrival.is_some()
        }),
        "nothing arrived"
    );
    arrival.expect("it was waited for")
}

/// Puts something that is not complete into a volume, and asserts that it is not given at once. Done anew where the machine
/// was so slow that its time was over.
pub fn not_given_at_once(put: impl Fn(&Fixture)) -> (Fixture, Inbox) {
    for _ in 0..50 {
        let fixture = Fixture::new();
        let mut inbox = fixture.inbox();
        let before = Instant::now();
        put(&fixture);
        let arrival = pull(&mut inbox);
        if before.elapsed() < INCOMPLETE_TIMEOUT {
            assert!(arrival.is_none(), "{arrival:?}");
            return (fixture, inbox);
        }
    }
    panic!("this machine is too slow");
}

/// That an inbox has nothing to give for a while.
pub fn stays_empty(inbox: &mut Inbox, time: Duration) -> bool {
    !wait_until(time, || pull(inbox).is_some())
}

/// The id and command of an arrival, or what else it is.
pub fn describe(arrival: &Arrival) -> String {
    match arrival {
        Arrival::Request(claimed, request) => format!("run {}: {}", claimed.id(), request.command),
        Arrival::Refused(claimed, problem) => format!("refuse {}: {problem}", claimed.id()),
        Arrival::Abandoned(abandoned) => format!("abandoned {}", abandoned.id()),
        Arrival::Ignored { name, reason } => format!("ignored {name}: {reason}"),
    }
}
