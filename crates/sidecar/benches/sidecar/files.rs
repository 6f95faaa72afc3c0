//! Round trips over a volume, ours and the polling script's.

use std::path::Path;
use std::time::{Duration, Instant};

use sympozium_ipc::message::ExecRequest;
use sympozium_ipc::{RequestId, Requester, Volume, WatchMode};

/// How long an answer may take before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The other side of a volume, one request at a time.
pub struct Asker {
    requester: Requester,
    next: u64,
}

impl Asker {
    pub fn new(ipc: &Path) -> Self {
        let volume = Volume::open(ipc).expect("the volume");
        Self { requester: Requester::open(&volume, WatchMode::Automatic), next: 1 }
    }

    /// Has `line` executed, and says how long that took from request to result.
    pub fn ask(&mut self, line: &str) -> Duration {
        let id = RequestId::from_nanoseconds(self.next);
        self.next += 1;
        let started = Instant::now();
        let request = ExecRequest::new(id.clone(), line);
        self.requester.submit(&request).expect("a request");
        let answer = self.requester.wait(&id, started + PATIENCE);
        let took = started.elapsed();
        let answer = answer.expect("a sound answer").expect("an answer in time");
        assert_eq!(answer.exit_code, 0, "{answer:?}");
        took
    }
}
