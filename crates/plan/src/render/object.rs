//! The objects that exist for runs: one type for all kinds.

use k8s_openapi::Resource as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, PodTemplateSpec, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use super::settings::SandboxVersion;

macro_rules! objects {
    ($($(#[$doc:meta])* $kind:ident),* $(,)?) => {
        /// One Kubernetes object of a run.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum Object {
            $($(#[$doc])* $kind(Box<$kind>),)*
            /// The workload of a run in agent-sandbox.
            Sandbox(Box<Sandbox>),
        }

        $(
            impl From<$kind> for Object {
                fn from(object: $kind) -> Self {
                    Self::$kind(Box::new(object))
                }
            }
        )*

        impl Object {
            /// Group and version.
            pub const fn api_version(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $kind::API_VERSION,)*
                    Self::Sandbox(sandbox) => sandbox.version.api_version(),
                }
            }

            /// The kind.
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $kind::KIND,)*
                    Self::Sandbox(_) => Sandbox::KIND,
                }
            }

            /// Name, labels, owner.
            pub const fn metadata(&self) -> &ObjectMeta {
                match self {
                    $(Self::$kind(object) => &object.metadata,)*
                    Self::Sandbox(sandbox) => &sandbox.metadata,
                }
            }
        }
    };
}

objects! {
    /// The plan, skill texts, the agent's view.
    ConfigMap,
    /// Input of a part that other parts must not read.
    Secret,
    /// The identity of a part.
    ServiceAccount,
    /// A workspace that outlives its pod.
    PersistentVolumeClaim,
    /// What the run's pods reach.
    NetworkPolicy,
    /// The permissions of an identity in the namespace.
    Role,
    /// Binds a Role to an identity.
    RoleBinding,
    /// The permissions of an identity in the cluster.
    ClusterRole,
    /// Binds a ClusterRole to an identity.
    ClusterRoleBinding,
    /// The workload of a run, or of its hooks.
    Job,
}

impl From<Sandbox> for Object {
    fn from(sandbox: Sandbox) -> Self {
        Self::Sandbox(Box::new(sandbox))
    }
}

/// A Sandbox of agent-sandbox, with the fields that we set.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    /// The API version that it is written for.
    pub version: SandboxVersion,
    /// Name, labels, owner.
    pub metadata: ObjectMeta,
    /// The pod. Of its metadata only labels and annotations are used.
    pub pod_template: PodTemplateSpec,
}

impl Object {
    /// The name; empty where it has none.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The namespace; `None` for cluster-scoped objects.
    pub fn namespace(&self) -> Option<&str> {
        self.metadata().namespace.as_deref()
    }

    /// The pod template, for kinds that have one.
    pub fn pod_template(&self) -> Option<&PodTemplateSpec> {
        match self {
            Self::Job(job) => job.spec.as_ref().map(|spec| &spec.template),
            Self::Sandbox(sandbox) => Some(&sandbox.pod_template),
            _ => None,
        }
    }

    /// The object as it is sent to the API server.
    ///
    /// # Errors
    ///
    /// Never for objects that [`render`](super::render) made.
    pub fn to_value(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }
}
