//! Plans of some runs, with their expected contents.

use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::builtin_tool::EXECUTE_COMMAND;
use sympozium_api::provider::KeyHeader;
use sympozium_api::run_plan::{MAX_BYTES, Part, paths};

use super::harness::Harness;
use super::stored::STORED;
use crate::admit::MAX_TASK_BYTES;
use crate::plan::{PlanError, PlanSettings, Planned, agent_view, plan};

const ON_CALL: &str = include_str!("fixtures/on-call.yaml");

fn with_plan<T>(manifests: &str, look: impl FnOnce(&Planned<'_>) -> T) -> T {
    Harness::from_yaml(manifests)
        .with_admitted(|input, admitted| look(&plan(input, admitted, &PlanSettings::default()).expect("a plan")))
        .expect("an admitted run")
}

#[test]
fn the_plan_of_a_run_on_call() {
    with_plan(ON_CALL, |planned| {
        insta::assert_yaml_snapshot!("on-call", planned.plan);
        insta::assert_yaml_snapshot!("on-call-agent", agent_view(&planned.plan));
    });
}

#[test]
fn a_run_without_a_uid_has_no_plan() {
    let manifests = ON_CALL.replace("uid:", "generateName:");
    let error = Harness::from_yaml(&manifests)
        .with_admitted(|input, admitted| plan(input, admitted, &PlanSettings::default()).err())
        .expect("an admitted run");
    assert!(matches!(error, Some(PlanError::NoUid)), "{error:?}");
}

#[test]
fn a_plan_that_cannot_be_stored_is_none() {
    let mut harness = Harness::from_yaml(ON_CALL);
    for number in 0..17 {
        let value = "v".repeat(sympozium_api::limits::VALUE);
        harness.run.spec.env.insert(format!("LONG_{number}"), value);
    }
    let error = harness
        .with_admitted(|input, admitted| plan(input, admitted, &PlanSettings::default()).err())
        .expect("an admitted run");
    assert!(matches!(error, Some(PlanError::TooLarge(_))), "{error:?}");
    let hint = error.map(|error| error.hint());
    assert_eq!(hint, Some("use fewer packs, or make prompts, variables and descriptions of tools shorter"));
}

/// A character that takes six bytes as it is stored.
#[test]
fn the_view_of_the_agent_is_bounded_as_it_is_stored() {
    let rules = |letters: usize| {
        let mut harness = Harness::from_yaml(ON_CALL);
        harness.run.spec.system_prompt = Some("\u{1}".repeat(letters));
        let planned = harness.with_admitted(|input, admitted| {
            plan(input, admitted, &PlanSettings::default()).map(|plan| plan.bytes.len() <= MAX_BYTES)
        });
        match planned {
            Ok(planned) => planned.map(|_| Vec::new()).expect("it can be planned"),
            Err(reasons) => reasons.iter().map(|reason| reason.rule).collect(),
        }
    };
    let others = "\"\"".len() + "\"Why is checkout slow?\"".len();
    let most = (MAX_TASK_BYTES - others) / 6;
    assert_eq!(rules(most), Vec::<&str>::new());
    assert_eq!(rules(most + 1), ["task-too-large"]);
}

/// A stored plan may come from elsewhere.
#[test]
fn the_agents_view_of_a_plan_with_odd_schemas() {
    let shell = |parameters: Value| {
        let mut plan = RunPlan::read(STORED[0]).expect("a plan");
        let command = plan.tools.iter_mut().find(|tool| tool.name == EXECUTE_COMMAND);
        let command = command.expect("a tool that runs commands");
        command.parameters = serde_json::from_value(parameters).expect("an object");
        let offered = agent_view(&plan).tools;
        let command = offered.into_iter().find(|tool| tool.name == EXECUTE_COMMAND);
        serde_json::to_value(command.expect("it is offered").parameters).expect("JSON")
    };
    for kept in [
        json!({}),
        json!({ "properties": "text" }),
        json!({ "properties": ["target"] }),
        json!({ "properties": null }),
        json!({ "properties": { "target": "text" } }),
        json!({ "properties": { "target": [1] } }),
    ] {
        assert_eq!(shell(kept.clone()), kept);
    }
    let named = json!({ "properties": { "target": { "enum": ["cluster", "tickets"] } } });
    assert_eq!(shell(json!({ "properties": {} })), named);
    assert_eq!(shell(json!({ "properties": { "target": { "enum": 1 } } })), named);
}

#[test]
fn the_plan_has_what_differs_from_the_wire_format() {
    for (provider, key_header, ask_for_usage) in [
        ("openai", None, None),
        ("anthropic", None, None),
        ("unheard-of", None, None),
        ("Azure", Some(KeyHeader::ApiKey), None),
        ("azure-openai", Some(KeyHeader::ApiKey), None),
        ("mistral", None, Some(false)),
    ] {
        let manifests = format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\nspec: {{agentRef: a, task: t, \
             model: {{provider: {provider}, baseURL: 'https://x.example.com', model: m, authSecretRef: keys}}}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}}}\n"
        );
        with_plan(&manifests, |planned| {
            let model = &planned.plan.model;
            assert_eq!((model.key_header, model.ask_for_usage), (key_header, ask_for_usage), "{provider}");
        });
    }
}

#[test]
fn where_models_answer() {
    let cases = [
        ("provider: openai", "https api.openai.com 443 /v1/chat/completions", "OPENAI_API_KEY"),
        ("provider: anthropic", "https api.anthropic.com 443 /v1/messages", "ANTHROPIC_API_KEY"),
        ("provider: groq", "https api.groq.com 443 /openai/v1/chat/completions", "GROQ_API_KEY"),
        (
            "provider: gemini",
            "https generativelanguage.googleapis.com 443 /v1beta/openai/chat/completions",
            "GOOGLE_API_KEY",
        ),
        ("provider: ollama", "http ollama.default.svc 11434 /v1/chat/completions", "OPENAI_API_KEY"),
        (
            "provider: openai, baseURL: 'https://llm.example.com:8443/api/'",
            "https llm.example.com 8443 /api/chat/completions",
            "OPENAI_API_KEY",
        ),
        (
            "provider: vllm, baseURL: 'https://10.0.0.7:8000'",
            "https 10.0.0.7 8000 /v1/chat/completions",
            "OPENAI_API_KEY",
        ),
        (
            "provider: anthropic, baseURL: 'https://proxy.example.com/v1'",
            "https proxy.example.com 443 /v1/messages",
            "ANTHROPIC_API_KEY",
        ),
        (
            "provider: azure, baseURL: 'https://x.example.com/openai/deployments/d?api-version=1#f'",
            "https x.example.com 443 /openai/deployments/d/chat/completions?api-version=1",
            "AZURE_OPENAI_API_KEY",
        ),
        ("provider: scripted", "in the bridge", "OPENAI_API_KEY"),
    ];
    for (model, expected, key) in cases {
        // A key goes over plain HTTP to a Service that a policy opens.
        let policy = if model.contains("ollama") {
            "---\nkind: SympoziumPolicy\nmetadata: {name: p, namespace: team}\n\
                 spec: {networkPolicy: {allowedEgress: [{host: ollama.default.svc, port: 11434}]}}\n"
        } else {
            ""
        };
        let named = if policy.is_empty() { "" } else { ", policyRef: p" };
        let manifests = format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\n\
             spec: {{agentRef: a, task: t, model: {{{model}, model: m, authSecretRef: keys}}}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}{named}}}\n{policy}"
        );
        with_plan(&manifests, |planned| {
            let model = &planned.plan.model;
            let endpoint = model.endpoint.as_ref().map_or_else(
                || "in the bridge".to_owned(),
                |endpoint| {
                    let scheme = if endpoint.encrypted { "https" } else { "http" };
                    format!("{scheme} {} {} {}", endpoint.host, endpoint.port, endpoint.path)
                },
            );
            assert_eq!(endpoint, expected);
            let variables: Vec<_> = model.keys.iter().map(|key| key.variable.as_str()).collect();
            assert_eq!(variables, [key, "API_KEY"]);
            let reached: Vec<_> =
                planned.plan.credentials.iter().filter(|credential| credential.name == "model").collect();
            assert_eq!(reached.len(), usize::from(model.endpoint.is_some()));
        });
    }
}

#[test]
fn the_workspace_is_as_open_to_the_agent_as_its_tools_are() {
    for (denied, expected) in [
        ("[]", Some(false)),
        ("[write_file]", Some(false)),
        ("[write_file, edit_file]", Some(true)),
        ("[read_file, write_file, edit_file]", Some(true)),
        ("[read_file, write_file, edit_file, list_directory]", None),
    ] {
        let manifests = format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\n\
             spec: {{agentRef: a, task: t, toolPolicy: {{deny: {denied}}}}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}}}\n"
        );
        with_plan(&manifests, |planned| {
            let mut mounts = planned.plan.parts[0].mounts.iter();
            let found = mounts.find(|mount| mount.path == paths::WORKSPACE);
            assert_eq!(found.map(|mount| mount.read_only), expected, "{denied}");
        });
    }
}

#[test]
fn a_skill_narrows_the_tools_of_its_pack() {
    for (allowed, gates) in [
        ("", ["allow", "allow"]),
        (", allowedTools: [act]", ["deny", "allow"]),
        (", allowedTools: ['x/*']", ["allow", "allow"]),
        (", allowedTools: [read_file]", ["deny", "deny"]),
        (", allowedTools: []", ["deny", "deny"]),
        // The other skill has no such limit, and its tools are the pack's.
        (", allowedTools: []}, {name: u, content: u", ["allow", "allow"]),
    ] {
        let manifests = format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\nspec: {{agentRef: a, task: t, skills: [{{skillPackRef: x}}]}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}}}\n---\n\
             kind: SkillPack\nmetadata: {{name: x, namespace: team}}\n\
             spec: {{skills: [{{name: t, content: t{allowed}}}], sidecar: {{image: 'ghcr.io/o/x:1', tools: [{{name: act, description: d, exec: [act]}}]}}}}\n"
        );
        with_plan(&manifests, |planned| {
            let gate = |name: &str| {
                let mut tools = planned.plan.tools.iter();
                let tool = tools.find(|tool| tool.name == name && tool.pack.as_deref() == Some("x"));
                serde_json::to_value(tool.expect("the tool").gate).expect("JSON")
            };
            assert_eq!([gate("execute_command"), gate("act")], gates, "{allowed}");
        });
    }
}

/// The bridge identifies packs only by their names.
#[test]
fn tools_of_a_skill_are_planned_without_namespaces() {
    for (allowed, expected) in [
        ("[team/p/*, other/p/*]", &["p/*"][..]),
        ("[team/p/act, team/q/act, p/act, q/*, act, '*']", &["p/act", "p/act", "q/*", "act", "*"]),
        // An empty list must not become no limit.
        ("[other/p/*]", &[]),
        ("[sympozium-system/p/*]", &[]),
    ] {
        let manifests = format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\nspec: {{agentRef: a, task: t, skills: [{{skillPackRef: p}}]}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}}}\n---\n\
             kind: SkillPack\nmetadata: {{name: p, namespace: team}}\nspec: {{skills: [{{name: t, content: t, allowedTools: {allowed}}}], sidecar: {{image: 'ghcr.io/o/p:1'}}}}\n"
        );
        with_plan(&manifests, |planned| {
            let found = planned.plan.skills[0].allowed_tools.as_ref();
            let found: Vec<&str> = found.expect("a list").iter().map(|found| found.as_str()).collect();
            assert_eq!(found, expected, "{allowed}");
        });
    }
}

#[test]
fn the_filter_of_a_pod_is_the_policys_choice() {
    let asks = |enabled: bool| {
        format!(
            "sandbox: {{enabled: {enabled}, securityContext: {{seccompProfile: {{type: Localhost, localhostProfile: audit.json}}}}}}"
        )
    };
    let names = |name: &str, file: &str| {
        format!(
            "---\nkind: SympoziumPolicy\nmetadata: {{name: {name}, namespace: team}}\n\
             spec: {{sandboxPolicy: {{seccompProfile: {{type: Localhost, localhostProfile: {file}}}}}}}\n"
        )
    };
    for (sandbox, policies, expected) in [
        ("sandbox: {enabled: true}".to_owned(), String::new(), None),
        // A sandbox that the run does not have does not change the others.
        (asks(false), String::new(), None),
        (asks(false), names("floor", "strict.json"), Some("strict.json")),
        (asks(true), names("p", "audit.json"), Some("audit.json")),
    ] {
        let manifests = format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\nspec: {{agentRef: a, task: t, {sandbox}}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}{}}}\n{policies}",
            if policies.contains("name: p,") { ", policyRef: p" } else { "" },
        );
        with_plan(&manifests, |planned| {
            let seccomp = &planned.plan.isolation.seccomp;
            assert_eq!(seccomp.localhost_profile.as_deref(), expected, "{manifests}");
        });
    }
}

#[test]
fn what_is_mounted_for_the_agent_is_as_open_as_its_tools() {
    for (denied, expected) in [
        ("[]", Some(false)),
        ("[write_file, edit_file]", Some(true)),
        ("[read_file, write_file, edit_file, list_directory]", None),
    ] {
        let manifests = format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\n\
             spec: {{agentRef: a, task: t, toolPolicy: {{deny: {denied}}}, volumes: [{{name: v, emptyDir: {{}}}}], volumeMounts: [{{name: v, mountPath: /data}}]}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}}}\n"
        );
        with_plan(&manifests, |planned| {
            let mut mounts = planned.plan.parts[0].mounts.iter();
            let found = mounts.find(|mount| mount.path == "/data");
            assert_eq!(found.map(|mount| mount.read_only), expected, "{denied}");
        });
    }
}

#[test]
fn a_run_does_not_change_the_variables_of_hooks() {
    let manifests = "kind: AgentRun\nmetadata: {name: r, namespace: team, uid: u}\n\
        spec: {agentRef: a, task: t, env: {STRICT: '0', AGENT_RUN_ID: forged, OWN: x}}\n---\n\
        kind: Agent\nmetadata: {name: a, namespace: team}\n\
        spec: {agents: {default: {model: m, lifecycle: {postRun: [{name: h, image: 'ghcr.io/o/h:1', env: [{name: STRICT, value: '1'}]}]}}}}\n";
    with_plan(manifests, |planned| {
        let hook = planned.plan.parts.last().expect("the hook");
        let env: Vec<_> =
            (hook.env.iter()).map(|env| (env.name.as_str(), env.value.as_deref().unwrap_or_default())).collect();
        let expected = [("STRICT", "1"), ("AGENT_RUN_ID", "r"), ("INSTANCE_NAME", "a"), ("AGENT_NAMESPACE", "team")];
        assert_eq!(env, expected);
    });
}

/// The agent has all variables of a run, a hook those that its author lists, and no other part has any.
#[test]
fn variables_of_a_run_reach_only_who_lists_them() {
    let manifests = "kind: AgentRun\nmetadata: {name: r, namespace: team, uid: u}\n\
        spec: {agentRef: a, task: t, env: {REGION: mark-1, TIER: mark-2, AGENT_RUN_ID: mark-3}, sandbox: {enabled: true}, skills: [{skillPackRef: x}]}\n---\n\
        kind: SkillPack\nmetadata: {name: x, namespace: team}\nspec: {skills: [{name: s, content: c}], sidecar: {image: 'ghcr.io/o/x:1'}}\n---\n\
        kind: Agent\nmetadata: {name: a, namespace: team}\n\
        spec: {agents: {default: {model: m, env: {ZONE: mark-4}, lifecycle: {\
          preRun: [{name: none, image: 'ghcr.io/o/h:1'}, {name: some, image: 'ghcr.io/o/h:1', envFromRun: [REGION, ZONE, ABSENT]}], \
          postRun: [{name: ours, image: 'ghcr.io/o/h:1', envFromRun: [AGENT_RUN_ID]}]}}}}\n";
    with_plan(manifests, |planned| {
        let of_run = |part: &Part| -> Vec<String> {
            let values = part.env.iter().filter_map(|env| env.value.clone());
            values.filter(|value| value.starts_with("mark-")).collect()
        };
        let found: Vec<(&str, Vec<String>)> = (planned.plan.parts.iter())
            .map(|part| (part.name.0.as_str(), of_run(part)))
            .filter(|(_, values)| !values.is_empty())
            .collect();
        let marks = |marks: &[&str]| marks.iter().map(|mark| (*mark).to_owned()).collect();
        let expected: [(&str, Vec<String>); 2] =
            [("agent", marks(&["mark-3", "mark-1", "mark-2", "mark-4"])), ("pre-some", marks(&["mark-1", "mark-4"]))];
        assert_eq!(found, expected);
        assert!(planned.plan.parts.iter().any(|part| part.name.0 == "skill-x"));
        assert!(planned.plan.parts.iter().any(|part| part.name.0 == "sandbox"));
    });
}

/// Names are reused, UIDs are not: a plan says which object of a name it was made from.
#[test]
fn what_a_plan_was_made_from_has_its_uid() {
    let manifests = "kind: AgentRun\nmetadata: {name: r, namespace: team, uid: u}\n\
         spec: {agentRef: a, task: t, model: {provider: openai, model: m, modelRef: served}, skills: [{skillPackRef: x}]}\n---\n\
         kind: Agent\nmetadata: {name: a, namespace: team, uid: of-agent}\nspec: {policyRef: p, agents: {default: {model: m}}}\n---\n\
         kind: SympoziumPolicy\nmetadata: {name: p, namespace: team, uid: of-policy}\nspec: {modelPolicy: {allowedNamespaces: [team]}}\n---\n\
         kind: Model\nmetadata: {name: served, namespace: team, uid: of-model}\nspec: {source: {url: 'https://example.org/m'}}\n---\n\
         kind: SkillPack\nmetadata: {name: x, namespace: team, uid: of-pack}\nspec: {skills: [{name: t, content: t}]}\n";
    with_plan(manifests, |planned| {
        let resolved = planned.plan.resolved.iter();
        let resolved: Vec<_> = resolved
            .map(|object| {
                let uid = object.uid.as_ref().map(|uid| uid.as_str());
                (object.kind.as_str(), object.namespace.as_str(), object.name.as_str(), uid)
            })
            .collect();
        let expected = [
            ("Agent", "team", "a", Some("of-agent")),
            ("SympoziumPolicy", "team", "p", Some("of-policy")),
            ("SkillPack", "team", "x", Some("of-pack")),
            ("Model", "team", "served", Some("of-model")),
        ];
        assert_eq!(resolved, expected);
    });
}

/// The address that the key goes to need not follow from the Model's spec: the status can set it.
#[test]
fn the_digest_of_a_model_has_its_address() {
    let manifests = |status: &str| {
        format!(
            "kind: AgentRun\nmetadata: {{name: r, namespace: team, uid: u}}\n\
             spec: {{agentRef: a, task: t, model: {{provider: openai, model: m, modelRef: served}}}}\n---\n\
             kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{agents: {{default: {{model: m}}}}}}\n---\n\
             kind: Model\nmetadata: {{name: served, namespace: team}}\nspec: {{source: {{url: 'https://example.org/m'}}}}\n{status}"
        )
    };
    let of_model = |status: &str| {
        let mut found = None;
        with_plan(&manifests(status), |planned| {
            let mut resolved = planned.plan.resolved.iter();
            let model = resolved.find(|object| object.kind == "Model").expect("the model");
            let host = planned.plan.model.endpoint.as_ref().map(|endpoint| endpoint.host.clone());
            found = Some((model.digest.clone(), host.expect("an address")));
        });
        found.expect("a plan")
    };
    let (usual, host) = of_model("");
    assert_eq!(host, "model-served.team.svc");
    let (other, host) = of_model("status: {endpoint: 'https://llm.example.com/v1'}\n");
    assert_eq!(host, "llm.example.com");
    assert_ne!(usual, other);
}
