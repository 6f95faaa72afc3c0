//! Tools with their features, isolation, and bounds of resources and depth.

use serde_json::Value;
use sympozium_api::builtin_tool::BUILTIN_TOOLS;

use super::walk::{Untraced, Walk, demand, list, text};

/// Features that policies disable.
const FEATURES: &[&str] = &["browser-automation", "code-execution", "file-access", "sub-agents"];
/// Built-in tools, which no pack may declare, with the feature that each needs.
const TOOLS: &[(&str, Option<&str>)] = &[
    ("edit_file", Some("file-access")),
    ("fetch_url", None),
    ("list_directory", Some("file-access")),
    ("load_skill", None),
    ("read_file", Some("file-access")),
    ("schedule_task", None),
    ("send_channel_message", None),
    ("spawn_subagents", Some("sub-agents")),
    ("write_file", Some("file-access")),
];
const COMMAND: &str = "execute_command";
/// Handlers of RuntimeClasses that give a pod its own kernel.
const KERNELS: &[&str] = &["runsc", "kata"];

impl Walk<'_> {
    /// Whether the agent may call one of these tools.
    pub fn has_tool(&self, names: &[&str]) -> bool {
        list(&self.plan["tools"])
            .iter()
            .any(|tool| tool["pack"].is_null() && tool["gate"] != "deny" && names.contains(&text(&tool["name"])))
    }

    /// Every tool that can be called: its feature is enabled, and no rule denies it.
    pub fn tools(&self) -> Result<(), Untraced> {
        let tools = list(&self.plan["tools"]);
        for (index, tool) in tools.iter().enumerate() {
            let name = text(&tool["name"]);
            let what = || format!("the tool {name} of {}", tool["pack"]);
            let native = TOOLS.iter().find(|(tool, _)| *tool == name);
            let is_ours = native.is_some() || name == COMMAND;
            let mut before = tools[..index].iter();
            let is_twin = before.any(|other| other["name"] == name && other["pack"] != tool["pack"]);
            demand(tool["pack"].is_null() == native.is_some(), what)?;
            demand(!is_twin || is_ours, what)?;
            if tool["gate"] == "deny" {
                continue;
            }
            let feature = native.map_or(Some("code-execution"), |(_, feature)| *feature);
            demand(!feature.is_some_and(|feature| self.is_closed(feature)), what)?;
            let denied = list(self.get(self.run, "/spec/toolPolicy/deny"));
            demand(!denied.iter().any(|denied| denied == name), what)?;
            if native.is_some() {
                self.gate(tool)?;
            }
        }
        Ok(())
    }

    /// A built-in tool has the gate `ask` where a policy requires that, and `deny` where one does.
    fn gate(&self, tool: &Value) -> Result<(), Untraced> {
        for policy in [self.policy, self.floor] {
            let gating = self.get(policy, "/spec/toolGating");
            let mut rules = list(&gating["rules"]).iter();
            let rule = rules.find(|rule| rule["tool"] == tool["name"]);
            // Skills are attached to be read: the default for tools without a rule does not apply to that.
            let usual = if tool["name"] == "load_skill" { &Value::Null } else { &gating["defaultAction"] };
            let action = rule.map_or(usual, |rule| &rule["action"]);
            let is_closed = action == "deny" || (action == "ask" && tool["gate"] != "ask");
            demand(!is_closed, || format!("{} without {action}", tool["name"]))?;
        }
        Ok(())
    }

    /// The isolation of every command: as strict as both policies require.
    pub fn isolation(&mut self) -> Result<(), Untraced> {
        let parts = list(&self.plan["parts"]);
        let isolation = &self.plan["isolation"];
        let is_sandbox = self.plan["workload"]["kind"] == "sandbox";
        let has_sandbox = parts.iter().any(|part| part["role"]["kind"] == "sandbox");
        let is_closed = has_sandbox && self.is_closed("code-execution");
        demand(!is_closed, || "a sandbox without commands".to_owned())?;
        self.seccomp(&isolation["seccomp"])?;
        for policy in [self.policy, self.floor] {
            let policy = self.get(policy, "/spec/sandboxPolicy");
            let demanded = list(&policy["minimumIsolation"]);
            let floor = list(&isolation["floor"]);
            let missing = demanded.iter().find(|guarantee| !floor.contains(guarantee));
            demand(missing.is_none(), || format!("{missing:?} is not demanded"))?;
            let is_required = policy["required"] == true;
            demand(!is_required || is_sandbox || has_sandbox, || "no sandbox".to_owned())?;
            let agent_sandbox = &policy["agentSandboxPolicy"];
            let is_required = agent_sandbox["required"] == true;
            demand(!is_required || is_sandbox, || "no agent-sandbox".to_owned())?;
            let classes = &agent_sandbox["allowedRuntimeClasses"];
            let class = &isolation["runtimeClass"];
            let is_listed = !is_sandbox || classes.is_null() || list(classes).contains(class);
            demand(is_listed, || format!("the RuntimeClass {class}"))?;
        }
        let floor = list(&isolation["floor"]);
        let handler = text(&isolation["kernel"]["handler"]);
        let has_kernel = !floor.iter().any(|guarantee| guarantee == "kernel") || KERNELS.contains(&handler);
        demand(has_kernel, || "the kernel of the node".to_owned())?;
        let is_attested = |part: &Value| part["role"]["kind"] != "skill" || part["start"]["executor"].is_string();
        let needs_executor = floor.iter().any(|guarantee| guarantee != "kernel");
        let stranger = parts.iter().find(|part| needs_executor && !is_attested(part));
        demand(stranger.is_none(), || format!("{stranger:?} attests nothing"))?;
        // The generated installations do not have these services.
        let served = self.plan["workload"]["warmPool"].is_null() && self.plan["task"]["mode"] != "server";
        demand(served, || "a warm pool or a server".to_owned())
    }

    /// The seccomp filter: that of the runtime, or a file of the node that the policies name. A run can choose it where
    /// the agent's own policy names it, and not where only the floor does.
    fn seccomp(&mut self, filter: &Value) -> Result<(), Untraced> {
        let what = || format!("the filter {filter}");
        let is_it = |profile: &Value| {
            profile["type"] == filter["type"] && profile["localhostProfile"] == filter["localhostProfile"]
        };
        let field = "/spec/sandboxPolicy/seccompProfile";
        for policy in [self.policy, self.floor] {
            let named = self.get(policy, field);
            demand(named.is_null() || is_it(named), what)?;
        }
        let file = &filter["localhostProfile"];
        match text(&filter["type"]) {
            "RuntimeDefault" => demand(file.is_null(), what),
            "Localhost" => {
                let sandbox = self.get(self.run, "/spec/sandbox");
                let is_chosen = sandbox["enabled"] == true && is_it(&sandbox["securityContext"]["seccompProfile"]);
                let mut by = vec![self.policy];
                by.extend((!is_chosen).then_some(self.floor));
                by.retain(|policy| is_it(self.get(*policy, field)));
                demand(!text(file).is_empty() && !by.is_empty(), what)?;
                if let [policy] = by[..] {
                    self.by(policy, field);
                }
                Ok(())
            }
            _ => demand(false, what),
        }
    }

    /// Resources and depth, as far as policies and the agent bound them. Every feature that a policy disables exists.
    pub fn bounds(&self) -> Result<(), Untraced> {
        let parent = &self.plan["run"]["parent"];
        let is_closed = !parent.is_null() && self.is_closed("sub-agents");
        demand(!is_closed, || "a run that another started".to_owned())?;
        let depth = parent["spawnDepth"].as_u64().unwrap_or(0);
        let most = [
            self.get(self.agent, "/spec/agents/default/subagents/maxDepth"),
            self.get(self.policy, "/spec/subagentPolicy/maxDepth"),
            self.get(self.floor, "/spec/subagentPolicy/maxDepth"),
        ];
        let mut most = most.iter().filter_map(|limit| limit.as_u64());
        demand(most.all(|limit| depth <= limit), || format!("{depth} levels"))?;
        for part in list(&self.plan["parts"]) {
            let amounts = &part["amounts"];
            // No amount of a container is none: it could use the whole node.
            let is_bounded = ["cpuLimit", "memoryLimit"].iter().all(|limit| quantity(&amounts[limit]) > 0.0);
            demand(is_bounded, || format!("{} with {amounts}", part["name"]))?;
        }
        for policy in [self.policy, self.floor] {
            let gates = self.get(policy, "/spec/featureGates").as_object();
            let mut closed = gates.into_iter().flatten().filter(|(_, open)| **open == false);
            let unknown = closed.find(|(name, _)| !FEATURES.contains(&name.as_str()));
            demand(unknown.is_none(), || format!("{unknown:?} is no feature"))?;
            for (most, amount) in [("maxCPU", "cpuLimit"), ("maxMemory", "memoryLimit")] {
                let most = self.get(policy, &format!("/spec/sandboxPolicy/{most}"));
                let parts = list(&self.plan["parts"]).iter();
                let lasting = parts.filter(|part| !matches!(text(&part["role"]["kind"]), "preRun" | "postRun"));
                let used: f64 = lasting.map(|part| quantity(&part["amounts"][amount])).sum();
                // A small tolerance for sums of fractions.
                let is_within = most.is_null() || used <= quantity(most) * 1.000_001;
                demand(is_within, || format!("{used} of {amount}"))?;
            }
        }
        Ok(())
    }
}

/// A Kubernetes quantity, as far as generated runs have them.
fn quantity(value: &Value) -> f64 {
    if let Some(number) = value.as_f64() {
        return number;
    }
    let written = text(value);
    let end = written.find(|character: char| !character.is_ascii_digit() && character != '.');
    let (number, unit) = written.split_at(end.unwrap_or(written.len()));
    let unit = match unit {
        "" => 1.0,
        "m" => 0.001,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        _ => panic!("{written} has another unit"),
    };
    number.parse::<f64>().expect("a number") * unit
}

/// The table says by itself which feature a tool needs, so that a mistake in the product's table is noticed. A tool that
/// is missing here would be traced as one of a pack.
#[test]
fn every_builtin_tool_is_in_the_table() {
    let offered = BUILTIN_TOOLS.iter().filter(|tool| tool.offer.is_some() && tool.name != COMMAND);
    let mut offered: Vec<_> = offered.map(|tool| (tool.name, tool.feature.map(|feature| feature.as_str()))).collect();
    offered.sort_unstable();
    assert_eq!(TOOLS, offered);
}
