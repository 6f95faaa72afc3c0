//! Labels, annotations, finalizers and field managers of our objects.

/// The API group of every kind here.
pub const GROUP: &str = "sympozium.ai";
/// The only version.
pub const VERSION: &str = "v1alpha1";
/// Group and version, as in objects.
pub const API_VERSION: &str = "sympozium.ai/v1alpha1";
/// `kubectl get sympozium` lists every kind of this category.
pub const CATEGORY: &str = "sympozium";
/// The namespace of the controller, the built-in packs and the policy floor.
pub const SYSTEM_NAMESPACE: &str = "sympozium-system";
/// The policy in [`SYSTEM_NAMESPACE`] that applies to every run, whatever policy its agent names.
pub const FLOOR_POLICY: &str = "floor";

// Labels that existing tools and selectors use.

/// The agent's name, on runs, pods, claims and Services. It is `instance` because manifests in use select by it.
pub const AGENT: &str = "sympozium.ai/instance";
/// The run's name, on everything that is created for it. For searching only; name and UID in the run's status decide.
pub const RUN: &str = "sympozium.ai/agent-run";
/// The purpose of an object; see [`component`].
pub const COMPONENT: &str = "sympozium.ai/component";
/// `agent` on pods of runs: the selector of NetworkPolicies.
pub const ROLE: &str = "sympozium.ai/role";
/// `true` on Sandboxes and their pods.
pub const AGENT_SANDBOX: &str = "sympozium.ai/agent-sandbox";
/// The pack, on objects of one skill of a run.
pub const SKILL: &str = "sympozium.ai/skill";
/// The pack, on a ConfigMap that is generated from it.
pub const SKILL_PACK: &str = "sympozium.ai/skillpack";
/// [`MANAGER`] on objects that the controller creates and deletes.
pub const MANAGED_BY: &str = "sympozium.ai/managed-by";
/// The value of [`MANAGED_BY`].
pub const MANAGER: &str = "sympozium";
/// The schedule that created a run.
pub const SCHEDULE: &str = "sympozium.ai/schedule";
/// The type of that schedule.
pub const SCHEDULE_TYPE: &str = "sympozium.ai/type";
/// Where a run came from: `channel`, `web-proxy`, `cli`, `schedule`, `sub-agent`.
pub const SOURCE: &str = "sympozium.ai/source";
/// The run that started this one.
pub const PARENT_RUN: &str = "sympozium.ai/parent-run";
/// The agent id of a sub-agent's run.
pub const AGENT_ID: &str = "sympozium.ai/agent-id";
/// An explicit provider, on an agent.
pub const PROVIDER: &str = "sympozium.ai/provider";
/// `true` on objects that we ship.
pub const BUILTIN: &str = "sympozium.ai/builtin";
/// The category of a pack, for selectors.
pub const PACK_CATEGORY: &str = "sympozium.ai/category";
/// The standard label of the product that an object is part of.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// The standard label of the program that manages an object.
pub const APP_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`APP_MANAGED_BY`] on pods and other workloads.
pub const CONTROLLER: &str = "sympozium-controller";

// Our own labels.

/// The maturity of a pack: `stable`, `beta` or `alpha`. A printer column has it.
pub const MATURITY: &str = "sympozium.ai/maturity";
/// The run's UID, on everything that is created for it: names are reused, UIDs are not.
pub const RUN_UID: &str = "sympozium.ai/run-uid";

/// The values of [`COMPONENT`].
pub mod component {
    /// The pod of a run.
    pub const AGENT_RUN: &str = "agent-run";
    /// The workload of a run in server mode.
    pub const AGENT_SERVER: &str = "agent-server";
    /// The Job of the hooks after a run.
    pub const POST_RUN: &str = "post-run";
    /// The claim of a workspace.
    pub const WORKSPACE: &str = "workspace";
    /// Objects for hooks.
    pub const LIFECYCLE: &str = "lifecycle";
    /// The ConfigMap that is generated from a pack.
    pub const SKILL_PACK: &str = "skillpack";
    /// The stored plan of a run.
    pub const PLAN: &str = "plan";
    /// The input of one part of a run, at `/run/sympozium`.
    pub const RUN_INPUT: &str = "run-input";
    /// Grants of a skill during its run.
    pub const GRANT: &str = "grant";
    /// Memory of an agent.
    pub const MEMORY: &str = "memory";
    /// A chat connection.
    pub const CHANNEL: &str = "channel";
    /// A web endpoint.
    pub const WEB_ENDPOINT: &str = "web-endpoint";
    /// A pool of warm sandboxes.
    pub const WARM_POOL: &str = "warm-pool";
}

/// Prefixes of annotations that a platform writes on ServiceAccounts and claims, ours included: for volume binding, and
/// for OpenShift's pull secrets. None of them gives an identity.
pub const PLATFORM_ANNOTATIONS: &[&str] =
    &["openshift.io/", "pv.kubernetes.io/", "volume.beta.kubernetes.io/", "volume.kubernetes.io/"];

/// Annotations.
pub mod annotation {
    /// The user who created a run or a pack, as the webhook saw them. Only the webhook may write it.
    pub const CREATED_BY: &str = "sympozium.ai/created-by";
    /// The digest of the plan, on objects that were rendered from it.
    pub const PLAN_DIGEST: &str = "sympozium.ai/plan-digest";
    /// The verdict of a gate hook about a result.
    pub const GATE_VERDICT: &str = "sympozium.ai/gate-verdict";
    /// The channel that an answer goes back to.
    pub const REPLY_CHANNEL: &str = "sympozium.ai/reply-channel";
    /// The chat that an answer goes back to.
    pub const REPLY_CHAT: &str = "sympozium.ai/reply-chat-id";
    /// The thread that an answer goes back to.
    pub const REPLY_THREAD: &str = "sympozium.ai/reply-thread-id";
    /// The trace that a run belongs to.
    pub const TRACE_PARENT: &str = "otel.dev/traceparent";
}

/// Finalizers: what must be undone before an object may be deleted.
pub mod finalizer {
    /// Of runs: grants and cluster-scoped objects.
    pub const RUN: &str = "sympozium.ai/agentrun-finalizer";
    /// Of agents.
    pub const AGENT: &str = "sympozium.ai/finalizer";
    /// Of packs.
    pub const SKILL_PACK: &str = "sympozium.ai/skillpack-finalizer";
    /// Of schedules.
    pub const SCHEDULE: &str = "sympozium.ai/schedule-finalizer";
    /// Of models.
    pub const MODEL: &str = "sympozium.ai/model-finalizer";
}

/// Field managers, one per writer.
pub mod field_manager {
    /// The controller.
    pub const CONTROLLER: &str = "sympozium-controller";
    /// The gateway, which writes `status.report` only.
    pub const GATEWAY: &str = "sympozium-gateway";
    /// The command line.
    pub const CLI: &str = "sympozium-cli";
}
