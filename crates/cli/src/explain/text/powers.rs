//! The powers of a run: tools, permissions, network, secrets.

use std::collections::BTreeMap;

use sympozium_api::run_plan::Gate;
use sympozium_plan::explain::{ArgumentCheck, Explanation, ToolHandlerKind, ToolInfo};
use sympozium_plan::rbac::{Implication, Scope, Weight};

use crate::page::Page;

pub fn tools(page: &mut Page, it: &Explanation) {
    page.section("Tools");
    let mut rows = Vec::new();
    for gate in [Gate::Allow, Gate::Ask] {
        for tool in it.tools.iter().filter(|it| it.gate == gate) {
            rows.push(vec![
                match gate {
                    Gate::Allow => "allow".to_owned(),
                    _ => "ask".to_owned(),
                },
                tool.full_name(),
                describe_actor(tool),
                match tool.arguments {
                    ArgumentCheck::FreeText => "FREE TEXT".to_owned(),
                    ArgumentCheck::Schema => "by schema".to_owned(),
                },
            ]);
        }
    }
    match rows.is_empty() {
        true => page.paragraph(2, "None."),
        false => page.table(&["GATE", "TOOL", "WHO ACTS", "ARGUMENTS"], &rows),
    }
    let denied: Vec<String> = it.tools.iter().filter(|it| it.gate == Gate::Deny).map(ToolInfo::full_name).collect();
    if !denied.is_empty() {
        page.list_item(2, "denied: ", &denied.join(", "));
    }
    if it.approval.is_asked {
        let approval = &it.approval;
        let who = match approval.approvers.is_empty() {
            true => "no approver, so that every question is denied".to_owned(),
            false => approval.approvers.join(", "),
        };
        let mut words = format!("decided by {who}; {} must agree", approval.required);
        if !approval.run_author {
            words.push_str("; not the user who started the run");
        }
        if approval.run_scope {
            words.push_str("; one approval may hold for every repetition of the identical call");
        }
        page.list_item(2, "ask: ", &words);
    }
}

fn describe_actor(tool: &ToolInfo) -> String {
    let part = tool.part.as_deref().unwrap_or_default();
    match tool.by {
        ToolHandlerKind::Agent => "the agent itself".to_owned(),
        ToolHandlerKind::Bridge => "the bridge".to_owned(),
        ToolHandlerKind::Shell => format!("a shell in {part}"),
        ToolHandlerKind::Program => format!("{} in {part}", command(&tool.program)),
    }
}

/// A program by the last segment of its path; `-o json` has the whole path.
fn command(program: &[String]) -> String {
    let (program, rest) = match program {
        [program, rest @ ..] => (program.as_str(), rest),
        [] => ("", &[][..]),
    };
    let name = program.rsplit('/').find(|it| !it.is_empty());
    let words = std::iter::once(name.unwrap_or(program));
    let words = words.chain(rest.iter().map(String::as_str));
    words.collect::<Vec<_>>().join(" ")
}

pub fn kubernetes(page: &mut Page, it: &Explanation) {
    page.section("Kubernetes permissions");
    if it.kubernetes.is_empty() {
        page.paragraph(2, "None: no part has a token for the Kubernetes API.");
        return;
    }
    for (number, identity) in it.kubernetes.iter().enumerate() {
        if number > 0 {
            page.blank_line();
        }
        let owner = match &identity.pack {
            Some(pack) => format!("pack {pack}"),
            None => "the hooks".to_owned(),
        };
        let holders = match identity.used_by.is_empty() {
            true => "no part".to_owned(),
            false => identity.used_by.join(", "),
        };
        page.paragraph(2, &format!("{owner}, as ServiceAccount {}", identity.service_account));
        page.paragraph(2, &format!("token held by {holders}"));
        let rows: Vec<Vec<String>> = identity
            .grants
            .iter()
            .map(|grant| {
                let scope = match grant.scope {
                    Scope::Cluster => "CLUSTER".to_owned(),
                    Scope::Namespace => "namespace".to_owned(),
                };
                vec![scope, grant.words.clone()]
            })
            .collect();
        page.table(&["WHERE", "MAY"], &rows);
        let all = identity.grants.iter().flat_map(|it| &it.implies);
        let implied = merge_implications(all);
        if implied.is_empty() {
            continue;
        }
        page.paragraph(2, "Which means:");
        for implication in implied {
            let mark = match implication.weight {
                Weight::MoreRights => "!! ",
                Weight::Disturbance => "!  ",
                Weight::Disclosure => "-  ",
            };
            let rights = group_permissions(&implication.rights);
            let text = format!("{rights}: {}", implication.consequence);
            page.list_item(4, mark, &text);
        }
    }
    page.blank_line();
    page.paragraph(2, "!! more rights follow; ! others can be disturbed; - others' data can be read");
}

/// Permissions on one line, grouped by verbs: `get/list pods, services`.
fn group_permissions(rights: &[String]) -> String {
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

/// Every consequence once, with all permissions that it follows from, the most severe first.
fn merge_implications<'i>(all: impl Iterator<Item = &'i Implication>) -> Vec<Implication> {
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
        .map(|((weight, consequence), rights)| Implication { weight, rights, consequence: consequence.to_owned() })
        .collect()
}

pub fn network(page: &mut Page, it: &Explanation) {
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
    if it.network.parts.iter().any(|it| it.node_network) {
        let words = "whatever the node reaches; no NetworkPolicy holds in the node's network";
        page.list_item(2, "whole pod: ", words);
        return;
    }
    let enforced = match pod.enforced_or_refused {
        true => "where a cluster does not enforce that, the run is refused",
        false => "where a cluster does not enforce that, the run has a warning and continues",
    };
    page.list_item(
        2,
        "whole pod: ",
        &format!(
            "{}, which looks up names and lets each part through to its hosts; no DNS, no incoming connections; {enforced}",
            pod.egress.iter().rev().copied().collect::<Vec<_>>().join(" and ")
        ),
    );
}

pub fn secrets(page: &mut Page, it: &Explanation) {
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
        true => page.paragraph(2, "None."),
        false => page.table(&["SECRET", "SEEN BY", "HOW"], &rows),
    }
}
