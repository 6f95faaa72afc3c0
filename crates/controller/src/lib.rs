//! Realises runs on Kubernetes.
//!
//! An `AgentRun` is admitted again, planned once, and made: identities without rights, what holds the pod in, rights, and
//! last the pod. When it is over everything that it could do is taken back, and that is checked and written down. The
//! controller decides nothing about powers: `sympozium-plan` does.
//!
//! * [`world`] watches the cluster, one watch for each kind; [`context`] is what every reconciler has.
//! * `run` is a run from its first look to the proof that nothing of it is left. Start reading at `run::reconcile`.
//! * `packs`, `agents`, `policies` and `unserved` keep the status of their kinds; `sweep` finds what no run owns any more.
//! * `surroundings` knows the gateway, the API server and the nodes; `certificates` makes what the gateway serves with.
//! * `leader`, `probes`, `metrics`, `program` are the process around it.
//! * [`rights`] is what the ServiceAccount may do; manifests are made from it, and a test holds it against the audit log.
//!
//! It must never read a Secret that it did not make, apply over an object that is there, or delete one that is not the
//! run's by its UID.

#![warn(missing_docs)]

pub mod agents;
pub mod arguments;
pub mod certificates;
mod conditions;
pub mod context;
mod dispatch;
mod fair;
pub mod leader;
pub mod metrics;
pub mod packs;
pub mod policies;
pub mod probes;
pub mod program;
mod random;
pub mod rights;
pub mod run;
pub mod settings;
pub mod surroundings;
pub mod sweep;
pub mod unserved;
pub mod work;
pub mod world;
