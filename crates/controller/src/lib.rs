//! The Kubernetes backend: realises runs as pods.
//!
//! An `AgentRun` is admitted again, planned once, and created: service accounts without permissions, the objects that
//! confine the pod, then its grants, and the pod last. When the run ends, everything that it could do is revoked; the
//! controller verifies that and records it in the status. The controller decides nothing about powers: `sympozium-plan`
//! does.
//!
//! * [`caches`] watches the cluster, one watch per kind; [`context`] is what every reconciler gets.
//! * `run` reconciles a run, from its first reconcile to the proof that nothing of it is left. Start at
//!   `run::reconcile`.
//! * `packs`, `agents`, `policies` and `admission_status` write the status of their kinds; `sweep` finds orphans.
//! * `cluster_info` discovers the gateway, the API server and the nodes; `certificates` manages the gateway's Secrets.
//! * `process_state`, `metrics` and `program` are the process around the reconcilers, with the shell of
//!   `sympozium-program`; `lease_store` is the Lease that leader election needs.
//! * [`permissions`] is what the ServiceAccount may do; manifests are generated from it, and a test compares it with
//!   the API server's audit log.
//!
//! The controller must never read a Secret that it did not create, apply over an existing object, or delete an object
//! that does not belong to the run by its UID.

pub mod admission_status;
pub mod agents;
pub mod arguments;
pub mod caches;
pub mod certificates;
pub mod cluster_info;
mod conditions;
pub mod context;
mod dispatch;
mod fair_queue;
mod lease_store;
pub mod metrics;
mod object_key;
pub mod packs;
pub mod permissions;
pub mod policies;
mod process_state;
pub mod program;
mod random;
pub mod reconcile_loop;
pub mod run;
pub mod settings;
pub mod status;
pub mod sweep;
