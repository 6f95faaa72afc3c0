//! The Lease of the controllers, in the API server.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use sympozium_program::leader::{LeaseStore, StoreError};
use tokio::sync::Notify;
use tokio::time::sleep;

/// Wait after a watch was cut.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub struct ApiLeaseStore {
    leases: Api<Lease>,
}

impl ApiLeaseStore {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { leases: Api::namespaced(client, namespace) }
    }
}

impl LeaseStore for ApiLeaseStore {
    async fn get(&self, name: &str) -> Result<Option<Lease>, StoreError> {
        self.leases.get_opt(name).await.map_err(store_error)
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, StoreError> {
        self.leases.create(&PostParams::default(), lease).await.map_err(store_error)
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, StoreError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        self.leases.replace(name, &PostParams::default(), lease).await.map_err(store_error)
    }

    async fn watch(&self, name: &str, changed: &Notify) -> Infallible {
        let fields = format!("metadata.name={name}");
        let changes = watcher(self.leases.clone(), watcher::Config::default().fields(&fields)).default_backoff();
        pin_mut!(changes);
        while let Some(change) = changes.next().await {
            if let Err(error) = change {
                tracing::warn!(%error, "the watch of the Lease was cut; it is taken up again");
                sleep(RETRY_INTERVAL).await;
            }
            changed.notify_one();
        }
        // A watcher never ends.
        pending().await
    }
}

fn store_error(error: kube::Error) -> StoreError {
    match &error {
        kube::Error::Api(status) if status.code == 404 => StoreError::NotFound(error.into()),
        kube::Error::Api(status) if status.code == 409 => StoreError::Conflict(error.into()),
        _ => StoreError::Failed(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::client::Body;
    use serde_json::json;
    use tower_test::mock;

    use super::*;

    /// A store whose API server rejects every request.
    fn rejecting_store(code: u16, reason: &'static str) -> ApiLeaseStore {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((_, response)) = handle.next_request().await {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "chosen by the test",
                    "reason": reason, "code": code,
                });
                let body = Body::from(status.to_string().into_bytes());
                response.send_response(Response::builder().status(code).body(body).unwrap());
            }
        });
        ApiLeaseStore::new(Client::new(service, "system"), "system")
    }

    #[tokio::test]
    async fn rejections_are_distinguished_by_their_code() {
        let metadata = ObjectMeta { name: Some("lease".to_owned()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: None };
        let store = rejecting_store(409, "Conflict");
        assert!(matches!(store.create(&lease).await, Err(StoreError::Conflict(_))));
        assert!(matches!(store.replace(&lease).await, Err(StoreError::Conflict(_))));
        let store = rejecting_store(404, "NotFound");
        assert!(matches!(store.replace(&lease).await, Err(StoreError::NotFound(_))));
        assert!(matches!(store.get("lease").await, Ok(None)));
        let store = rejecting_store(500, "InternalError");
        assert!(matches!(store.replace(&lease).await, Err(StoreError::Failed(_))));
        assert!(matches!(store.get("lease").await, Err(StoreError::Failed(_))));
    }
}
