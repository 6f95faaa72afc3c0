//! Discovered facts of the cluster that are the same for all runs.
//!
//! Each source is watched by name: the gateway's Service, the API server's Service and endpoints, its CA certificates,
//! agent-sandbox's CRD. Nodes come from the caches, keys and the gateway's authority from `certificates`. While a
//! source is missing nothing is published, and no run starts.

mod extract;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::reflector::{Store, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use sympozium_api::installation::GATEWAY;
use sympozium_api::names::ObjectName;
use sympozium_ipc::credential::KeyRing;
use sympozium_plan::render::RenderSettings;
use tokio::sync::{Notify, watch};

use crate::caches::Caches;
use crate::certificates::TrustMaterial;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// The ConfigMap with the API server's CA certificates; Kubernetes creates it in every namespace.
pub const ROOT_CA_CONFIG_MAP: &str = "kube-root-ca.crt";
/// The namespace and name of the API server's Service. Its EndpointSlice has the same name.
///
/// API servers maintain exactly one slice for themselves, and only that one (kubernetes/kubernetes#101070): any other
/// slice with the label of the Service was created by another client, and would open the NetworkPolicies of all runs to
/// the addresses in it. The slice has the addresses of one family, that of the addresses which the API servers
/// advertise; the name of a second slice for dual-stack is not decided (KEP-2438). Until then the other family is
/// reached through the Service's own addresses, of which a dual-stack Service has two.
pub const API_SERVER_SERVICE: (&str, &str) = ("default", "kubernetes");
/// The name of the CRD of agent-sandbox.
pub const SANDBOX_CRD: &str = "sandboxes.agents.x-k8s.io";

/// Facts of the cluster that rendering and creating a run need.
#[derive(Clone)]
pub struct ClusterInfo {
    /// Addresses and capabilities of the cluster, as `render` takes them.
    pub render: RenderSettings,
    /// The CA certificate of the gateway, PEM.
    pub gateway_authority: String,
    /// The CA certificates of the API server, PEM.
    pub api_server_authority: String,
    /// Signs the credentials of runs for the gateway.
    pub keys: Arc<KeyRing>,
}

/// Values from the command line that replace discovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// For a cluster without the gateway's Service.
    pub gateway: Option<IpAddr>,
    /// Of workspaces; the cluster's default when absent.
    pub storage_class: Option<ObjectName>,
    /// PEM certificates of authorities that bridges trust besides the public ones.
    pub certificates: Option<String>,
}

/// Watches the sources and publishes a new [`ClusterInfo`] when one of them changes.
pub struct ClusterInfoWatcher {
    pub settings: Arc<Settings>,
    pub overrides: Overrides,
    /// For the nodes.
    pub caches: Caches,
    /// Is notified when a node has changed.
    pub nodes_changed: Arc<Notify>,
    /// Published by `certificates`.
    pub material: watch::Receiver<Option<TrustMaterial>>,
    pub metrics: Arc<Metrics>,
}

/// The stores of the watched objects.
struct Stores {
    gateway: Store<Service>,
    api_server: Store<Service>,
    endpoints: Store<EndpointSlice>,
    certificates: Store<ConfigMap>,
    sandboxes: Store<CustomResourceDefinition>,
    /// Whether the CRD's watch has completed its first list: without it, absence and ignorance look the same.
    sandboxes_listed: Arc<AtomicBool>,
}

impl ClusterInfoWatcher {
    /// Runs for as long as the future is polled.
    pub async fn run(mut self, client: Client, cluster_info: watch::Sender<Option<Arc<ClusterInfo>>>) {
        let (watched, mut changes) = watch_all(&client, &self.settings.system_namespace);
        let mut logged: Option<Vec<&'static str>> = None;
        loop {
            tokio::select! {
                Some(()) = changes.next() => {}
                () = self.nodes_changed.notified() => {}
                Ok(()) = self.material.changed() => {}
                else => return,
            }
            let found = self.build(&watched);
            let missing = found.as_ref().err().cloned().unwrap_or_default();
            if logged.as_ref() != Some(&missing) {
                if missing.is_empty() {
                    tracing::info!("the gateway, the API server and the nodes are discovered; runs can start");
                } else {
                    tracing::warn!(missing = missing.join(", "), "runs wait until these are found");
                }
                logged = Some(missing);
            }
            cluster_info.send_if_modified(|current| {
                let changed = match (current.as_ref(), &found) {
                    (None, Err(_)) => false,
                    (Some(old), Ok(new)) => !is_same(old, new),
                    _ => true,
                };
                if changed {
                    *current = found.as_ref().ok().cloned().map(Arc::new);
                }
                changed
            });
        }
    }

    /// The error lists what is missing.
    fn build(&self, watched: &Stores) -> Result<ClusterInfo, Vec<&'static str>> {
        let mut missing = Vec::new();
        let mut need = |there: bool, what: &'static str| {
            if !there {
                missing.push(what);
            }
        };
        let gateway = extract::gateway(
            &self.overrides,
            watched.gateway.state().first().map(AsRef::as_ref),
            &self.settings.system_namespace,
        );
        need(gateway.is_some(), "the Service of the gateway");
        let api_server = extract::api_server(
            watched.api_server.state().first().map(AsRef::as_ref),
            watched.endpoints.state().iter().map(AsRef::as_ref),
        );
        need(!api_server.is_empty(), "the addresses of the API server");
        let certificates = watched.certificates.state();
        let certificates = certificates.first().and_then(|object| extract::certificates(object));
        need(certificates.is_some(), "the certificates of the API server");
        let material = self.material.borrow().clone();
        need(material.is_some(), "the gateway's authority and keys");
        let sandboxes_listed = watched.sandboxes_listed.load(Ordering::Relaxed);
        need(sandboxes_listed, "whether there are Sandboxes");
        let nodes = self.caches.nodes.state();
        let host_users = extract::host_users(self.settings.user_namespaces, nodes.iter().map(AsRef::as_ref));
        self.metrics.set_user_namespaces(host_users == Some(false));
        let (Some(gateway), Some(certificates), Some(material), []) =
            (gateway, certificates, material, missing.as_slice())
        else {
            return Err(missing);
        };
        let sandboxes = watched.sandboxes.state();
        Ok(ClusterInfo {
            render: RenderSettings {
                system_namespace: self.settings.system_namespace.as_str().into(),
                gateway,
                api_server,
                host_users,
                sandbox_version: sandboxes.first().and_then(|definition| extract::sandbox_version(definition)),
                storage_class: self.overrides.storage_class.clone(),
                pod_pids_limit: self.settings.pod_pids_limit,
                certificates: self.overrides.certificates.clone(),
                ..RenderSettings::default()
            },
            gateway_authority: material.authority,
            api_server_authority: certificates,
            keys: material.keys,
        })
    }
}

fn is_same(one: &ClusterInfo, other: &ClusterInfo) -> bool {
    one.render == other.render
        && one.gateway_authority == other.gateway_authority
        && one.api_server_authority == other.api_server_authority
        && Arc::ptr_eq(&one.keys, &other.keys)
}

/// The stream yields an item at every change of any of them.
fn watch_all(client: &Client, system_namespace: &str) -> (Stores, BoxStream<'static, ()>) {
    let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    let (namespace, name) = API_SERVER_SERVICE;
    let (gateway, one) =
        reflect(Api::namespaced(client.clone(), system_namespace), named(GATEWAY), drop_managed_fields);
    let (api_server, two) = reflect(Api::namespaced(client.clone(), namespace), named(name), drop_managed_fields);
    let (endpoints, three) = reflect(Api::namespaced(client.clone(), namespace), named(name), drop_managed_fields);
    let (certificates, four) =
        reflect(Api::namespaced(client.clone(), system_namespace), named(ROOT_CA_CONFIG_MAP), drop_managed_fields);
    let (sandboxes, five) = reflect(Api::all(client.clone()), named(SANDBOX_CRD), drop_schema);
    let sandboxes_listed = Arc::new(AtomicBool::new(false));
    let listed = Arc::clone(&sandboxes_listed);
    let five = five.inspect(move |()| listed.store(true, Ordering::Relaxed));
    let watched = Stores { gateway, api_server, endpoints, certificates, sandboxes, sandboxes_listed };
    let changes = stream::select_all([one.boxed(), two.boxed(), three.boxed(), four.boxed(), five.boxed()]);
    (watched, changes.boxed())
}

fn reflect<K>(
    api: Api<K>,
    config: watcher::Config,
    trim: fn(&mut K),
) -> (Store<K>, impl Stream<Item = ()> + Send + use<K>)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let (reader, writer) = store();
    let events = watcher(api, config).default_backoff().modify(trim).reflect(writer);
    let changes = events
        .inspect_err(|error| {
            tracing::warn!(kind = %K::kind(&()), %error, "the watch was interrupted; it is started again");
        })
        // While a list is incomplete, the store still has its former content.
        .filter_map(async |event| match event {
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) | Err(_) => None,
            Ok(_) => Some(()),
        });
    (reader, changes)
}

fn drop_managed_fields<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// The CRD embeds the schema of a pod, which is half a megabyte.
fn drop_schema(definition: &mut CustomResourceDefinition) {
    drop_managed_fields(definition);
    definition.metadata.annotations = None;
    for version in &mut definition.spec.versions {
        version.schema = None;
    }
}
