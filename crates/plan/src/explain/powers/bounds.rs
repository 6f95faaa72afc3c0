//! Bounds as powers: a weaker bound is more power.

use sympozium_api::agent_run::Cleanup;
use sympozium_api::run_plan::Gate;

use super::list::PowerList;
use super::{Section, format_command};
use crate::explain::Explanation;
use crate::explain::bounds::UNCONFINED;
use crate::explain::overview::Executor;
use crate::explain::tools::ToolInfo;
use crate::quantity::ExactQuantity;

/// Whether a value isolates more or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weakness {
    Stronger,
    Weaker,
}

impl Explanation {
    pub(super) fn add_bounds(&self, list: &mut PowerList) {
        for guarantee in &self.isolation.not_required {
            let what = format!("may run where nothing enforces {guarantee}");
            list.add(Section::Isolation, "", &what);
        }
        self.add_isolation(list);
        if self.approval.is_asked {
            for approver in &self.approval.approvers {
                let what = format!("{approver} may decide");
                list.add(Section::Approval, "", &what);
            }
            let required = self.approval.required;
            let rank = u128::from(u32::MAX - required);
            let value = required.to_string();
            list.add_value(Section::Approval, "", "how many must agree", &value, Some(rank));
            for (holds, what) in [
                (self.approval.run_scope, "one yes may be for every repetition"),
                (self.approval.run_author, "the user who started the run may approve it"),
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
                list.add_limit(Section::SubRuns, "", what, Some(u64::from(number)));
            }
        }
        self.add_deadlines(list);
        self.add_limits(list);
    }

    /// Isolation besides guarantees. Of two values of the same rank it is not known which one isolates more.
    fn add_isolation(&self, list: &mut PowerList) {
        let isolation = &self.isolation;
        let mut add = |of: &str, what: &str, value: &str, rank: Weakness| {
            let rank = Some(u128::from(rank == Weakness::Weaker));
            list.add_value(Section::Isolation, of, what, value, rank);
        };
        let weaker_if = |is_weaker| if is_weaker { Weakness::Weaker } else { Weakness::Stronger };
        let is_job = self.run.workload == "Job";
        let workload = match &self.run.warm_pool {
            Some(pool) => format!("{} from pool {pool}", self.run.workload),
            None => self.run.workload.to_owned(),
        };
        add("", "workload", &workload, weaker_if(is_job));
        let is_open = isolation.seccomp == UNCONFINED;
        add("", "seccomp", &isolation.seccomp, weaker_if(is_open));
        let class = isolation.runtime_class.as_deref();
        let named = class.unwrap_or("the cluster's default");
        add("", "RuntimeClass", named, weaker_if(class.is_none()));
        let labels = isolation.node_selector.iter();
        let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
        let nodes = if labels.is_empty() { "any".to_owned() } else { format_command(&labels) };
        add("", "nodes", &nodes, weaker_if(labels.is_empty()));
        for part in &self.parts {
            let is_image = part.executor == Executor::Image;
            let word = part.executor.as_str();
            add(&part.part, "executor", word, weaker_if(is_image));
            if part.role == "postRun" {
                let (word, is_weaker) = match (part.is_gate, part.gate_default) {
                    (false, _) => ("no", true),
                    (true, Some(_)) => ("yes, and open without a verdict", true),
                    (true, None) => ("yes", false),
                };
                add(&part.part, "gate of the result", word, weaker_if(is_weaker));
            }
        }
    }

    fn add_deadlines(&self, list: &mut PowerList) {
        let times = &self.lifetime.deadlines;
        for (what, seconds) in [
            ("seconds that the agent may work", times.run_seconds),
            ("seconds that a question waits", times.approval_seconds),
            ("seconds of waiting in all", times.waiting_seconds),
            ("seconds for a pod to start in", times.start_seconds),
            ("seconds until the agent must be there", times.connect_seconds),
            ("seconds to end in", times.grace_seconds),
            ("seconds after which everything ends", times.ceiling_seconds),
        ] {
            list.add_limit(Section::Lifetime, "", what, Some(seconds));
        }
        if let Some(seconds) = self.lifetime.token_seconds {
            let what = "seconds that a token is good for";
            list.add_limit(Section::Lifetime, "", what, Some(seconds));
        }
        if let Some(seconds) = self.lifetime.after_run_seconds {
            let what = "seconds that hooks after the run may take";
            list.add_limit(Section::Lifetime, "", what, Some(seconds));
        }
        let (value, rank) = match self.lifetime.cleanup {
            Cleanup::Delete => ("deleted", 0),
            Cleanup::Keep => ("kept", 1),
        };
        list.add_value(Section::Lifetime, "", "the pod afterwards", value, Some(rank));
        for what in &self.lifetime.outlasts {
            list.add(Section::Lifetime, "", what);
        }
    }

    fn add_limits(&self, list: &mut PowerList) {
        let run = &self.limits.run;
        for (what, number) in [
            ("rounds", Some(u64::from(run.iterations))),
            ("requests to the model", Some(u64::from(run.model_requests))),
            ("requests to the model in a minute", Some(u64::from(run.model_requests_per_minute))),
            ("bytes of a request to the model", Some(run.model_request_bytes)),
            ("bytes of an answer of the model", Some(run.model_answer_bytes)),
            ("tokens of the model", run.model_tokens),
            ("calls of tools", Some(u64::from(run.tool_calls))),
            ("calls of tools at a time", Some(u64::from(run.concurrent_tool_calls))),
            ("bytes of the result", Some(run.result_bytes)),
            ("bytes of the transcript", Some(run.transcript_bytes)),
        ] {
            list.add_limit(Section::Limits, "", what, number);
        }
        for part in &self.limits.parts {
            let amounts = &part.amounts;
            for (what, amount) in [("CPU", &amounts.cpu_limit), ("memory", &amounts.memory_limit)] {
                let text = amount.to_string();
                let rank = ExactQuantity::parse(&text).ok().map(ExactQuantity::as_nanos);
                list.add_value(Section::Limits, &part.part, what, &text, rank);
            }
            if part.timeout_seconds.is_some() {
                let seconds = part.timeout_seconds;
                list.add_limit(Section::Limits, &part.part, "seconds", seconds);
            }
        }
        let offered = self.tools.iter().filter(|tool| tool.gate != Gate::Deny);
        let offered: Vec<String> = offered.map(ToolInfo::full_name).collect();
        let tools = self.limits.tools.iter();
        for tool in tools.filter(|tool| offered.contains(&tool.tool)) {
            let limits = &tool.limits;
            for (what, number) in [
                ("seconds of a call", limits.timeout_seconds),
                ("bytes of arguments", limits.argument_bytes),
                ("bytes of an answer", limits.output_bytes),
                ("calls at a time", limits.concurrent),
                ("calls in a minute", limits.per_minute),
            ] {
                list.add_limit(Section::Limits, &tool.tool, what, Some(u64::from(number)));
            }
        }
    }
}
