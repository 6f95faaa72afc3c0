//! The words on our objects: labels, annotations, finalizers, field managers.

/// The group of every kind here.
pub const GROUP: &str = "sympozium.ai";
/// The only version.
pub const VERSION: &str = "v1alpha1";
/// Group and version, as objects name them.
pub const API_VERSION: &str = "sympozium.ai/v1alpha1";
/// `kubectl get sympozium` lists every kind of this category.
pub const CATEGORY: &str = "sympozium";
/// Where the controller, the built-in packs and the floor policy live.
pub const SYSTEM_NAMESPACE: &str = "sympozium-system";
/// The policy in [`SYSTEM_NAMESPACE`] that every run is held to, whatever its agent names.
pub const FLOOR_POLICY: &str = "floor";

// Labels that existing tools and selectors know.

/// The agent's name, on runs, pods, claims and Services. It says `instance` because manifests in use select by it.
pub const AGENT: &str = "sympozium.ai/instance";
/// The run's name, on everything that is made for it. It finds; name and UID in the run's status decide.
pub const RUN: &str = "sympozium.ai/agent-run";
/// What an object is for; see [`component`].
pub const COMPONENT: &str = "sympozium.ai/component";
/// `agent` on pods of runs: the selector of NetworkPolicies.
pub const ROLE: &str = "sympozium.ai/role";
/// `true` on Sandboxes and their pods.
pub const AGENT_SANDBOX: &str = "sympozium.ai/agent-sandbox";
/// The pack, on what is made for one skill of a run.
pub const SKILL: &str = "sympozium.ai/skill";
/// The pack, on a ConfigMap made from it.
pub const SKILL_PACK: &str = "sympozium.ai/skillpack";
/// [`MANAGER`] on what the controller makes and removes.
pub const MANAGED_BY: &str = "sympozium.ai/managed-by";
/// The value of [`MANAGED_BY`].
pub const MANAGER: &str = "sympozium";
/// The schedule that made a run.
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
/// `true` on what we ship.
pub const BUILTIN: &str = "sympozium.ai/builtin";
/// The category of a pack, for selectors.
pub const PACK_CATEGORY: &str = "sympozium.ai/category";
/// The usual label of the product that an object is part of.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// The usual label of the program that manages an object.
pub const APP_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`APP_MANAGED_BY`] on pods and other workloads.
pub const CONTROLLER: &str = "sympozium-controller";

// Labels of ours.

/// How far a pack has come: `stable`, `beta` or `alpha`. A column shows it.
pub const MATURITY: &str = "sympozium.ai/maturity";
/// The run's UID, on everything that is made for it: names come back, UIDs do not.
pub const RUN_UID: &str = "sympozium.ai/run-uid";

/// The values of [`COMPONENT`].
pub mod component {
    /// The pod of a run.
    pub const AGENT_RUN: &str = "agent-run";
    /// The workload of a run in server mode.
    pub const AGENT_SERVER: &str = "agent-server";
    /// The Job of the hooks after a run.
    pub const POST_RUN: &str = "post-run";
    /// The claim that holds a workspace.
    pub const WORKSPACE: &str = "workspace";
    /// What hooks need.
    pub const LIFECYCLE: &str = "lifecycle";
    /// The ConfigMap made from a pack.
    pub const SKILL_PACK: &str = "skillpack";
    /// The stored plan of a run.
    pub const PLAN: &str = "plan";
    /// What one part of a run reads at `/run/sympozium`.
    pub const RUN_INPUT: &str = "run-input";
    /// Rights that a skill has while its run lasts.
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

/// Beginnings of annotations that a platform writes by itself on ServiceAccounts and claims, ours too: of what binds volumes, and of
/// OpenShift's pull secrets. None of them gives an identity.
pub const PLATFORM_ANNOTATIONS: &[&str] =
    &["openshift.io/", "pv.kubernetes.io/", "volume.beta.kubernetes.io/", "volume.kubernetes.io/"];

/// Annotations.
pub mod annotation {
    /// Who created a run or a pack, as the webhook saw them. Nobody else may write it.
    pub const CREATED_BY: &str = "sympozium.ai/created-by";
    /// The digest of the plan, on what was made from it.
    pub const PLAN_DIGEST: &str = "sympozium.ai/plan-digest";
    /// What a gate decided about an answer.
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

/// Finalizers: what must be undone before an object may go.
pub mod finalizer {
    /// Of runs: rights and cluster-scoped objects.
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
