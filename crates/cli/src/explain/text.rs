//! Explanations for people: the most important first, understandable without colour.

use std::collections::BTreeMap;

use sympozium_api::agent_run::Cleanup;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::run_plan::Gate;
use sympozium_plan::explain::{
    ActsBy, Arguments, Executor, Explanation, ToolAbout, VolumeKind, duration,
};
use sympozium_plan::rbac::{Implication, Scope, Weight};

use crate::page::Page;
use crate::planning::Planning;

/// Every run that could be explained, one after the other.
pub fn render(planning: &Planning<Explanation>) -> String {
    let mut page = Page::default();
    for (run, explanation) in planning.made() {
        page.blank();
        explained(&mut page, explanation, run.is_assumed);
    }
    page.finish()
}

fn explained(page: &mut Page, it: &Explanation, is_assumed: bool) {
    head(page, it, is_assumed);
    summary(page, it);
    tools(page, it);
    kubernetes(page, it);
    network(page, it);
    secrets(page, it);
    files(page, it);
    skills(page, it);
    parts(page, it);
    limits(page, it);
    isolation(page, it);
    lifetime(page, it);
    remarks(page, it);
}

fn head(page: &mut Page, it: &Explanation, is_assumed: bool) {
    let run = &it.run;
    let agent = format!("{} {}", run.agent_kind, run.agent);
    match is_assumed {
        true => page.line(
            0,
            &format!("The plainest run of {agent} in namespace {}", run.namespace),
        ),
        false => page.line(0, &format!("Run {}/{} of {agent}", run.namespace, run.name)),
    }
    let model = &it.model;
    let answers = match &model.endpoint {
        Some(endpoint) => format!("at {endpoint}"),
        None => "inside the bridge".to_owned(),
    };
    page.line(
        2,
        &format!("model {} of {}, {answers}", model.model, model.provider),
    );
    let policies: Vec<String> = run
        .made_from
        .iter()
        .filter(|it| it.kind == "SympoziumPolicy")
        .map(|it| format!("{}/{}", it.namespace, it.name))
        .collect();
    let policies = match policies.is_empty() {
        true => "base rules and the floor".to_owned(),
        false => format!("policy {}", policies.join(", ")),
    };
    let workload = match &run.warm_pool {
        Some(pool) => format!("a {} from pool {pool}", run.workload),
        None => format!("a {}", run.workload),
    };
    page.line(2, &format!("held to {policies}; made as {workload}"));
}

fn summary(page: &mut Page, it: &Explanation) {
    page.blank();
    let can = match it.summary.can.is_empty() {
        true => "do nothing but think".to_owned(),
        false => it.summary.can.join("; "),
    };
    page.line(0, &format!("This run can {can}."));
    page.line(0, &format!("It cannot {}.", it.summary.cannot.join("; ")));
}

fn tools(page: &mut Page, it: &Explanation) {
    page.section("Tools");
    let mut rows = Vec::new();
    for gate in [Gate::Allow, Gate::Ask] {
        for tool in it.tools.iter().filter(|it| it.gate == gate) {
            rows.push(vec![
                match gate {
                    Gate::Allow => "allow".to_owned(),
                    _ => "ask".to_owned(),
                },
                named(tool),
                acts(tool),
                match tool.arguments {
                    Arguments::FreeText => "FREE TEXT".to_owned(),
                    Arguments::Schema => "by schema".to_owned(),
                },
            ]);
        }
    }
    match rows.is_empty() {
        true => page.line(2, "None."),
        false => page.table(&["GATE", "TOOL", "WHO ACTS", "ARGUMENTS"], &rows),
    }
    let denied: Vec<String> = it
        .tools
        .iter()
        .filter(|it| it.gate == Gate::Deny)
        .map(named)
        .collect();
    if !denied.is_empty() {
        page.hanging(2, "denied: ", &denied.join(", "));
    }
    if it.approval.is_asked {
        let approval = &it.approval;
        let who = match approval.approvers.is_empty() {
            true => "nobody, so that every answer is no".to_owned(),
            false => approval.approvers.join(", "),
        };
        let mut words = format!("decided by {who}; {} must agree", approval.required);
        if !approval.run_author {
            words.push_str("; not whoever started the run");
        }
        if approval.run_scope {
            words.push_str("; one yes may be for every repetition of the identical call");
        }
        page.hanging(2, "ask: ", &words);
    }
}

fn named(tool: &ToolAbout) -> String {
    match &tool.pack {
        Some(pack) => format!("{pack}/{}", tool.tool),
        None => tool.tool.clone(),
    }
}

fn acts(tool: &ToolAbout) -> String {
    let part = tool.part.as_deref().unwrap_or_default();
    match tool.by {
        ActsBy::Agent => "the agent itself".to_owned(),
        ActsBy::Bridge => "the bridge".to_owned(),
        ActsBy::Shell => format!("a shell in {part}"),
        ActsBy::Program => format!("{} in {part}", tool.program.join(" ")),
    }
}

fn kubernetes(page: &mut Page, it: &Explanation) {
    page.section("Kubernetes permissions");
    if it.kubernetes.is_empty() {
        page.line(2, "None: no part has a token for the Kubernetes API.");
        return;
    }
    for (number, identity) in it.kubernetes.iter().enumerate() {
        if number > 0 {
            page.blank();
        }
        let whose = match &identity.pack {
            Some(pack) => format!("pack {pack}"),
            None => "the hooks".to_owned(),
        };
        let holders = match identity.used_by.is_empty() {
            true => "nobody".to_owned(),
            false => identity.used_by.join(", "),
        };
        page.line(
            2,
            &format!("{whose}, as ServiceAccount {}", identity.service_account),
        );
        page.line(2, &format!("token held by {holders}"));
        let rows: Vec<Vec<String>> = identity
            .grants
            .iter()
            .map(|grant| {
                let place = match grant.scope {
                    Scope::Cluster => "CLUSTER".to_owned(),
                    Scope::Namespace => "namespace".to_owned(),
                };
                vec![place, grant.words.clone()]
            })
            .collect();
        page.table(&["WHERE", "MAY"], &rows);
        let all = identity.grants.iter().flat_map(|it| &it.implies);
        let implied = merged(all);
        if implied.is_empty() {
            continue;
        }
        page.line(2, "Which means:");
        for implication in implied {
            let mark = match implication.weight {
                Weight::MoreRights => "!! ",
                Weight::Disturbance => "!  ",
                Weight::Disclosure => "-  ",
            };
            let rights = together(&implication.rights);
            let text = format!("{rights}: {}", implication.consequence);
            page.hanging(4, mark, &text);
        }
    }
    page.blank();
    page.line(
        2,
        "!! more rights follow; ! others can be disturbed; - others' data can be read",
    );
}

/// Single rights, with those that have the same verbs in one: `get/list pods, services`.
fn together(rights: &[String]) -> String {
    let mut verbs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for right in rights {
        let (verb, resource) = right.split_once(' ').unwrap_or((right, ""));
        verbs.entry(resource).or_default().push(verb);
    }
    let mut resources: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (resource, verbs) in verbs {
        resources.entry(verbs.join("/")).or_default().push(resource);
    }
    let rights = resources.iter();
    let rights = rights.map(|(verbs, resources)| format!("{verbs} {}", resources.join(", ")));
    rights.collect::<Vec<_>>().join("; ")
}

/// Every consequence once, with all rights that it follows from, the heaviest first.
fn merged<'i>(all: impl Iterator<Item = &'i Implication>) -> Vec<Implication> {
    let mut by_text: BTreeMap<(Weight, &str), Vec<String>> = BTreeMap::new();
    for implication in all {
        let key = (implication.weight, implication.consequence.as_str());
        let rights = by_text.entry(key).or_default();
        for right in &implication.rights {
            if !rights.contains(right) {
                rights.push(right.clone());
            }
        }
    }
    by_text
        .into_iter()
        .map(|((weight, consequence), rights)| Implication {
            weight,
            rights,
            consequence: consequence.to_owned(),
        })
        .collect()
}

fn network(page: &mut Page, it: &Explanation) {
    page.section("Network");
    let rows: Vec<Vec<String>> = it
        .parts
        .iter()
        .map(|part| {
            let reaches = match part.reaches.is_empty() {
                true => "nothing".to_owned(),
                false => part.reaches.join(", "),
            };
            vec![part.part.clone(), reaches]
        })
        .collect();
    page.table(&["PART", "MAY REACH"], &rows);
    let pod = &it.network.pod;
    let enforced = match pod.enforced_or_refused {
        true => "where a cluster does not enforce that, the run is refused",
        false => "where a cluster does not enforce that, the run says so and goes on",
    };
    page.hanging(
        2,
        "whole pod: ",
        &format!(
            "{}, which looks up names and lets each part through to its hosts; no DNS, no incoming connections; {enforced}",
            pod.egress.iter().rev().copied().collect::<Vec<_>>().join(" and ")
        ),
    );
}

fn secrets(page: &mut Page, it: &Explanation) {
    page.section("Secrets");
    let mut rows = Vec::new();
    for secret in &it.secrets {
        for seen in &secret.seen {
            rows.push(vec![
                secret.secret.clone(),
                seen.part.clone().unwrap_or_else(|| "kubelet".to_owned()),
                seen.how.clone(),
            ]);
        }
    }
    match rows.is_empty() {
        true => page.line(2, "None."),
        false => page.table(&["SECRET", "SEEN BY", "HOW"], &rows),
    }
}

fn files(page: &mut Page, it: &Explanation) {
    page.section("Files");
    let own = |kind| {
        matches!(
            kind,
            VolumeKind::Input | VolumeKind::Token | VolumeKind::Texts | VolumeKind::Secret
        )
    };
    let mut rows = Vec::new();
    let mut private = 0;
    for volume in &it.files {
        // What one part has for itself and what other sections tell is only counted.
        let is_private = volume.kind == VolumeKind::Scratch && volume.mounted_by.len() < 2;
        if own(volume.kind) || is_private {
            private += 1;
            continue;
        }
        for (number, mount) in volume.mounted_by.iter().enumerate() {
            let path = match &mount.sub_path {
                Some(sub) => format!("{} ({sub} of it)", mount.path),
                None => mount.path.clone(),
            };
            // A volume is described once, beside the first that sees it.
            let what = match (number, &volume.size) {
                (0, Some(size)) => format!("{}, {size}", volume.what),
                (0, None) => volume.what.clone(),
                _ => String::new(),
            };
            let access = mount.access.word().to_owned();
            rows.push(vec![what, mount.part.clone(), path, access]);
        }
    }
    match rows.is_empty() {
        true => page.line(
            2,
            "Nothing that two parts share or that is from outside the run.",
        ),
        false => page.table(&["WHAT", "SEEN BY", "AT", "ACCESS"], &rows),
    }
    if private > 0 {
        let text = format!(
            "and {private} volumes for one part each: scratch space, texts, tokens, Secrets and inputs (all of them with -o json)"
        );
        page.line(2, &text);
    }
}

fn skills(page: &mut Page, it: &Explanation) {
    page.section("Skills");
    let rows: Vec<Vec<String>> = it
        .skills
        .iter()
        .map(|skill| {
            let name = match (&skill.pack, &skill.skill, &skill.config_map) {
                (Some(pack), Some(skill), _) => format!("{pack}/{skill}"),
                (_, _, Some(map)) => format!("ConfigMap {map}"),
                _ => String::new(),
            };
            let programs = match skill.programs.is_empty() {
                true => String::new(),
                false => format!("programs: {}", skill.programs.join(", ")),
            };
            let tools = match &skill.allowed_tools {
                Some(tools) if tools.is_empty() => "for no tool".to_owned(),
                Some(tools) => format!("for {}", tools.join(", ")),
                None => String::new(),
            };
            let rest = [
                skill.description.clone().unwrap_or_default(),
                tools,
                programs,
            ];
            let rest: Vec<String> = rest.into_iter().filter(|it| !it.is_empty()).collect();
            vec![name, rest.join("; ")]
        })
        .collect();
    match rows.is_empty() {
        true => page.line(2, "None."),
        false => page.table(&["TEXT", "WHAT FOR"], &rows),
    }
}

fn parts(page: &mut Page, it: &Explanation) {
    page.section("Parts");
    let rows: Vec<Vec<String>> = it
        .parts
        .iter()
        .map(|part| {
            let executor = match part.executor {
                Executor::Ours => "ours",
                Executor::Injected => "our executor in it",
                Executor::Image => "its own entrypoint",
            };
            vec![part.part.clone(), part.image.clone(), executor.to_owned()]
        })
        .collect();
    page.table(&["PART", "IMAGE", "RUNS"], &rows);
    for part in &it.parts {
        if !part.node.is_empty() {
            let mark = format!("!! {} has ", part.part);
            page.hanging(2, &mark, &part.node.join("; "));
        }
        if !part.command.is_empty() {
            let mark = format!("{} starts ", part.part);
            page.hanging(2, &mark, &part.command.join(" "));
        }
        if !part.ports.is_empty() {
            let mark = format!("{} listens at ", part.part);
            page.hanging(2, &mark, &part.ports.join(", "));
        }
    }
}

fn limits(page: &mut Page, it: &Explanation) {
    page.section("Limits");
    let run = &it.limits.run;
    let tokens = run.model_tokens.map_or_else(
        || "no limit of tokens".to_owned(),
        |it| format!("{it} tokens"),
    );
    page.line(
        2,
        &format!(
            "{} rounds; {} requests to the model, {} in a minute, {tokens}; {} calls of tools, {} at a time",
            run.iterations,
            run.model_requests,
            run.model_requests_per_minute,
            run.tool_calls,
            run.concurrent_tool_calls
        ),
    );
    let rows: Vec<Vec<String>> = it
        .limits
        .parts
        .iter()
        .map(|part| {
            let time = part.timeout_seconds.map_or_else(
                || "as long as the run".to_owned(),
                |seconds| format!("{seconds} s"),
            );
            vec![
                part.part.clone(),
                part.amounts.cpu_limit.to_string(),
                part.amounts.memory_limit.to_string(),
                time,
            ]
        })
        .collect();
    page.table(&["PART", "CPU", "MEMORY", "TIME"], &rows);
    match &it.limits.sub_runs {
        None => page.line(2, "It starts no other runs."),
        Some(sub) => page.line(
            2,
            &format!(
                "It may start {} other runs, {} at a time in the whole tree, {} levels deep.",
                sub.children, sub.concurrent, sub.levels
            ),
        ),
    }
}

fn isolation(page: &mut Page, it: &Explanation) {
    page.section("Isolation");
    let list = |all: &[Guarantee]| -> String {
        let names: Vec<&str> = all.iter().map(|it| it.as_str()).collect();
        match names.is_empty() {
            true => "nothing".to_owned(),
            false => names.join(", "),
        }
    };
    let isolation = &it.isolation;
    page.hanging(2, "refused without  ", &list(&isolation.floor));
    page.hanging(2, "not required     ", &list(&isolation.not_required));
    page.hanging(2, "seccomp          ", &isolation.seccomp);
    let class = isolation.runtime_class.as_deref();
    page.hanging(
        2,
        "RuntimeClass     ",
        class.unwrap_or("the cluster's default"),
    );
    if !isolation.node_selector.is_empty() {
        let labels = isolation.node_selector.iter();
        let labels: Vec<String> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        page.hanging(2, "nodes with       ", &labels.join(", "));
    }
}

fn lifetime(page: &mut Page, it: &Explanation) {
    page.section("Lifetime");
    let life = &it.lifetime;
    let times = &life.deadlines;
    let mut works = format!("{} at most", duration(times.run_seconds));
    if it.approval.is_asked {
        works.push_str(&format!(
            ", and {} more while people are asked ({} a question)",
            duration(times.waiting_seconds),
            duration(times.approval_seconds)
        ));
    }
    page.hanging(2, "the agent works  ", &works);
    page.hanging(
        2,
        "everything ends  ",
        &format!(
            "after {}, whoever keeps the clock",
            duration(times.ceiling_seconds)
        ),
    );
    for (number, words) in life.rights_end.iter().enumerate() {
        let mark = match number {
            0 => "rights end       ",
            _ => "                 ",
        };
        page.hanging(2, mark, words);
    }
    let cleanup = match life.cleanup {
        Cleanup::Delete => "is deleted",
        Cleanup::Keep => "stays to be looked at, without any rights",
    };
    page.hanging(2, "the pod          ", cleanup);
    for what in &life.outlasts {
        page.hanging(2, "outlasts the run ", what);
    }
}

fn remarks(page: &mut Page, it: &Explanation) {
    if it.remarks.is_empty() {
        return;
    }
    page.section("Know too");
    for remark in &it.remarks {
        page.hanging(2, "- ", &remark.text);
    }
}
