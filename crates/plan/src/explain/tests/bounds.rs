//! What the summary says that a run cannot do is checked against its plan.

use proptest::prelude::*;
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::run_plan::{Gate, Part, Role, ToolHandler, VolumeSource};

use super::plans::any_plan;
use super::remarks::{add, plan, skill};
use crate::explain::{ArgumentCheck, explain};
use crate::rbac::Weight;
use crate::render::{RenderSettings, render};

/// Whether a run has any access to the node.
fn touches_node(plan: &RunPlan) -> bool {
    let volumes = plan.volumes.iter().any(|plan_volume| match &plan_volume.source {
        VolumeSource::Host { .. } => true,
        VolumeSource::Declared { volume } => volume.source.contains_key("hostPath"),
        _ => false,
    });
    let mut access = plan.parts.iter().filter_map(|part| part.host_access.as_ref());
    volumes
        || access.any(|access| {
            let asks = access.privileged || access.host_network || access.host_pid || access.run_as_root;
            access.enabled && (asks || !access.mounts.is_empty())
        })
}

/// Whether a part mounts a volume of a kind, or a declared volume whose JSON contains a word.
fn mounts(plan: &RunPlan, part: &Part, word: &str, is_one: fn(&VolumeSource) -> bool) -> bool {
    let volumes = part.mounts.iter().map(|mount| plan.volume(&mount.volume));
    volumes.flatten().any(|volume| match &volume.source {
        VolumeSource::Declared { volume } => {
            let text = serde_json::to_string(volume).expect("JSON");
            text.contains(word)
        }
        other => is_one(other),
    })
}

fn sees_secret(plan: &RunPlan, part: &Part) -> bool {
    let mut env = part.env.iter().filter_map(|env| env.value_from.as_ref());
    let is_secret = |source: &VolumeSource| matches!(source, VolumeSource::Secret { .. });
    env.any(|env| env.secret_key_ref.is_some()) || mounts(plan, part, "\"secret\":", is_secret)
}

fn sees_token(plan: &RunPlan, part: &Part) -> bool {
    let is_token = |source: &VolumeSource| matches!(source, VolumeSource::Token { .. });
    part.identity.is_some() || mounts(plan, part, "\"serviceAccountToken\":", is_token)
}

/// Whether a sentence is true, by the plan alone.
fn holds(plan: &RunPlan, sentence: &str) -> bool {
    let explanation = explain(plan);
    let offered = |tool: &&sympozium_api::run_plan::ToolPlan| tool.gate != Gate::Deny;
    let after: u64 = plan
        .parts
        .iter()
        .filter(|part| matches!(part.role, Role::PostRun { .. }))
        .map(|part| part.timeout_seconds.unwrap_or(plan.deadlines.run_seconds))
        .sum();
    let elsewhere = |sentence: &str| {
        let reached = plan.credentials.iter().any(|credential| {
            let reach = &credential.reach;
            let is_there = plan.part(&credential.part).is_some();
            is_there && (reach.public || !reach.destinations.is_empty())
        });
        match sentence {
            "reach any host, or look up names" => !reached && plan.identities.is_empty(),
            _ => sentence == "reach any other host, or look up names",
        }
    };
    match sentence {
        "touch the node it runs on" => true,
        "hold a token for the Kubernetes API" => {
            let has_token = |source: &VolumeSource| match source {
                VolumeSource::Declared { volume } => {
                    serde_json::to_string(volume).expect("JSON").contains("\"serviceAccountToken\":")
                }
                other => matches!(other, VolumeSource::Token { .. }),
            };
            plan.identities.is_empty() && !plan.volumes.iter().any(|volume| has_token(&volume.source))
        }
        "take more rights by those it has" => {
            let grants = explanation.kubernetes.iter().flat_map(|identity| &identity.grants);
            let mut implied = grants.flat_map(|grant| &grant.implies);
            implied.all(|implication| implication.weight != Weight::MoreRights)
        }
        "call a tool that is known to take a command line" => {
            let free = explanation
                .tools
                .iter()
                .any(|tool| tool.gate != Gate::Deny && tool.arguments == ArgumentCheck::FreeText);
            let mut tools = plan.tools.iter().filter(offered);
            !free && !tools.any(|tool| matches!(tool.acts, ToolHandler::Shell { .. }))
        }
        "read a Secret other than its own" => {
            let model = plan.model.keys.is_empty() && plan.model.headers_secret.is_none();
            let mut rules = plan.identities.iter();
            let none = rules.all(|rule| rule.cluster_rules.is_empty() && rule.namespace_rules.is_empty());
            model && none && !plan.parts.iter().any(|part| sees_secret(plan, part))
        }
        "start its agent with a credential" => {
            let mut agents = plan.parts.iter().filter(|part| part.role == Role::Agent);
            agents.all(|agent| {
                let of_gateway = plan.credentials.iter().any(|credential| credential.part == agent.name);
                !of_gateway && !sees_token(plan, agent) && !sees_secret(plan, agent)
            })
        }
        other if other.starts_with("last longer than ") => other.contains("hooks") == (after > 0),
        other => match other.strip_suffix(", if the cluster enforces NetworkPolicies") {
            Some(reach) => !plan.isolation.floor.contains(&Guarantee::Network) && elsewhere(reach),
            None => plan.isolation.floor.contains(&Guarantee::Network) && elsewhere(other),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_run_with_access_to_the_node_is_described_as_unbounded(plan in any_plan()) {
        let cannot = explain(&plan).summary.cannot;
        let says = cannot.iter().any(|sentence| sentence.contains("the node"));
        prop_assert_eq!(says, !touches_node(&plan));
        prop_assert_eq!(cannot.is_empty(), touches_node(&plan));
    }

    #[test]
    fn what_the_summary_denies_is_not_in_the_plan(plan in any_plan()) {
        for sentence in explain(&plan).summary.cannot {
            prop_assert!(holds(&plan, &sentence), "{}", sentence);
        }
    }
}

fn cannot(change: impl FnOnce(&mut Value)) -> Vec<String> {
    explain(&plan(change)).summary.cannot
}

#[test]
fn a_run_that_has_nothing_can_do_nothing() {
    let expected = [
        "touch the node it runs on",
        "hold a token for the Kubernetes API",
        "call a tool that is known to take a command line",
        "reach any host, or look up names",
        "read a Secret other than its own",
        "start its agent with a credential",
        "last longer than 1 s",
    ];
    assert_eq!(cannot(|_| {}), expected);
    let without = cannot(|plan| plan["isolation"]["floor"] = json!([]));
    assert_eq!(without[3], "reach any host, or look up names, if the cluster enforces NetworkPolicies");
}

#[test]
fn the_credential_of_an_agent_is_in_the_summary() {
    let sentence = "start its agent with a credential".to_owned();
    let gateway = json!([{"name": "agent", "part": "agent", "reach": {"public": true}}]);
    let variable = json!([{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    assert!(!cannot(|plan| plan["credentials"] = gateway).contains(&sentence));
    assert!(!cannot(|plan| plan["parts"][0]["env"] = variable).contains(&sentence));
    assert!(!cannot(|plan| plan["parts"][0]["identity"] = json!("skill-0")).contains(&sentence));
}

#[test]
fn a_volume_of_the_node_in_a_pack_is_listed_everywhere() {
    let plan = plan(|plan| {
        let volume = json!({"name": "v", "hostPath": {"path": "/var/run"}});
        let source = json!({"kind": "declared", "volume": volume});
        add(&mut plan["volumes"], json!({"name": "v", "source": source}));
        let mut part = skill("injected");
        part["mounts"] = json!([{"volume": "v", "path": "/host", "readOnly": false}]);
        add(&mut plan["parts"], part);
    });
    let explanation = explain(&plan);
    let words = "write /var/run of the node, at /host";
    assert_eq!(explanation.parts[2].node, [words]);
    assert_eq!(explanation.remarks[0].id, "node-access");
    let can = format!("use the node it runs on: {words} (skill-a)");
    assert_eq!(explanation.summary.can[0], can);
}

/// The hooks after a run are a Job of their own, and may continue when everything else has ended.
#[test]
fn hooks_after_a_run_have_their_time_and_their_rights() {
    let plan = plan(|plan| {
        plan["identities"] = json!([{"name": "hooks", "tokenSeconds": 600}]);
        for (number, timeout) in [(0, Some(30)), (1, None)] {
            let mut hook = skill("image");
            hook["name"] = json!(format!("post-{number}-tell"));
            hook["role"] = json!({"kind": "postRun", "hook": "tell", "gate": false});
            hook["start"] = json!({"kind": "image"});
            hook["identity"] = json!("hooks");
            if let Some(timeout) = timeout {
                hook["timeoutSeconds"] = json!(timeout);
            }
            add(&mut plan["parts"], hook);
        }
        for (number, part, volume) in [(0, "agent", "agent-input"), (1, "ipc-bridge", "bridge-input")] {
            let source = json!({"kind": "input", "part": part});
            add(&mut plan["volumes"], json!({"name": volume, "source": source}));
            let mount = json!({"volume": volume, "path": "/run/sympozium", "readOnly": true});
            plan["parts"][number]["mounts"] = json!([mount]);
        }
        plan["deadlines"]["runSeconds"] = json!(60);
        plan["deadlines"]["startSeconds"] = json!(299);
        plan["deadlines"]["graceSeconds"] = json!(1);
        plan["deadlines"]["ceilingSeconds"] = json!(600);
    });
    let explanation = explain(&plan);
    assert_eq!(explanation.lifetime.after_run_seconds, Some(390));
    let last = explanation.summary.cannot.last().map(String::as_str);
    let expected = "last longer than 10 min, and the hooks after it 6 min 30 s more";
    assert_eq!(last, Some(expected));
    let rights = &explanation.lifetime.rights_end;
    assert!(rights.contains(&"those of the hooks, when the hooks after the run have ended".into()));
    // The cluster gets the same value.
    let rendered = render(&plan, &[], &RenderSettings::default()).expect("objects");
    let objects = rendered.objects.iter().map(|object| object.object.to_value());
    let jobs: Vec<Value> = objects
        .map(|object| object.expect("JSON"))
        .filter(|object| object["kind"] == "Job")
        .map(|object| object["spec"]["activeDeadlineSeconds"].clone())
        .collect();
    assert_eq!(jobs, [json!(600), json!(390)]);
}
