//! Plans that are refused, and settings that change the objects.

use serde_json::json;
use sympozium_api::RunPlan;
use sympozium_api::agent_run::RunMode;
use sympozium_api::environment::{EnvVar, EnvVarSource, KeyReference};
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::MountPath;
use sympozium_api::open;
use sympozium_api::run_plan::{
    AllowedHosts, GatewayCredential, IdentityName, KernelPlan, Mount, Part, PlanVolume, Start, VolumeName,
    VolumeSource, Workload,
};
use sympozium_api::sandbox::{SeccompProfile, SeccompProfileType};
use sympozium_api::skill_pack::HostAccess;

use super::with_plan;
use crate::plan::PackTexts;
use crate::plan::tests::harness::Harness;
use crate::render::{RenderError, RenderSettings, Rendered, SandboxVersion, render};

const ONE_SKILL: &str = include_str!("fixtures/one-skill.yaml");

/// The result for a run with one skill when its plan is changed.
fn changed(change: impl FnOnce(&mut RunPlan)) -> Result<Rendered, RenderError> {
    changed_for(&RenderSettings::default(), change)
}

fn changed_for(settings: &RenderSettings, change: impl FnOnce(&mut RunPlan)) -> Result<Rendered, RenderError> {
    let look = |plan: &RunPlan, texts: &[PackTexts<'_>]| {
        let mut plan = plan.clone();
        change(&mut plan);
        render(&plan, texts, settings)
    };
    with_plan(&Harness::from_yaml(ONE_SKILL), look).expect("an admitted run")
}

fn refusal(change: impl FnOnce(&mut RunPlan)) -> String {
    changed(change).expect_err("a refusal").to_string()
}

fn mount(agent: &mut Part, volume: &str) {
    agent.mounts.push(Mount {
        recursive_read_only: None,
        volume: VolumeName(volume.to_owned()),
        path: MountPath::new("/more"),
        read_only: true,
        sub_path: None,
    });
}

#[test]
fn what_is_not_made_yet_is_refused() {
    assert_eq!(
        refusal(|plan| plan.task.mode = RunMode::Server),
        "runs in server mode are not made yet: they come with the web endpoint"
    );
    let pool = |plan: &mut RunPlan| {
        plan.workload = Workload::Sandbox { warm_pool: Some("warm".into()) };
    };
    assert_eq!(refusal(pool), "claims on warm pools are not made yet; leave out `agentSandbox.warmPoolRef`");
    let without = RenderSettings { sandbox_version: None, ..RenderSettings::default() };
    let sandbox = |plan: &mut RunPlan| plan.workload = Workload::Sandbox { warm_pool: None };
    let error = changed_for(&without, sandbox).expect_err("a refusal");
    assert!(matches!(error, RenderError::NoAgentSandbox), "{error}");
}

/// 1 of the design's invariants, for a plan that breaks it.
#[test]
fn a_plan_that_gives_the_agent_anything_is_refused() {
    let with_volume = |name: &'static str| move |plan: &mut RunPlan| mount(&mut plan.parts[0], name);
    let rows: Vec<(&str, String)> = vec![
        ("an identity", refusal(|plan| plan.parts[0].identity = Some(IdentityName("skill-0".to_owned())))),
        ("access to the node", refusal(|plan| plan.parts[0].host_access = Some(HostAccess::default()))),
        (
            "a variable from a Secret",
            refusal(|plan| {
                plan.parts[0].env.push(EnvVar {
                    name: "KEY".into(),
                    value: None,
                    value_from: Some(EnvVarSource {
                        secret_key_ref: Some(KeyReference::default()),
                        ..EnvVarSource::default()
                    }),
                });
            }),
        ),
        (
            "a credential of the gateway",
            refusal(|plan| {
                plan.credentials.push(GatewayCredential {
                    name: "web".to_owned(),
                    part: plan.parts[0].name.clone(),
                    reach: AllowedHosts::default(),
                });
            }),
        ),
        ("a Secret", refusal(with_volume("skill-0-secret"))),
        ("a token", refusal(with_volume("skill-0-token"))),
        ("the input of another part", refusal(with_volume("bridge-input"))),
        ("a skill's /ipc", refusal(with_volume("skill-0-ipc"))),
        (
            "a Secret",
            refusal(|plan| {
                declare(plan, json!({ "secret": { "secretName": "s" } }));
                mount(&mut plan.parts[0], "declared");
            }),
        ),
        (
            "a Secret",
            refusal(|plan| {
                let sources = json!([{ "serviceAccountToken": { "path": "token" } }]);
                declare(plan, json!({ "projected": { "sources": sources } }));
                mount(&mut plan.parts[0], "declared");
            }),
        ),
    ];
    for (what, error) in rows {
        assert_eq!(error, format!("the plan gives the agent {what}"));
    }
}

fn declare(plan: &mut RunPlan, source: serde_json::Value) {
    plan.volumes.push(PlanVolume {
        name: VolumeName("declared".to_owned()),
        source: VolumeSource::Declared {
            volume: open::Volume { name: "mine".into(), source: serde_json::from_value(source).expect("a source") },
        },
    });
}

#[test]
fn a_plan_that_does_not_hold_together_is_refused() {
    let rows: Vec<(&str, String)> = vec![
        ("the plan names volume `nowhere` and does not have it", refusal(|plan| mount(&mut plan.parts[2], "nowhere"))),
        ("the plan makes two of container `skill-tickets`", refusal(|plan| plan.parts.push(plan.parts[2].clone()))),
        (
            "the plan makes two of container `check-network`",
            refusal(|plan| plan.parts[2].name.0 = "check-network".to_owned()),
        ),
        ("the plan makes two of volume `executor`", refusal(|plan| plan.volumes[0].name.0 = "executor".to_owned())),
        (
            "the plan calls a volume `a.b`, which names nothing in Kubernetes",
            refusal(|plan| plan.volumes[0].name.0 = "a.b".to_owned()),
        ),
        ("the plan has no part of role bridge", refusal(|plan| drop(plan.parts.remove(1)))),
        (
            "the plan names the input of part `skill-tickets` and does not have it",
            refusal(|plan| plan.volumes.retain(|volume| volume.name.0 != "skill-0-input")),
        ),
        ("the plan names identity `skill-0` and does not have it", refusal(|plan| plan.identities.clear())),
        (
            "the plan calls an identity `Skill_0`, which names nothing in Kubernetes",
            refusal(|plan| plan.identities[0].name.0 = "Skill_0".to_owned()),
        ),
        (
            "volume `mine` is of a kind that this release does not know",
            refusal(|plan| {
                declare(plan, json!({ "cloud": { "id": 1 } }));
                mount(&mut plan.parts[2], "declared");
            }),
        ),
        (
            "volume `mine` is of a kind that this release does not know",
            refusal(|plan| {
                declare(plan, json!({ "emptyDir": { "medium": "Memory", "speed": 2 } }));
                mount(&mut plan.parts[2], "declared");
            }),
        ),
    ];
    for (expected, error) in rows {
        assert_eq!(error, expected);
    }
    // `skill-0` and `skill0` would be one object.
    let error = refusal(|plan| {
        let mut twin = plan.identities[0].clone();
        twin.name.0 = "skill0".to_owned();
        plan.identities.push(twin);
    });
    assert!(error.starts_with("the plan makes two of ServiceAccount"), "{error}");
}

#[test]
fn texts_that_changed_since_are_refused() {
    let look = |plan: &RunPlan, texts: &[PackTexts<'_>]| {
        let mut skills = texts[0].skills.to_vec();
        skills[1].content.push('!');
        let texts = [PackTexts { pack: texts[0].pack.clone(), skills: &skills }];
        let settings = RenderSettings::default();
        let other = render(plan, &texts, &settings).expect_err("a refusal");
        let none = render(plan, &[], &settings).expect_err("a refusal");
        (other.to_string(), none.to_string())
    };
    let (other, none) = with_plan(&Harness::from_yaml(ONE_SKILL), look).expect("an admitted run");
    assert_eq!(other, "the texts of skill `close` of pack `tickets` are not those that were planned");
    assert_eq!(none, "the plan names the texts of pack `tickets` and does not have it");
}

/// The pod of a run as JSON, for short checks.
fn pod(rendered: &Rendered) -> serde_json::Value {
    let template = rendered.objects.iter().find_map(|object| object.object.pod_template());
    let mut spec = serde_json::to_value(template).expect("a pod")["spec"].take();
    // Another plan has another digest.
    spec["containers"][1]["args"][0].take();
    spec
}

#[test]
fn access_to_the_node_loosens_its_own_container_only() {
    let everything = |plan: &mut RunPlan| {
        plan.parts[2].host_access = Some(HostAccess {
            enabled: true,
            host_network: true,
            host_pid: true,
            privileged: true,
            run_as_root: true,
            mounts: Vec::new(),
        });
    };
    let rendered = changed(everything).expect("a rendered plan");
    let spec = pod(&rendered);
    assert_eq!((&spec["hostNetwork"], &spec["hostPID"]), (&json!(true), &json!(true)));
    assert_eq!(
        spec["initContainers"][1]["securityContext"],
        json!({
            "allowPrivilegeEscalation": true, "privileged": true, "readOnlyRootFilesystem": true,
            "runAsGroup": 0, "runAsNonRoot": false, "runAsUser": 0, "seccompProfile": { "type": "RuntimeDefault" },
        })
    );
    let plain = pod(&changed(|_| {}).expect("a rendered plan"));
    for (list, place) in [("containers", 0), ("containers", 1), ("initContainers", 0)] {
        assert_eq!(spec[list][place], plain[list][place]);
    }
    assert_eq!(spec["securityContext"], plain["securityContext"]);

    // Access that is disabled has no effect.
    let off = changed(|plan| {
        everything(plan);
        plan.parts[2].host_access.as_mut().expect("access").enabled = false;
    });
    assert_eq!(pod(&off.expect("a rendered plan")), plain);

    let namespaced = RenderSettings { host_users: Some(false), ..RenderSettings::default() };
    let error = changed_for(&namespaced, everything).expect_err("a refusal");
    assert!(matches!(error, RenderError::HostAccessInUserNamespace { .. }), "{error}");
}

/// A parameter of a run that names a variable of the pack must not show that variable's Secret.
#[test]
fn texts_of_users_mean_nothing_to_the_kubelet() {
    let rendered = changed(|plan| {
        let skill = &mut plan.parts[2];
        skill.env[0].value = Some("$(TOKEN) $$ $".to_owned());
        skill.start =
            Start::Image { command: vec!["run".to_owned(), "$(TOKEN)".to_owned()], args: vec!["$HOME".to_owned()] };
    });
    let skill = &pod(&rendered.expect("a rendered plan"))["initContainers"][1];
    assert_eq!(skill["env"][0]["value"], "$$(TOKEN) $$$$ $$");
    assert_eq!(skill["command"], json!(["run", "$$(TOKEN)"]));
    assert_eq!(skill["args"], json!(["$$HOME"]));
}

#[test]
fn settings_say_what_a_plan_cannot_know() {
    let settings = RenderSettings {
        host_users: Some(false),
        ttl_seconds_after_finished: Some(7),
        sandbox_version: Some(SandboxVersion::V1Alpha1),
        ..RenderSettings::default()
    };
    let rendered = changed_for(&settings, |plan| {
        plan.cleanup = Default::default();
        plan.isolation.seccomp =
            SeccompProfile { type_: SeccompProfileType::Localhost, localhost_profile: Some("run.json".to_owned()) };
    });
    let rendered = rendered.expect("a rendered plan");
    let job = rendered.objects.last().expect("a Job").object.to_value().expect("JSON");
    assert_eq!(job["spec"]["ttlSecondsAfterFinished"], 7);
    let spec = pod(&rendered);
    assert_eq!(spec["hostUsers"], false);
    let profile = json!({ "type": "Localhost", "localhostProfile": "run.json" });
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array().expect("containers") {
            assert_eq!(container["securityContext"]["seccompProfile"], profile);
        }
    }

    let sandbox = changed_for(&settings, |plan| plan.workload = Workload::Sandbox { warm_pool: None });
    let sandbox = sandbox.expect("a rendered plan");
    let sandbox = sandbox.objects.last().expect("a Sandbox").object.to_value().expect("JSON");
    assert_eq!(sandbox["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(sandbox["spec"]["replicas"], 1);
    assert_eq!(sandbox["spec"]["operatingMode"], json!(null));
}

#[test]
fn addresses_of_both_families_are_written_as_one_host() {
    let settings = RenderSettings {
        api_server: vec![("2001:db8::1".parse().expect("an address"), 6443)],
        ..RenderSettings::default()
    };
    let rendered = changed_for(&settings, |_| {}).expect("a rendered plan");
    let policy = rendered.objects[0].object.to_value().expect("JSON");
    assert_eq!(
        policy["spec"]["egress"][1],
        json!({ "to": [{ "ipBlock": { "cidr": "2001:db8::1/128" } }], "ports": [{ "protocol": "TCP", "port": 6443 }] })
    );
}

/// Without a limit it could fill the node's disk.
#[test]
fn scratch_space_of_users_is_bounded() {
    for (source, expected) in [
        (json!({}), json!({ "sizeLimit": "1Gi" })),
        (json!({ "emptyDir": {} }), json!({ "sizeLimit": "1Gi" })),
        (
            json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "5Mi" } }),
            json!({ "medium": "Memory", "sizeLimit": "5Mi" }),
        ),
    ] {
        let rendered = changed(|plan| {
            declare(plan, source);
            mount(&mut plan.parts[2], "declared");
        });
        let spec = pod(&rendered.expect("a rendered plan"));
        let volumes = spec["volumes"].as_array().expect("volumes");
        let declared = volumes.iter().find(|volume| volume["name"] == "declared");
        assert_eq!(declared.expect("the volume")["emptyDir"], expected);
    }
}

/// Nothing in a pod shows whether its kubelet bounds processes, so the operator must set it.
#[test]
fn a_floor_with_pids_needs_the_word_of_the_operator() {
    let floor = |plan: &mut RunPlan| plan.isolation.floor = vec![Guarantee::Pids];
    let error = changed(floor).expect_err("a refusal");
    assert!(matches!(error, RenderError::NoPidsLimit), "{error}");
    let settings = RenderSettings { pod_pids_limit: true, ..RenderSettings::default() };
    let rendered = changed_for(&settings, floor).expect("objects");
    let bridge = arguments(&rendered, "ipc-bridge");
    let holds = "--platform-holds=filesystem,network,memory,cpu,pids".to_owned();
    assert!(bridge.contains(&holds), "{bridge:?}");
}

/// The executor recognises gVisor, so the platform does not vouch for it; another kernel looks like the node's.
#[test]
fn a_listed_handler_decides_the_arguments_of_the_executor() {
    for (handler, gvisor, profile, holds) in [
        (Some("runsc"), true, "--profile=gvisor", ""),
        (Some("kata"), false, "--profile=auto", ",kernel"),
        (None, false, "--profile=auto", ""),
    ] {
        let rendered = changed(|plan| {
            plan.isolation.kernel = handler.map(|handler| KernelPlan { handler: handler.to_owned(), gvisor });
            for part in plan.parts.iter_mut().filter(|part| part.role.pack().is_some()) {
                part.start = Start::Injected { executor: part.image.clone() };
            }
        });
        let rendered = rendered.expect("objects");
        let platform = format!("--platform-holds=filesystem,network,memory,cpu{holds}");
        let skill = arguments(&rendered, "skill-tickets");
        assert!(skill.iter().any(|argument| argument == profile), "{skill:?}");
        for part in ["skill-tickets", "ipc-bridge"] {
            let arguments = arguments(&rendered, part);
            assert!(arguments.contains(&platform), "{part}: {arguments:?}");
        }
    }
}

fn arguments(rendered: &Rendered, name: &str) -> Vec<String> {
    let pods = rendered.objects.iter();
    let mut pods = pods.filter_map(|pod| pod.object.pod_template()?.spec.clone());
    let pod = pods.next().expect("a pod");
    let first = pod.init_containers.into_iter().flatten();
    let mut all = first.chain(pod.containers);
    let container = all.find(|init_container| init_container.name == name).expect(name);
    container.args.unwrap_or_default()
}
