//! An explanation as one flat list, so that two can be compared power by power.

mod bounds;
mod list;

use serde::Serialize;
use sympozium_api::run_plan::Gate;
use sympozium_api::sandbox::ImagePullPolicy;

use super::Explanation;
use super::files::{Access, VolumeKind};
use super::overview::Executor;
use super::parts::{VariableInfo, VariableSource};
use super::tools::ArgumentCheck;
use list::{PowerList, add_grant};

/// Maximum number of single permissions that one rule is expanded into. A larger rule is compared as a whole.
pub const MAX_SINGLE_PERMISSIONS: usize = 4_096;

/// What a power is about. The order is the order of danger, in which changes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Section {
    /// Access to the node.
    Node,
    /// Permissions at the Kubernetes API.
    Kubernetes,
    /// Secrets that are read.
    Secrets,
    /// Hosts that are reached.
    Network,
    /// Tools that are offered.
    Tools,
    /// Who approves.
    Approval,
    /// Guarantees that are not required.
    Isolation,
    /// Mounts.
    Files,
    /// Runs that this one may start.
    SubRuns,
    /// Deadlines and lifetimes.
    Lifetime,
    /// Limits.
    Limits,
    /// Code and texts of the run. A change here gives no power by itself.
    MadeOf,
}

impl Section {
    /// All sections, in order.
    pub const ALL: [Self; 12] = [
        Self::Node,
        Self::Kubernetes,
        Self::Secrets,
        Self::Network,
        Self::Tools,
        Self::Approval,
        Self::Isolation,
        Self::Files,
        Self::SubRuns,
        Self::Lifetime,
        Self::Limits,
        Self::MadeOf,
    ];

    /// The heading of the section.
    pub fn title(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Kubernetes => "Kubernetes permissions",
            Self::Secrets => "Secrets",
            Self::Network => "Network",
            Self::Tools => "Tools",
            Self::Approval => "Approval",
            Self::Isolation => "Isolation",
            Self::Files => "Files",
            Self::SubRuns => "Runs of its own",
            Self::Lifetime => "Lifetime",
            Self::Limits => "Limits",
            Self::MadeOf => "Made of (code and texts; the powers are the same)",
        }
    }
}

/// One thing that a run may do, has, or is made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Power {
    /// What it is about.
    pub section: Section,
    /// Whether it leads to further permissions, so that it is printed first.
    #[serde(skip)]
    pub is_severe: bool,
    /// The part or pack that has it; empty for the run as a whole.
    pub of: String,
    /// What it is. Together with section and owner it identifies the power.
    pub what: String,
    /// Its extent, where that can change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its consequences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub means: Vec<String>,
    /// Orders values: a higher rank is more power.
    #[serde(skip)]
    pub rank: Option<u128>,
    /// Whether it is printed only when it changes.
    #[serde(skip)]
    pub is_detail: bool,
}

impl Power {
    /// Identifies the power, independently of its value.
    pub fn key(&self) -> (Section, &str, &str) {
        (self.section, &self.of, &self.what)
    }
}

impl Explanation {
    /// Everything that the run may do, has, or is made of, each once, the most dangerous first.
    pub fn powers(&self) -> Vec<Power> {
        let mut list = PowerList::default();
        self.add_actions(&mut list);
        self.add_secrets_and_files(&mut list);
        self.add_bounds(&mut list);
        self.add_components(&mut list);
        let mut powers = list.0;
        powers.sort_by(|a, b| {
            let order = |power: &Power| (power.section, !power.is_severe);
            order(a).cmp(&order(b)).then_with(|| a.key().cmp(&b.key()))
        });
        // Two rules may give the same power; the larger value counts.
        powers.dedup_by(|later, kept| {
            let same = later.key() == kept.key();
            if same && later.rank > kept.rank {
                kept.rank = later.rank;
                kept.value = later.value.take();
            }
            same
        });
        powers
    }

    fn add_actions(&self, list: &mut PowerList) {
        for part in &self.parts {
            for power in &part.node {
                list.add(Section::Node, &part.part, power);
            }
        }
        for identity in &self.kubernetes {
            for grant in &identity.grants {
                add_grant(list, identity, grant);
            }
        }
        for part in &self.network.parts {
            if part.any_public_host {
                list.add(Section::Network, &part.part, "any public host");
            }
            for host in &part.hosts {
                list.add(Section::Network, &part.part, host);
            }
            if part.node_network {
                list.add(Section::Node, &part.part, "whatever the node reaches");
            }
            if part.kubernetes_api {
                list.add(Section::Network, &part.part, "Kubernetes API");
            }
        }
        if !self.model.is_encrypted {
            let what = "requests to the model, with the key, not encrypted";
            list.add(Section::Network, "", what);
        }
        for egress in &self.network.pod.egress {
            list.add(Section::Network, "pod", egress);
        }
        for tool in self.tools.iter().filter(|tool| tool.gate != Gate::Deny) {
            let owner = tool.pack.as_deref().unwrap_or_default();
            let (value, rank) = match tool.gate {
                Gate::Allow => ("allowed", 2),
                Gate::Ask => ("a person is asked", 1),
                Gate::Deny => ("denied", 0),
            };
            list.add_value(Section::Tools, owner, &tool.tool, value, Some(rank));
            if tool.arguments == ArgumentCheck::FreeText {
                let what = format!("free text as arguments of {}", tool.tool);
                list.add(Section::Tools, owner, &what);
            }
            // What a schema accepts cannot be counted: any other schema may accept more.
            let what = format!("arguments of {}", tool.tool);
            list.add_detail(Section::Tools, owner, &what, &tool.arguments_digest);
            if !tool.program.is_empty() {
                let what = format!("program of {}", tool.tool);
                list.add_detail(Section::Tools, owner, &what, &format_command(&tool.program));
            }
        }
        for part in self.parts.iter().filter(|part| part.executor != Executor::Ours) {
            let command = match (part.command.is_empty(), part.executor) {
                (_, Executor::Injected) => "our executor".to_owned(),
                (true, _) => "what the image starts".to_owned(),
                (false, _) => format_command(&part.command),
            };
            list.add_detail(Section::Tools, &part.part, "command", &command);
        }
    }

    fn add_secrets_and_files(&self, list: &mut PowerList) {
        for secret in &self.secrets {
            for seen in &secret.seen {
                let owner = seen.part.as_deref().unwrap_or("kubelet");
                let what = format!("{}: {}", secret.secret, seen.how);
                list.add(Section::Secrets, owner, &what);
            }
        }
        for part in &self.parts {
            for mount in &part.mounts {
                let (value, rank) = match mount.access {
                    Access::ReadOnly => ("read", 0),
                    Access::ReadWrite => ("write", 1),
                };
                // The name of a ServiceAccount contains the run's UID, which is irrelevant for powers.
                let what = match mount.kind {
                    VolumeKind::Token => "token of its ServiceAccount",
                    _ => &mount.what,
                };
                let what = match &mount.sub_path {
                    Some(sub) => format!("{}: {sub} of {what}", mount.path),
                    None => format!("{}: {what}", mount.path),
                };
                list.add_value(Section::Files, &part.part, &what, value, Some(rank));
                // Which keys of a Secret, how much of a disk: other settings may give more.
                let what = format!("settings of what is at {}", mount.path);
                list.add_detail(Section::Files, &part.part, &what, &mount.digest);
            }
        }
    }

    fn add_components(&self, list: &mut PowerList) {
        let made = Section::MadeOf;
        list.add_value(made, "", "agent", &self.run.agent, None);
        list.add_value(made, "", "task", &self.run.task_digest, None);
        let settings = &self.model.settings_digest;
        list.add_value(made, "", "settings of the model", settings, None);
        let model = format!("{}/{}", self.model.provider, self.model.model);
        list.add_value(made, "", "model", &model, None);
        if let Some(endpoint) = &self.model.endpoint {
            list.add_value(made, "", "endpoint of the model", endpoint, None);
        }
        for part in &self.parts {
            list.add_value(made, &part.part, "image", &part.image, None);
            let pulled = part.image_pull_policy.map_or("by default", |policy| match policy {
                ImagePullPolicy::Always => "always",
                ImagePullPolicy::IfNotPresent => "if not present",
                ImagePullPolicy::Never => "never",
            });
            list.add_value(made, &part.part, "image is pulled", pulled, None);
            for variable in &part.environment {
                let what = format!("variable {}", variable.name);
                list.add_value(made, &part.part, &what, &format_variable(variable), None);
            }
            for port in &part.ports {
                list.add(made, &part.part, &format!("port {port}"));
            }
        }
        for skill in &self.skills {
            let owner = skill.pack.as_deref().unwrap_or_default();
            let name = skill.skill.as_deref().or(skill.config_map.as_deref());
            let what = format!("skill {}", name.unwrap_or_default());
            let digest = skill.digest.as_deref().unwrap_or("whatever it holds then");
            list.add_value(made, owner, &what, digest, None);
        }
    }
}

/// Formats a command line as JSON, so that different lists of words never look the same.
fn format_command(words: &[String]) -> String {
    serde_json::Value::from(words).to_string()
}

/// The value of a variable, or its digest.
fn format_variable(variable: &VariableInfo) -> String {
    match (&variable.from, &variable.digest) {
        (VariableSource::Value, digest) => digest.clone().unwrap_or_default(),
        (VariableSource::Secret(name, key), _) => format!("key {key} of Secret {name}"),
        (VariableSource::ConfigMap(name, key), _) => format!("key {key} of ConfigMap {name}"),
        (VariableSource::Pod, _) => "from the pod".to_owned(),
    }
}
