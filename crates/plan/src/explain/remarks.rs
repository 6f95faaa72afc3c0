//! Caveats that no table shows. Only those that apply to the run are returned.

use std::collections::BTreeSet;

use serde::Serialize;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::run_plan::{Gate, Part, PlanVolume, Role, RunPlan, SkillSource, ToolHandler, paths};

use super::files::{self, VolumeKind};
use super::overview::{Executor, executor_kind};
use super::tools::{ArgumentCheck, ToolInfo};
use super::{network, node, secrets, tools};
use crate::image::Image;

/// A caveat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remark {
    /// A stable identifier.
    pub id: &'static str,
    /// The text of the caveat.
    pub text: String,
}

pub fn collect_remarks(plan: &RunPlan) -> Vec<Remark> {
    let mut remarks = Vec::new();
    remark_node_access(plan, &mut remarks);
    remark_shared_node_access(plan, &mut remarks);
    remark_grants(plan, &mut remarks);
    remark_network(plan, &mut remarks);
    remark_commands(plan, &mut remarks);
    remark_sharing(plan, &mut remarks);
    remark_texts(plan, &mut remarks);
    remarks
}

fn add(remarks: &mut Vec<Remark>, id: &'static str, text: impl Into<String>) {
    let text = text.into();
    remarks.push(Remark { id, text });
}

/// Names of the parts that satisfy a predicate.
fn parts_where(plan: &RunPlan, holds: impl Fn(&Part) -> bool) -> Vec<String> {
    let found = plan.parts.iter().filter(|part| holds(part));
    found.map(|part| part.name.to_string()).collect()
}

fn remark_node_access(plan: &RunPlan, remarks: &mut Vec<Remark>) {
    let on_node = parts_where(plan, |part| !node::describe_node_access(plan, part).is_empty());
    if !on_node.is_empty() {
        let text = format!(
            "{} is not held by its container alone: what it has of the node can reach every pod and every credential on that node.",
            on_node.join(", ")
        );
        add(remarks, "node-access", text);
    }
}

/// Kubernetes gives some access to the node to a whole pod, whichever container it is for.
fn remark_shared_node_access(plan: &RunPlan, remarks: &mut Vec<Remark>) {
    if network::has_node_network(plan) {
        add(
            remarks,
            "node-network",
            "The node's network is given to a whole pod: every part is in it, and no NetworkPolicy holds there.",
        );
    }
    let mut access = plan.parts.iter().filter_map(|part| part.host_access.as_ref());
    if access.any(|access| access.enabled && access.host_pid) {
        add(
            remarks,
            "node-processes",
            "The node's processes are shown to a whole pod: every part sees them, and parts are one user there, so that each can read what the others hold, the keys of the bridge included.",
        );
    }
}

fn remark_grants(plan: &RunPlan, remarks: &mut Vec<Remark>) {
    let has_secrets = !secrets::all(plan).is_empty();
    if plan.identities.is_empty() && !has_secrets {
        return;
    }
    add(
        remarks,
        "creating-runs",
        "Every user who may create an AgentRun with these packs can use their rights: it is as strong as creating a pod that has them.",
    );
    let text = format!(
        "Every user who may create pods or read Secrets in namespace {} holds the rights of this run while it lasts.",
        plan.run.namespace
    );
    add(remarks, "namespace", text);
}

fn remark_network(plan: &RunPlan, remarks: &mut Vec<Remark>) {
    if let Some(endpoint) = &plan.model.endpoint {
        let text = format!(
            "Everything that the agent reads goes to the model at {}: task, files, answers of tools.",
            endpoint.host
        );
        add(remarks, "model-reads", text);
    }
    let public = plan.credentials.iter().filter(|credential| credential.reach.public);
    let mut public: Vec<String> = public.map(|to_string| to_string.part.to_string()).collect();
    public.dedup();
    if !public.is_empty() {
        let text = format!(
            "{} may reach any public host: what the run has read can be sent anywhere. `networkPolicy.denyAll` of a policy closes that.",
            public.join(", ")
        );
        add(remarks, "any-public-host", text);
    }
    if !plan.isolation.floor.contains(&Guarantee::Network) {
        add(
            remarks,
            "network-unenforced",
            "`network` is not in the floor: where the cluster enforces no NetworkPolicy, the run starts all the same and reports it.",
        );
    }
    if !plan.identities.is_empty() {
        add(
            remarks,
            "api-server-reachable",
            "A NetworkPolicy holds for the whole pod: every part can connect to the API server. Only those named have a token for it.",
        );
    }
}

fn remark_commands(plan: &RunPlan, remarks: &mut Vec<Remark>) {
    let tools = tools::all(plan);
    let offered = |tool: &&ToolInfo| tool.gate != Gate::Deny;
    let free = |tool: &&ToolInfo| offered(tool) && tool.arguments == ArgumentCheck::FreeText;
    if tools.iter().any(|tool| free(&tool)) {
        add(
            remarks,
            "free-text",
            "A tool that takes a command line can do whatever its container can. The gate sees the text of it, not what it does.",
        );
    }
    let native = plan.tools.iter();
    if native.filter(|tool| tool.gate != Gate::Deny).any(|tool| tool.acts == ToolHandler::Agent) {
        add(
            remarks,
            "native-file-tools",
            "For file tools of the agent the mount is the boundary: permits, questions and receipts of them bind an honest agent only.",
        );
    }
    let asks = plan.tools.iter().any(|tool| tool.gate == Gate::Ask);
    let shares = plan.parts.iter().any(mounts_workspace);
    if asks && shares {
        add(
            remarks,
            "approval-files",
            "An approval is for the exact call. Files in /workspace are not part of it: what a script there does can change after a yes.",
        );
    }
    let own = parts_where(plan, |part| executor_kind(&part.role, &part.start) == Executor::Image);
    if !own.is_empty() {
        let text = format!(
            "In {} runs what the image starts: isolation is that of the pod's spec, and nothing attests to more. `executor: injected` of a pack confines each command and reports what was live.",
            own.join(", ")
        );
        add(remarks, "not-attested", text);
    }
}

fn mounts_workspace(part: &Part) -> bool {
    let mut mounts = part.mounts.iter();
    mounts.any(|mount| mount.path.as_str() == paths::WORKSPACE)
}

fn remark_sharing(plan: &RunPlan, remarks: &mut Vec<Remark>) {
    let foreign = |part: &Part| !matches!(part.role, Role::Agent | Role::Bridge);
    if plan.parts.iter().any(foreign) {
        add(
            remarks,
            "shared-pod",
            "Parts of a pod share loopback, abstract sockets, System V IPC and message queues. Nothing of ours trusts those; an image of yours should not either.",
        );
    }
    let sharing = parts_where(plan, mounts_workspace);
    let writes = plan.parts.iter().any(|part| {
        let mut mounts = part.mounts.iter();
        mounts.any(|mount| mount.path.as_str() == paths::WORKSPACE && !mount.read_only)
    });
    if sharing.len() > 1 && writes {
        let text = format!(
            "{} share /workspace: each of them that may write there can leave code for the others to run.",
            sharing.join(", ")
        );
        add(remarks, "shared-workspace", text);
    }
    let lasting = plan.volumes.iter().filter_map(files::persistent_claim);
    let on_node = plan.volumes.iter().filter_map(node::node_path);
    let places: BTreeSet<String> = lasting.chain(on_node).collect();
    for place in places {
        let is_there = |volume: &PlanVolume| {
            let own = files::persistent_claim(volume).or_else(|| node::node_path(volume));
            own.as_ref() == Some(&place)
        };
        let sharing = parts_where(plan, |part| {
            let volumes = part.mounts.iter().map(|mount| plan.volume(&mount.volume));
            volumes.flatten().any(is_there)
        });
        if sharing.len() > 1 {
            let text = format!(
                "{} share {place}: each of them that may write there can leave code for the others to run.",
                sharing.join(", ")
            );
            add(remarks, "shared-volume", text);
        }
    }
    let kinds = plan.volumes.iter().map(|volume| files::volume_kind(&volume.source));
    if kinds.into_iter().any(|kind| kind == VolumeKind::Storage) {
        add(
            remarks,
            "storage",
            "Storage that is there before and after the run carries files from one run to the next, and to every other pod that mounts it.",
        );
    }
}

fn remark_texts(plan: &RunPlan, remarks: &mut Vec<Remark>) {
    let from_config_map = |source: &SkillSource| matches!(source, SkillSource::ConfigMap { .. });
    if plan.skills.iter().any(|skill| from_config_map(&skill.source)) {
        add(
            remarks,
            "texts-by-reference",
            "Texts from a ConfigMap are what it holds when the run starts. They are in no digest here.",
        );
    }
    let movable = parts_where(plan, |part| {
        let image = Image::parse(part.image.as_str());
        !image.is_ok_and(|image| image.digest().is_some())
    });
    if !movable.is_empty() {
        let text = format!(
            "Images of {} are named by tag: every user who may push to the registry decides what runs. A digest (`@sha256:…`) pins it.",
            movable.join(", ")
        );
        add(remarks, "image-tags", text);
    }
}
