//! What [`super::Kubectl`] does without starting `kubectl`: calls about one kind, with the same answers.
//!
//! The names of kinds come from the API server's discovery, as kubectl's do, and are read again when one is not known: a test may
//! have installed it since.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use serde_json::Value;

use super::api::{Api, Change};

/// Between two attempts to watch.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Calls about one kind.
pub struct Direct {
    api: Api,
    /// The collection, in the namespace if the kind has one.
    path: String,
}

/// A kind that an API server serves.
#[derive(Debug, Clone)]
struct Resource {
    /// `api/v1` or `apis/GROUP/VERSION`.
    version: String,
    plural: String,
    is_namespaced: bool,
}

impl Resource {
    fn path(&self, namespace: &str) -> String {
        let Self { version, plural, is_namespaced } = self;
        if *is_namespaced {
            format!("/{version}/namespaces/{namespace}/{plural}")
        } else {
            format!("/{version}/{plural}")
        }
    }

    fn api_version(&self) -> &str {
        let core = self.version.strip_prefix("api/");
        core.or_else(|| self.version.strip_prefix("apis/")).unwrap_or(&self.version)
    }
}

impl Direct {
    /// Calls about `kind`, which may be its kind, plural, singular or short name. Nothing where the API server has no such kind, or
    /// more than one: `kubectl` says what it makes of that.
    pub fn new(api: Api, kind: &str, namespace: Option<&str>) -> Result<Option<Self>> {
        let found = resource(&api, kind)?;
        Ok(found.map(|resource| Self { path: resource.path(namespace.unwrap_or("default")), api }))
    }

    /// Calls about the kind of an object, in the namespace of the object. Nothing where `kubectl` has to say what is wrong with it.
    pub fn for_object(api: Api, object: &Value, namespace: Option<&str>) -> Result<Option<Self>> {
        let Some(resource) = resource(&api, object["kind"].as_str().unwrap_or_default())? else {
            return Ok(None);
        };
        let own = object["metadata"]["namespace"].as_str();
        let is_elsewhere = own.is_some() && namespace.is_some() && own != namespace;
        if object["apiVersion"] != resource.api_version() || is_elsewhere {
            return Ok(None);
        }
        let namespace = namespace.or(own).unwrap_or("default");
        Ok(Some(Self { path: resource.path(namespace), api }))
    }

    /// One object.
    pub fn get(&self, name: &str) -> Result<Value> {
        self.api.get(&format!("{}/{name}", self.path)).map(without_managed_fields)
    }

    /// Creates an object, and takes no field that its kind does not have.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let path = format!("{}?fieldManager=kubectl-create&fieldValidation=Strict", self.path);
        let created = self.api.create_at(&path, object);
        let created = created.with_context(|| format!("creating {} {}", object["kind"], object["metadata"]["name"]))?;
        Ok(without_managed_fields(created))
    }

    /// Waits until something holds of an object, from its newest state on.
    pub fn until(&self, name: &str, patience: Duration, mut holds: impl FnMut(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + patience;
        let path = format!("{}?fieldSelector=metadata.name%3D{name}", self.path);
        let mut last = Value::Null;
        let mut problem = String::new();
        while Instant::now() < deadline {
            let (report, changes) = channel();
            match self.api.watch_from_now(&path, move |change| drop(report.send(change))) {
                Ok(_watch) => loop {
                    let left = deadline.saturating_duration_since(Instant::now());
                    match changes.recv_timeout(left) {
                        Ok(Change::Current(object)) => {
                            last = without_managed_fields(object);
                            if holds(&last) {
                                return Ok(last);
                            }
                        }
                        Ok(Change::Deleted(_)) => last = Value::Null,
                        Ok(Change::Ended(why)) => {
                            problem = why;
                            break;
                        }
                        Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
                    }
                },
                // The API server refuses calls while it starts.
                Err(error) => problem = format!("{error:#}"),
            }
            std::thread::sleep(WATCH_PAUSE);
        }
        bail!("waited {} s for {path}, which is {last:#} {problem}", patience.as_secs());
    }
}

/// Who wrote which field: kubectl does not print it either.
fn without_managed_fields(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// The one resource with this name; read again where it is not known.
fn resource(api: &Api, name: &str) -> Result<Option<Resource>> {
    let name = &name.to_ascii_lowercase();
    type Known = HashMap<String, HashMap<String, Vec<Resource>>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let only = |names: &HashMap<String, Vec<Resource>>| match names.get(name).map(Vec::as_slice) {
        Some([resource]) => Some(Some(resource.clone())),
        Some(_) => Some(None),
        None => None,
    };
    // Held while it is read: tests that run side by side would all read it.
    let mut known = KNOWN.lock();
    if let Some(found) = known.get(api.server()).and_then(only) {
        return Ok(found);
    }
    let names = discover(api)?;
    let found = only(&names).flatten();
    known.insert(api.server().to_owned(), names);
    Ok(found)
}

/// The names of all kinds that the API server has, in the version that it prefers.
fn discover(api: &Api) -> Result<HashMap<String, Vec<Resource>>> {
    let mut names: HashMap<String, Vec<Resource>> = HashMap::new();
    for root in ["api", "apis"] {
        let groups = api.discovery(&format!("/{root}"))?;
        for group in groups["items"].as_array().into_iter().flatten() {
            let group_name = group["metadata"]["name"].as_str().unwrap_or_default();
            // The first is the preferred one.
            let Some(version) = group["versions"].as_array().and_then(|versions| versions.first()) else { continue };
            let number = version["version"].as_str().context("a version without a name")?;
            let path = match group_name {
                "" => format!("{root}/{number}"),
                group_name => format!("{root}/{group_name}/{number}"),
            };
            for served in version["resources"].as_array().into_iter().flatten() {
                let text = |field: &Value| field.as_str().unwrap_or_default().to_ascii_lowercase();
                let plural = text(&served["resource"]);
                let resource = Resource {
                    version: path.clone(),
                    plural: plural.clone(),
                    is_namespaced: served["scope"] == "Namespaced",
                };
                let short = served["shortNames"].as_array().into_iter().flatten().map(text);
                let mut words: Vec<String> = short.collect();
                words.extend([plural, text(&served["singularResource"]), text(&served["responseKind"]["kind"])]);
                words.sort();
                words.dedup();
                for word in words.into_iter().filter(|word| !word.is_empty()) {
                    names.entry(word).or_default().push(resource.clone());
                }
            }
        }
    }
    Ok(names)
}
