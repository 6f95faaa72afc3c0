//! The API server without a process for every call.
//!
//! Starting `kubectl` takes 50 to 100 ms of a core, more than most calls cost the cluster, and a test that polls pays for it
//! each time. Here all calls of a process share a client, objects are JSON, and waiting is a watch. Paths are those of the
//! API (`/api/v1/namespaces/x/pods`), with a query where one is needed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use hyper::{Method, Request, header};
use kube::api::{ApiResource, TypeMeta, WatchEvent};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;

use super::Cluster;

const JSON: &str = "application/json";
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// Between two attempts to watch.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Calls to one API server with the rights of one user.
#[derive(Clone)]
pub struct Api {
    client: Client,
    runtime: Handle,
    server: String,
}

/// What a watch reports.
#[derive(Debug)]
pub enum Change {
    /// An object as it is now: first each that exists already, then each that is created or modified.
    Current(Value),
    /// An object that was deleted, as it was last.
    Deleted(Value),
    /// The watch has ended, and reports nothing more.
    Ended(String),
}

/// A watch, ended when it is dropped.
#[derive(Debug)]
pub struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Cluster {
    /// The cluster's administrator, as [`Cluster::kubectl`] is.
    ///
    /// # Errors
    ///
    /// When the kubeconfig cannot be used.
    pub fn api(&self) -> Result<Api> {
        Api::connect(self.kubeconfig.clone(), None, Vec::new())
    }

    /// A client for the runtime of the caller, as the administrator.
    ///
    /// # Errors
    ///
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = Kubeconfig::read_from(&self.kubeconfig).context("reading the kubeconfig")?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        Client::try_from(config.context("the kubeconfig cannot be used")?).context("the kubeconfig cannot be used")
    }

    /// The same as another user.
    ///
    /// # Errors
    ///
    /// When the kubeconfig cannot be used.
    pub fn api_impersonating(&self, user: &str) -> Result<Api> {
        Api::connect(self.kubeconfig.clone(), Some(user.to_owned()), Vec::new())
    }
}

impl Api {
    /// One client for each kubeconfig, user and its groups: connections are kept in its pool.
    pub(super) fn connect(kubeconfig: PathBuf, user: Option<String>, groups: Vec<String>) -> Result<Self> {
        type Known = HashMap<(PathBuf, Option<String>, Vec<String>), Api>;
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock();
        let key = (kubeconfig, user, groups);
        if let Some(api) = known.get(&key) {
            return Ok(api.clone());
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = runtime()?;
        let read = Kubeconfig::read_from(&key.0).context("reading the kubeconfig")?;
        let options = KubeConfigOptions::default();
        let config = runtime.block_on(Config::from_custom_kubeconfig(read, &options));
        let mut config = config.context("the kubeconfig cannot be used")?;
        config.auth_info.impersonate.clone_from(&key.1);
        config.auth_info.impersonate_groups = (!key.2.is_empty()).then(|| key.2.clone());
        let server = config.cluster_url.to_string();
        // A client spawns what serves its pool.
        let _entered = runtime.enter();
        let client = Client::try_from(config).context("the kubeconfig cannot be used")?;
        let api = Self { client, runtime, server };
        known.insert(key, api.clone());
        Ok(api)
    }

    /// An object, or a list.
    ///
    /// # Errors
    ///
    /// When the API server refuses, or there is no such object.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.call(Method::GET, path, JSON, None)
    }

    /// An object, if there is one.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn find(&self, path: &str) -> Result<Option<Value>> {
        match self.get(path) {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The objects of a list, each with the kind that only the list has on the wire.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn list(&self, path: &str) -> Result<Vec<Value>> {
        let mut list = self.get(path)?;
        let kind = list["kind"].as_str().unwrap_or_default();
        let kind = kind.trim_end_matches("List").to_owned();
        let api_version = list["apiVersion"].take();
        let mut items: Vec<Value> = serde_json::from_value(list["items"].take())?;
        for item in &mut items {
            item["kind"] = kind.clone().into();
            item["apiVersion"] = api_version.clone();
        }
        Ok(items)
    }

    /// Creates an object as it is given, in the namespace that it names.
    ///
    /// # Errors
    ///
    /// When the API server refuses it; the message has its reasons.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let path = collection_of(object)?;
        self.call(Method::POST, &path, JSON, Some(object))
            .with_context(|| format!("creating {} {}", object["kind"], object["metadata"]["name"]))
    }

    /// Creates an object at the path of its collection, with the query that is given.
    pub(super) fn create_at(&self, path: &str, object: &Value) -> Result<Value> {
        self.call(Method::POST, path, JSON, Some(object))
    }

    /// The address of the API server.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// All groups, versions and kinds below `/api` or `/apis`, in one answer.
    pub(super) fn discovery(&self, path: &str) -> Result<Value> {
        let request = Request::get(path).header(header::ACCEPT, DISCOVERY).body(Vec::new())?;
        let answer = self.runtime.block_on(self.client.request::<Value>(request));
        answer.with_context(|| path.to_owned())
    }

    /// Replaces the whole of an object.
    ///
    /// # Errors
    ///
    /// When the API server refuses it; the message has its reasons.
    pub fn replace(&self, object: &Value) -> Result<Value> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}", collection_of(object)?);
        self.call(Method::PUT, &path, JSON, Some(object))
            .with_context(|| format!("replacing {} {name}", object["kind"]))
    }

    /// Merges fields into an object.
    ///
    /// # Errors
    ///
    /// When the API server refuses it; the message has its reasons.
    pub fn merge(&self, path: &str, fields: &Value) -> Result<Value> {
        self.call(Method::PATCH, path, MERGE_PATCH, Some(fields))
    }

    /// Asks for an object to be deleted, and does not wait for that. One that does not exist is deleted.
    ///
    /// # Errors
    ///
    /// When the API server refuses it.
    pub fn delete(&self, path: &str) -> Result<()> {
        match self.call(Method::DELETE, path, JSON, None) {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Watches a list: `report` gets what is there, then every change, and [`Change::Ended`] last, on a thread that others
    /// need too.
    ///
    /// # Errors
    ///
    /// When the API server refuses it.
    pub fn watch(&self, path: &str, report: impl FnMut(Change) + Send + 'static) -> Result<Watch> {
        // From what the server has at hand, which may be a moment old: what changed since follows. Without a version it would first
        // wait for the newest state of kinds that do not change, and give up after three seconds.
        self.watch_since(path, "0", report)
    }

    /// As [`Self::watch`], beginning with the newest state instead of what the server has at hand.
    pub(super) fn watch_from_now(&self, path: &str, mut report: impl FnMut(Change) + Send + 'static) -> Result<Watch> {
        let list = self.get(path)?;
        let version = list["metadata"]["resourceVersion"].as_str().context("a list without a version")?.to_owned();
        let api_version = list["apiVersion"].clone();
        let kind = list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
        for item in list["items"].as_array().into_iter().flatten() {
            // Only the list has them on the wire.
            let mut item = item.clone();
            item["kind"] = kind.clone().into();
            item["apiVersion"] = api_version.clone();
            report(Change::Current(item));
        }
        self.watch_since(path, &version, report)
    }

    fn watch_since(&self, path: &str, version: &str, mut report: impl FnMut(Change) + Send + 'static) -> Result<Watch> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}watch=true&resourceVersion={version}");
        let request = Request::get(&path).body(Vec::new())?;
        let events =
            self.runtime.block_on(self.client.request_events::<Value>(request)).with_context(|| path.clone())?;
        let task = self.runtime.spawn(async move {
            let mut events = Box::pin(events);
            let why = loop {
                match events.next().await {
                    Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                        report(Change::Current(object));
                    }
                    Some(Ok(WatchEvent::Deleted(object))) => report(Change::Deleted(object)),
                    Some(Ok(WatchEvent::Bookmark(_))) => {}
                    Some(Ok(WatchEvent::Error(status))) => break status.message.clone(),
                    Some(Err(error)) => break error.to_string(),
                    None => break "the server has closed it".to_owned(),
                }
            };
            report(Change::Ended(why));
        });
        Ok(Watch(task.abort_handle()))
    }

    /// Waits, by a watch, until an object of a collection says what `answer` looks for.
    ///
    /// # Errors
    ///
    /// When it does not in time; the message has `what` and the object as it was last.
    pub fn wait_for<T>(
        &self,
        what: &str,
        (collection, name): (&str, &str),
        patience: Duration,
        mut answer: impl FnMut(&Value) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + patience;
        let path = format!("{collection}?fieldSelector=metadata.name%3D{name}");
        let mut last = Value::Null;
        loop {
            let (report, changes) = channel();
            let _watch = match self.watch(&path, move |change| drop(report.send(change))) {
                Ok(watch) => watch,
                Err(error) if Instant::now() >= deadline => return Err(error),
                // The API server refuses watches of a kind that it has only just begun to serve.
                Err(_) => {
                    std::thread::sleep(WATCH_PAUSE);
                    continue;
                }
            };
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match changes.recv_timeout(left) {
                    Ok(Change::Current(object)) => {
                        if let Some(answer) = answer(&object) {
                            return Ok(answer);
                        }
                        last = object;
                    }
                    Ok(Change::Deleted(_)) => last = Value::Null,
                    // A new watch begins with what is there.
                    Ok(Change::Ended(_)) | Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        bail!("waited {} s for {what}: {last}", patience.as_secs());
                    }
                }
            }
        }
    }

    fn call(&self, method: Method, path: &str, content_type: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(|it| it.to_string().into_bytes());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .body(body.unwrap_or_default())?;
        let answer = self.runtime.block_on(self.client.request::<Value>(request));
        answer.with_context(|| path.to_owned())
    }
}

/// The path of the collection that an object belongs to.
///
/// # Errors
///
/// When it has no kind.
pub fn collection_of(object: &Value) -> Result<String> {
    let types: TypeMeta = serde_json::from_value(object.clone()).context("an object without a kind")?;
    let kind = GroupVersionKind::try_from(&types)?;
    let resource = ApiResource::from_gvk(&kind);
    let root = if kind.group.is_empty() { "api" } else { "apis" };
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.map_or_else(String::new, |it| format!("namespaces/{it}/"));
    let (version, plural) = (&resource.api_version, &resource.plural);
    Ok(format!("/{root}/{version}/{namespace}{plural}"))
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<kube::Error>();
    matches!(cause, Some(kube::Error::Api(status)) if status.code == 404)
}

/// What serves the clients of this process: one thread, which only waits.
fn runtime() -> Result<Handle> {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = RUNTIME.get_or_init(|| runtime.handle().clone()).clone();
    std::thread::Builder::new().name("api".to_owned()).spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_belongs_to_the_collection_of_its_kind() {
        let object = |version: &str, kind: &str, metadata: Value| json!({ "apiVersion": version, "kind": kind, "metadata": metadata });
        for (object, path) in [
            (object("v1", "Namespace", json!({})), "/api/v1/namespaces"),
            (object("v1", "ConfigMap", json!({ "namespace": "x" })), "/api/v1/namespaces/x/configmaps"),
            (
                object("sympozium.ai/v1alpha1", "SympoziumPolicy", json!({ "namespace": "x" })),
                "/apis/sympozium.ai/v1alpha1/namespaces/x/sympoziumpolicies",
            ),
            (
                object("authorization.k8s.io/v1", "SubjectAccessReview", json!({})),
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            ),
        ] {
            assert_eq!(collection_of(&object).unwrap(), path);
        }
        assert!(collection_of(&json!({})).is_err());
    }
}
