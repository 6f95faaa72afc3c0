//! Explanations as text: the most important first, understandable without colour.

mod bounds;
mod powers;

use sympozium_manifests::planning::PlanResults;
use sympozium_plan::explain::{Executor, Explanation, VolumeKind};

use crate::page::Page;
use bounds::{isolation, lifetime, limits};
use powers::{kubernetes, network, secrets, tools};

/// Every run that could be explained, one after the other.
pub fn render(planning: &PlanResults<Explanation>) -> String {
    let mut page = Page::default();
    for (run, explanation) in planning.admitted() {
        page.blank_line();
        add_explanation(&mut page, explanation, run.is_assumed);
    }
    page.finish()
}

fn add_explanation(page: &mut Page, it: &Explanation, is_assumed: bool) {
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
        true => page.paragraph(0, &format!("The plainest run of {agent} in namespace {}", run.namespace)),
        false => page.paragraph(0, &format!("Run {}/{} of {agent}", run.namespace, run.name)),
    }
    let model = &it.model;
    let answers = match &model.endpoint {
        Some(endpoint) => format!("at {endpoint}"),
        None => "inside the bridge".to_owned(),
    };
    page.paragraph(2, &format!("model {} of {}, {answers}", model.model, model.provider));
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
    page.paragraph(2, &format!("held to {policies}; made as {workload}"));
}

fn summary(page: &mut Page, it: &Explanation) {
    page.blank_line();
    let can = match it.summary.can.is_empty() {
        true => "do nothing but think".to_owned(),
        false => it.summary.can.join("; "),
    };
    page.paragraph(0, &format!("This run can {can}."));
    match it.summary.cannot.is_empty() {
        true => page.paragraph(0, "No bound is stated: what it can access of the node can undo every bound."),
        false => page.paragraph(0, &format!("It cannot {}.", it.summary.cannot.join("; "))),
    }
}

fn files(page: &mut Page, it: &Explanation) {
    page.section("Files");
    let own = |kind| matches!(kind, VolumeKind::Input | VolumeKind::Token | VolumeKind::Texts | VolumeKind::Secret);
    let mut rows = Vec::new();
    let mut private = 0;
    for volume in &it.files {
        // What one part has for itself, and what other sections list, is only counted.
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
            // A volume is described once, with its first mount.
            let what = match (number, &volume.size) {
                (0, Some(size)) => format!("{}, {size}", volume.what),
                (0, None) => volume.what.clone(),
                _ => String::new(),
            };
            let access = mount.access.as_str().to_owned();
            rows.push(vec![what, mount.part.clone(), path, access]);
        }
    }
    match rows.is_empty() {
        true => page.paragraph(2, "Nothing that two parts share or that is from outside the run."),
        false => page.table(&["WHAT", "SEEN BY", "AT", "ACCESS"], &rows),
    }
    if private > 0 {
        let text = format!(
            "and {private} volumes for one part each: scratch space, texts, tokens, Secrets and inputs (all of them with -o json)"
        );
        page.paragraph(2, &text);
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
            let description = skill.description.as_deref().unwrap_or_default();
            // A semicolon separates it from what follows.
            let description = description.trim_end_matches(|it: char| it == '.' || it.is_whitespace()).to_owned();
            let rest = [description, tools, programs];
            let rest: Vec<String> = rest.into_iter().filter(|it| !it.is_empty()).collect();
            vec![name, rest.join("; ")]
        })
        .collect();
    match rows.is_empty() {
        true => page.paragraph(2, "None."),
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
            page.list_item(2, &mark, &part.node.join("; "));
        }
        if !part.command.is_empty() {
            let mark = format!("{} starts ", part.part);
            page.list_item(2, &mark, &part.command.join(" "));
        }
        if !part.ports.is_empty() {
            let mark = format!("{} listens at ", part.part);
            page.list_item(2, &mark, &part.ports.join(", "));
        }
    }
}

fn remarks(page: &mut Page, it: &Explanation) {
    if it.remarks.is_empty() {
        return;
    }
    page.section("Know too");
    for remark in &it.remarks {
        page.list_item(2, "- ", &remark.text);
    }
}
