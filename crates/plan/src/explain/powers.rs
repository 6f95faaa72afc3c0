//! An explanation as one flat list, so that two can be compared power by power.

mod list;

use serde::Serialize;
use sympozium_api::run_plan::Gate;

use super::Explanation;
use super::bounds::tool_name;
use super::files::Access;
use super::tools::Arguments;
use crate::quantity::Amount;
use list::{List, add_grant};

/// Single rights that one rule is taken apart into. A larger one is compared as a whole.
pub const MAX_SINGLE_RIGHTS: usize = 4_096;

/// What a power is about. The order is the order of danger, in which changes are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Section {
    /// The node that the run is on.
    Node,
    /// Rights at the Kubernetes API.
    Kubernetes,
    /// Secrets.
    Secrets,
    /// Hosts.
    Network,
    /// Tools.
    Tools,
    /// Who decides.
    Approval,
    /// What need not be enforced.
    Isolation,
    /// Mounts.
    Files,
    /// Runs that this one may start.
    SubRuns,
    /// How long.
    Lifetime,
    /// How much.
    Limits,
    /// What the run is made of. A change here gives no power by itself.
    MadeOf,
}

impl Section {
    /// All of them, in order.
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

    /// As a heading.
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
            Self::MadeOf => "Made of (no power by itself)",
        }
    }
}

/// One thing that a run may do, has, or is made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Power {
    /// What it is about.
    pub section: Section,
    /// Whether more rights follow from it, so that it is shown first.
    #[serde(skip)]
    pub is_heavy: bool,
    /// Whose: a part, a pack; empty for the run's.
    pub of: String,
    /// What. Together with the section and the owner it says which power this is.
    pub what: String,
    /// How much of it, where that can change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What follows from it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub means: Vec<String>,
    /// How much more than another value this one is.
    #[serde(skip)]
    pub rank: Option<u128>,
}

impl Power {
    /// Which power it is, whatever its value.
    pub fn key(&self) -> (Section, &str, &str) {
        (self.section, &self.of, &self.what)
    }
}

impl Explanation {
    /// Everything that the run may do, has, or is made of, each once, the most dangerous first.
    pub fn powers(&self) -> Vec<Power> {
        let mut list = List::default();
        self.add_acting(&mut list);
        self.add_held(&mut list);
        self.add_bounds(&mut list);
        self.add_made_of(&mut list);
        let mut powers = list.0;
        powers.sort_by(|a, b| {
            let order = |it: &Power| (it.section, !it.is_heavy);
            order(a).cmp(&order(b)).then_with(|| a.key().cmp(&b.key()))
        });
        // Two rules may give the same; of two values the greater one counts.
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

    fn add_acting(&self, list: &mut List) {
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
        for egress in &self.network.pod.egress {
            list.add(Section::Network, "pod", egress);
        }
        for tool in self.tools.iter().filter(|it| it.gate != Gate::Deny) {
            let owner = tool.pack.as_deref().unwrap_or_default();
            let (value, rank) = match tool.gate {
                Gate::Allow => ("allowed", 2),
                Gate::Ask => ("a person is asked", 1),
                Gate::Deny => ("denied", 0),
            };
            list.valued(Section::Tools, owner, &tool.tool, value, Some(rank));
            if tool.arguments == Arguments::FreeText {
                let what = format!("free text as arguments of {}", tool.tool);
                list.add(Section::Tools, owner, &what);
            }
            if !tool.program.is_empty() {
                let what = format!("program of {}", tool.tool);
                let program = tool.program.join(" ");
                list.valued(Section::MadeOf, owner, &what, &program, None);
            }
        }
    }

    fn add_held(&self, list: &mut List) {
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
                // The name of an account has the run's UID in it, which says nothing about powers.
                let what = match mount.what.starts_with("token of ServiceAccount") {
                    true => "token of its ServiceAccount",
                    false => &mount.what,
                };
                let what = match &mount.sub_path {
                    Some(sub) => format!("{}: {sub} of {what}", mount.path),
                    None => format!("{}: {what}", mount.path),
                };
                list.valued(Section::Files, &part.part, &what, value, Some(rank));
            }
        }
    }

    fn add_bounds(&self, list: &mut List) {
        for guarantee in &self.isolation.not_required {
            let what = format!("may run where nothing enforces {guarantee}");
            list.add(Section::Isolation, "", &what);
        }
        if self.approval.is_asked {
            for approver in &self.approval.approvers {
                let what = format!("{approver} may decide");
                list.add(Section::Approval, "", &what);
            }
            let required = self.approval.required;
            let rank = u128::from(u32::MAX - required);
            let value = required.to_string();
            list.valued(
                Section::Approval,
                "",
                "how many must agree",
                &value,
                Some(rank),
            );
            for (holds, what) in [
                (
                    self.approval.run_scope,
                    "one yes may be for every repetition",
                ),
                (
                    self.approval.run_author,
                    "whoever started the run may approve it",
                ),
            ] {
                if holds {
                    list.add(Section::Approval, "", what);
                }
            }
        }
        if let Some(sub) = &self.limits.sub_runs {
            for (what, number) in [
                ("levels of runs below this one", sub.levels),
                ("runs at a time in the tree", sub.concurrent),
                ("runs of its own", sub.children),
            ] {
                list.number(Section::SubRuns, "", what, Some(u64::from(number)));
            }
        }
        self.add_times(list);
        self.add_limits(list);
    }

    fn add_times(&self, list: &mut List) {
        let times = &self.lifetime.deadlines;
        for (what, seconds) in [
            ("seconds that the agent may work", times.run_seconds),
            ("seconds that a question waits", times.approval_seconds),
            ("seconds of waiting in all", times.waiting_seconds),
            (
                "seconds until the agent must be there",
                times.connect_seconds,
            ),
            ("seconds to end in", times.grace_seconds),
            ("seconds after which everything ends", times.ceiling_seconds),
        ] {
            list.number(Section::Lifetime, "", what, Some(seconds));
        }
        if let Some(seconds) = self.lifetime.token_seconds {
            let what = "seconds that a token is good for";
            list.number(Section::Lifetime, "", what, Some(seconds));
        }
        for what in &self.lifetime.outlasts {
            list.add(Section::Lifetime, "", what);
        }
    }

    fn add_limits(&self, list: &mut List) {
        let run = &self.limits.run;
        for (what, number) in [
            ("rounds", Some(u64::from(run.iterations))),
            ("requests to the model", Some(u64::from(run.model_requests))),
            (
                "requests to the model in a minute",
                Some(u64::from(run.model_requests_per_minute)),
            ),
            (
                "bytes of a request to the model",
                Some(run.model_request_bytes),
            ),
            (
                "bytes of an answer of the model",
                Some(run.model_answer_bytes),
            ),
            ("tokens of the model", run.model_tokens),
            ("calls of tools", Some(u64::from(run.tool_calls))),
            (
                "calls of tools at a time",
                Some(u64::from(run.concurrent_tool_calls)),
            ),
            ("bytes of the result", Some(run.result_bytes)),
            ("bytes of the transcript", Some(run.transcript_bytes)),
        ] {
            list.number(Section::Limits, "", what, number);
        }
        for part in &self.limits.parts {
            let amounts = &part.amounts;
            for (what, amount) in [
                ("CPU", &amounts.cpu_limit),
                ("memory", &amounts.memory_limit),
            ] {
                let text = amount.to_string();
                let rank = Amount::parse(&text).ok().map(Amount::billionths);
                list.valued(Section::Limits, &part.part, what, &text, rank);
            }
            if part.timeout_seconds.is_some() {
                let seconds = part.timeout_seconds;
                list.number(Section::Limits, &part.part, "seconds", seconds);
            }
        }
        let offered = self.tools.iter().filter(|it| it.gate != Gate::Deny);
        let offered: Vec<String> = offered
            .map(|it| tool_name(it.pack.as_deref(), &it.tool))
            .collect();
        let tools = self.limits.tools.iter();
        for tool in tools.filter(|it| offered.contains(&it.tool)) {
            let limits = &tool.limits;
            for (what, number) in [
                ("seconds of a call", limits.timeout_seconds),
                ("bytes of arguments", limits.argument_bytes),
                ("bytes of an answer", limits.output_bytes),
                ("calls at a time", limits.concurrent),
                ("calls in a minute", limits.per_minute),
            ] {
                list.number(Section::Limits, &tool.tool, what, Some(u64::from(number)));
            }
        }
    }

    fn add_made_of(&self, list: &mut List) {
        let made = Section::MadeOf;
        list.valued(made, "", "agent", &self.run.agent, None);
        list.valued(made, "", "workload", self.run.workload, None);
        let model = format!("{}/{}", self.model.provider, self.model.model);
        list.valued(made, "", "model", &model, None);
        if let Some(endpoint) = &self.model.endpoint {
            list.valued(made, "", "endpoint of the model", endpoint, None);
        }
        list.valued(made, "", "seccomp profile", &self.isolation.seccomp, None);
        let class = self.isolation.runtime_class.as_deref();
        let class = class.unwrap_or("the cluster's default");
        list.valued(made, "", "RuntimeClass", class, None);
        for part in &self.parts {
            list.valued(made, &part.part, "image", &part.image, None);
            let executor = format!("{:?}", part.executor).to_lowercase();
            list.valued(made, &part.part, "executor", &executor, None);
            if !part.command.is_empty() {
                let command = part.command.join(" ");
                list.valued(made, &part.part, "command", &command, None);
            }
            for variable in &part.environment {
                let what = format!("variable {}", variable.name);
                list.add(made, &part.part, &what);
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
            list.valued(made, owner, &what, digest, None);
        }
    }
}
