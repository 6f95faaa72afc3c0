//! Round trips over a volume, of our executor and of the polling script.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use sympozium_ipc::message::ExecRequest;
use sympozium_ipc::volume::Announcement;
use sympozium_ipc::{self as ipc, RequestId, RequestKey, Signer, Volume, WatchMode};
use sympozium_testkit::wait_until;

/// How long an answer may take before the bench gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A requester on a volume, with one request at a time.
pub struct Requester {
    requester: ipc::Requester,
    signer: Option<Signer>,
    next: u64,
}

impl Requester {
    pub fn new(directory: &Path) -> Self {
        let volume = Volume::open(directory).expect("the volume");
        Self { requester: ipc::Requester::open(&volume, WatchMode::Automatic), signer: None, next: 1 }
    }

    /// As [`new`](Self::new), for an executor that verifies requests: hands it the key.
    pub fn authenticated(directory: &Path) -> Self {
        let volume = Volume::open(directory).expect("the volume");
        let signer = Signer::new(RequestKey::generate().expect("a key"));
        let mut handed = false;
        wait_until(TIMEOUT, || {
            if let Ok(Announcement::Start(start)) = volume.read_start() {
                volume.hand_over_key(&start.nonce, signer.key()).expect("a key");
                handed = true;
            }
            handed
        });
        assert!(handed, "the executor does not start");
        Self { signer: Some(signer), ..Self::new(directory) }
    }

    /// Returns the time from request to result.
    pub fn execute(&mut self, line: &str) -> Duration {
        let id = RequestId::from_nanoseconds(self.next);
        self.next += 1;
        let started = Instant::now();
        let mut request = ExecRequest::new(id.clone(), line);
        if let Some(signer) = &mut self.signer {
            let expires = SystemTime::now() + TIMEOUT;
            signer.sign(&mut request, expires).expect("a signature");
        }
        self.requester.submit(&request).expect("a request");
        let answer = self.requester.wait(&id, started + TIMEOUT);
        let duration = started.elapsed();
        let answer = answer.expect("a sound answer").expect("an answer in time");
        assert_eq!(answer.exit_code, 0, "{answer:?}");
        duration
    }
}
