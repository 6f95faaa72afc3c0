//! Requests that fail in passing are made again at once: a run is made of some twenty, and a step that gave up at the first
//! would begin again with the first object each time.

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// How long to wait before each further attempt. What lasts longer is left to the step's own retries, which wait longer.
const PAUSES: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(1000)];

/// How long an answer may take. A request that nobody ever answers would keep its run from being looked at again.
const DEADLINE: Duration = Duration::from_secs(30);

/// Makes a request until it is answered. Only for requests that may be made twice: a second creation is told that the object
/// is there.
pub async fn again<T, F>(mut request: impl FnMut() -> F) -> kube::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    for pause in PAUSES {
        match answered(request()).await {
            Err(error) if is_passing(&error) => sleep(pause).await,
            answer => return answer,
        }
    }
    answered(request()).await
}

/// Makes a request once, and waits for its answer no longer than is reasonable.
pub async fn answered<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let unanswered = |_| Err(kube::Error::Service("it was not answered in time".into()));
    timeout(DEADLINE, request).await.unwrap_or_else(unanswered)
}

/// Whether the same request may well be answered in a moment.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502..=504),
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}
