//! Retries requests that fail transiently: creating a run takes about twenty requests, and without retries each failure
//! would restart the reconcile at the first object.

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// Waits before each retry. Longer outages are left to the reconciler's backoff.
const BACKOFF: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(1000)];

/// Bounds one request. Without it, a request that is never answered would block its run for ever.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Repeats a request until it succeeds or fails permanently. Only for requests that may be sent twice: a repeated
/// create fails with a conflict.
pub async fn retry<T, F>(mut request: impl FnMut() -> F) -> kube::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    for pause in BACKOFF {
        match with_timeout(request()).await {
            Err(error) if is_transient(&error) => sleep(pause).await,
            answer => return answer,
        }
    }
    with_timeout(request()).await
}

/// Sends a request once, with a timeout.
pub async fn with_timeout<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let unanswered = |_| Err(kube::Error::Service("the API server did not answer in time".into()));
    timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(unanswered)
}

fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502..=504),
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}
