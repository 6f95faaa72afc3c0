//! Round trips over a volume, ours and the polling script's.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use sympozium_ipc::message::ExecRequest;
use sympozium_ipc::volume::Announcement;
use sympozium_ipc::{RequestId, RequestKey, Requester, Signer, Volume, WatchMode};
use sympozium_testkit::wait_until;

/// How long an answer may take before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The other side of a volume, one request at a time.
pub struct Asker {
    requester: Requester,
    signer: Option<Signer>,
    next: u64,
}

impl Asker {
    pub fn new(ipc: &Path) -> Self {
        let volume = Volume::open(ipc).expect("the volume");
        Self { requester: Requester::open(&volume, WatchMode::Automatic), signer: None, next: 1 }
    }

    /// As [`new`](Self::new), for an executor that verifies requests: hands it the key.
    pub fn authenticated(ipc: &Path) -> Self {
        let volume = Volume::open(ipc).expect("the volume");
        let signer = Signer::new(RequestKey::generate().expect("a key"));
        let mut handed = false;
        wait_until(PATIENCE, || {
            if let Ok(Announcement::Start(start)) = volume.read_start() {
                volume.hand_over_key(&start.nonce, signer.key()).expect("a key");
                handed = true;
            }
            handed
        });
        assert!(handed, "the executor does not start");
        Self { signer: Some(signer), ..Self::new(ipc) }
    }

    /// Has `line` executed, and says how long that took from request to result.
    pub fn ask(&mut self, line: &str) -> Duration {
        let id = RequestId::from_nanoseconds(self.next);
        self.next += 1;
        let started = Instant::now();
        let mut request = ExecRequest::new(id.clone(), line);
        if let Some(signer) = &mut self.signer {
            let expires = SystemTime::now() + PATIENCE;
            signer.sign(&mut request, expires).expect("a signature");
        }
        self.requester.submit(&request).expect("a request");
        let answer = self.requester.wait(&id, started + PATIENCE);
        let took = started.elapsed();
        let answer = answer.expect("a sound answer").expect("an answer in time");
        assert_eq!(answer.exit_code, 0, "{answer:?}");
        took
    }
}
