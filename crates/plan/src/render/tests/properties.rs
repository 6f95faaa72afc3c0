//! Properties of every run, whatever its name and its contents.
//!
//! Numbers in comments are those of the design's invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};
use proptest::prelude::*;
use sympozium_api::RunPlan;
use sympozium_api::labels::{self, annotation};
use sympozium_api::names::LabelName;
use sympozium_api::run_plan::{Role, VolumeSource};
use sympozium_testkit::runs::generated;

use super::checks::{
    check_container_confined, check_pod_confined, containers, is_label_value, pods, rule, same_mounts, same_resources,
    same_start, same_variables, templates, variables_from_secrets, volumes,
};
use super::with_plan;
use crate::plan::tests::harness::Harness;
use crate::plan::tests::powers::secrets_of;
use crate::render::{CreationStep, Object, RenderSettings, Rendered, SecretPurpose, render};

/// The run of a seed; `None` where it is not admitted.
fn run(seed: u64) -> Option<(RunPlan, Rendered)> {
    run_with(seed, |_| {})
}

fn run_with(seed: u64, change: impl FnOnce(&mut Harness)) -> Option<(RunPlan, Rendered)> {
    let mut harness = Harness::from_objects(generated(seed));
    change(&mut harness);
    let settings = RenderSettings::default();
    let looked = with_plan(&harness, |plan, texts| {
        let rendered = render(plan, texts, &settings).expect("a rendered plan");
        (plan.clone(), rendered)
    });
    looked.ok()
}

/// The tests below check nothing about runs that are not admitted: there must be few of them, and all kinds of the
/// others.
#[test]
fn most_runs_that_are_made_up_are_rendered() {
    assert!(RUNS.len() > 120, "{}", RUNS.len());
    let items = || RUNS.iter().flat_map(|(_, _, rendered)| &rendered.objects);
    let kinds: BTreeSet<&str> = items().map(|item| item.object.kind()).collect();
    let all = [
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "Job",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "Role",
        "RoleBinding",
        "Sandbox",
        "Secret",
        "ServiceAccount",
    ];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), all);
    assert!(items().any(|item| item.step == CreationStep::AfterRun));
}

/// The runs that all checks below use, each with its seed. They cost more than the checks.
static RUNS: LazyLock<Vec<(u64, RunPlan, Rendered)>> = LazyLock::new(|| {
    let seeds = 1000..1000 + 200;
    let runs = seeds.filter_map(|seed| run(seed).map(|(plan, rendered)| (seed, plan, rendered)));
    runs.collect()
});

/// Checks of one run, for every run.
macro_rules! of_every_run {
    ($($(#[$meta:meta])* $test:ident($plan:ident, $rendered:ident) $body:block)*) => {
        $(
            $(#[$meta])*
            #[test]
            fn $test() {
                for (seed, $plan, $rendered) in RUNS.iter() {
                    // Printed when the check fails.
                    eprintln!("the run of seed {seed}");
                    $body
                }
            }
        )*
    };
}

of_every_run! {
    no_two_objects_have_one_name_and_all_names_are_labels(_plan, rendered) {
        let mut seen = BTreeSet::new();
        for item in &rendered.objects {
            let object = &item.object;
            assert_eq!(LabelName::new(object.name()).check(), Ok(()));
            assert!(seen.insert((object.kind(), object.namespace(), object.name())), "{}", object.name());
            let values = object.metadata().labels.iter().flatten();
            let pod = object.pod_template().and_then(|pod_template| pod_template.metadata.as_ref());
            for (_, value) in values.chain(pod.iter().flat_map(|pod| pod.labels.iter().flatten())) {
                assert!(is_label_value(value), "{}", value);
            }
        }
    }

    objects_come_in_the_order_of_their_stages(_plan, rendered) {
        let stages: Vec<CreationStep> = rendered.objects.iter().map(|item| item.step).collect();
        assert!(stages.is_sorted());
        assert_eq!(rendered.objects_of_step(CreationStep::Workload).count(), 1);
    }

    /// 5: namespaced objects are deleted with the run, and the rest is found by its labels.
    every_object_says_whose_it_is(plan, rendered) {
        for item in &rendered.objects {
            let metadata = item.object.metadata();
            let cluster_wide = matches!(item.object, Object::ClusterRole(_) | Object::ClusterRoleBinding(_));
            assert_eq!(metadata.namespace.is_none(), cluster_wide);
            let owners = metadata.owner_references.clone().unwrap_or_default();
            if cluster_wide {
                assert!(owners.is_empty());
            } else {
                assert_eq!(metadata.namespace.as_deref(), Some(plan.run.namespace.as_str()));
                assert_eq!(owners.len(), 1);
                assert_eq!(&owners[0].uid, plan.run.uid.as_str());
                assert_eq!(&owners[0].name, plan.run.name.as_str());
                assert_eq!((owners[0].kind.as_str(), owners[0].controller), ("AgentRun", Some(true)));
            }
            let labels = metadata.labels.clone().unwrap_or_default();
            assert_eq!(&labels[labels::RUN_UID], plan.run.uid.as_str());
            assert_eq!(&labels[labels::MANAGED_BY], labels::MANAGER);
            let digest = &metadata.annotations.clone().unwrap_or_default()[annotation::PLAN_DIGEST];
            assert_eq!(digest, rendered.digest.as_str());
        }
    }

    every_container_is_held_in(plan, rendered) {
        for (spec, _) in pods(rendered) {
            check_pod_confined(plan, &spec);
            for container in containers(&spec) {
                check_container_confined(plan, container);
            }
            // Native sidecars are the only containers that are restarted.
            for container in spec.init_containers.iter().flatten() {
                let is_beside = container.restart_policy.as_deref() == Some("Always");
                let acts = container.name.starts_with("skill-") || container.name == "sandbox";
                assert_eq!(is_beside, acts, "{}", container.name);
            }
            let first = spec.init_containers.iter().flatten().next();
            assert_eq!(first.map(|init_container| init_container.name.as_str()), Some("check-network"));
        }
    }

    /// 2: a pod has the parts of the plan with what the plan gives them, and nothing that the plan does not have.
    containers_are_the_parts_of_the_plan(plan, rendered) {
        let mut found = BTreeSet::new();
        for (spec, stage) in pods(rendered) {
            for container in containers(&spec) {
                let Some(part) = plan.parts.iter().find(|part| part.name.0 == container.name) else {
                    assert!(["check-network", "copy-executor"].contains(&container.name.as_str()));
                    assert!(container.env.is_none());
                    continue;
                };
                found.insert(part.name.clone());
                assert_eq!(matches!(part.role, Role::PostRun { .. }), stage == CreationStep::AfterRun);
                same_mounts(part, container);
                same_variables(plan, part, container);
                same_resources(part, container);
                same_start(plan, rendered, part, container);
                assert_eq!(container.image.as_deref(), Some(part.image.as_str()));
            }
            let mounted: BTreeSet<&str> = containers(&spec)
                .flat_map(|container| container.volume_mounts.iter().flatten())
                .map(|mount| mount.name.as_str())
                .collect();
            let there: BTreeSet<&str> = volumes(&spec).map(|volume| volume.name.as_str()).collect();
            assert_eq!(mounted, there);
        }
        assert_eq!(found.len(), plan.parts.len());
    }

    /// 1: no credential, and no way around the door.
    the_agent_holds_nothing(plan, rendered) {
        let (spec, _) = pods(rendered).next().expect("a pod");
        let agent = containers(&spec).find(|container| container.name == "agent").expect("an agent");
        assert!(variables_from_secrets(agent).is_empty());
        for mount in agent.volume_mounts.iter().flatten() {
            let volume = volumes(&spec).find(|volume| volume.name == mount.name).expect("a volume");
            assert!(volume.secret.is_none() && volume.host_path.is_none());
            let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
            for source in projected {
                assert!(source.secret.is_none() && source.service_account_token.is_none());
            }
            assert!(!mount.mount_path.starts_with("/ipc"));
            // Nor under another name.
            let others = containers(&spec).flat_map(|container| container.volume_mounts.iter().flatten());
            let mut others = others.filter(|other| other.name == mount.name);
            assert!(others.all(|other| !other.mount_path.starts_with("/ipc")));
        }
        // Neither its container nor its input has an address or a Secret.
        let input = rendered.objects.iter().find_map(|item| match &item.object {
            Object::ConfigMap(it) => it.data.as_ref()?.get("agent.json").cloned(),
            _ => None,
        });
        let shown = format!("{}{}", serde_json::to_string(agent).expect("JSON"), input.expect("an input"));
        let secrets = plan.parts.iter().flat_map(|part| secrets_of(plan, part));
        let address = plan.model.endpoint.iter().map(|endpoint| endpoint.host.as_str());
        for hidden in secrets.chain(address) {
            assert!(!shown.contains(hidden), "{}", hidden);
        }
    }

    /// 2: a pod has the access to the node that the plan gives, and images are pulled with the Secrets of the plan.
    what_is_of_the_node_is_the_plans(plan, rendered) {
        let mut planned: BTreeSet<(&str, &str)> = BTreeSet::new();
        for volume in &plan.volumes {
            let path = match &volume.source {
                VolumeSource::Host { path } => Some(path.as_str()),
                VolumeSource::Declared { volume } => volume.source.get("hostPath").and_then(|host_path| host_path["path"].as_str()),
                _ => None,
            };
            planned.extend(path.map(|path| (volume.name.0.as_str(), path)));
        }
        let specs: Vec<_> = pods(rendered).collect();
        let made = specs.iter().flat_map(|(spec, _)| volumes(spec));
        let made: BTreeSet<_> = made.filter_map(|volume| Some((volume.name.as_str(), volume.host_path.as_ref()?.path.as_str()))).collect();
        assert_eq!(made, planned);
        for (spec, _) in &specs {
            let pulled: Vec<_> = spec.image_pull_secrets.iter().flatten().map(|image_pull_secret| image_pull_secret.name.as_str()).collect();
            let asked: Vec<_> = plan.placement.image_pull_secrets.iter().map(|image_pull_secret| image_pull_secret.name.as_str()).collect();
            assert_eq!(pulled, asked);
            assert_eq!(spec.node_selector.clone().unwrap_or_default(), plan.placement.node_selector);
            assert_eq!(spec.runtime_class_name.as_deref(), plan.isolation.runtime_class.as_ref().map(|runtime_class| runtime_class.as_str()));
        }
    }

    the_providers_keys_are_the_bridges(plan, rendered) {
        let keys: BTreeSet<&str> = plan.model.keys.iter().map(|key| key.secret.as_str()).collect();
        for (spec, _) in pods(rendered) {
            for container in containers(&spec) {
                let held: BTreeSet<String> = variables_from_secrets(container);
                let held = held.iter().any(|secret| keys.contains(secret.as_str()));
                assert_eq!(held, container.name == "ipc-bridge" && !keys.is_empty());
            }
            let shown = volumes(&spec).filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref());
            assert_eq!(shown.filter(|secret| keys.contains(secret)).count(), 0);
            let headers = plan.model.headers_secret.as_ref().map(|headers_secret| headers_secret.as_str());
            for container in containers(&spec) {
                let part = plan.parts.iter().find(|part| part.name.0 == container.name);
                let seen = part.map(|part| secrets_of(plan, part)).unwrap_or_default();
                let held = headers.is_some_and(|header| seen.contains(header));
                assert_eq!(held, container.name == "ipc-bridge" && headers.is_some());
            }
        }
    }

    /// A skill sees its own volumes, the workspace, and nothing of another skill.
    what_skills_share_is_the_workspace_and_the_executor(plan, rendered) {
        for (spec, _) in pods(rendered) {
            let mut users: BTreeMap<&str, Vec<(&str, &str, bool)>> = BTreeMap::new();
            for container in containers(&spec) {
                for mount in container.volume_mounts.iter().flatten() {
                    let read_only = mount.read_only == Some(true);
                    users.entry(&mount.name).or_default().push((&container.name, &mount.mount_path, read_only));
                }
            }
            for (volume, users) in users {
                match volume {
                    "workspace" => assert!(users.iter().all(|(user, _, _)| *user != "ipc-bridge")),
                    "door" => assert_eq!(users, [("agent", "/run/door", true), ("ipc-bridge", "/run/door", false)]
                        .into_iter().collect::<Vec<_>>()),
                    "executor" => for (user, place, read_only) in users {
                        assert_eq!(read_only, user != "copy-executor");
                        assert_eq!(place == "/opt/sympozium/bin", read_only);
                    },
                    _ if users.iter().any(|(_, place, _)| *place == "/ipc") => {
                        assert_eq!(users.len(), 2);
                        let (skill, _, _) = users.iter().find(|(_, place, _)| *place == "/ipc").expect("a skill");
                        let role = &plan.parts.iter().find(|part| part.name.0 == *skill).expect("a part").role;
                        let place = format!("/ipc/{}", role.pack().expect("a pack"));
                        assert!(users.contains(&("ipc-bridge", place.as_str(), false)), "{:?}", users);
                    }
                    _ => assert_eq!(users.len(), 1, "{}: {:?}", volume, users),
                }
            }
        }
    }

    /// 2: permissions are those of the plan, for the identities of the plan.
    rights_are_those_of_the_plan(plan, rendered) {
        let mut granted: BTreeMap<(&str, String), Vec<PolicyRule>> = BTreeMap::new();
        let mut bound: BTreeMap<(&str, String), (RoleRef, Vec<Subject>)> = BTreeMap::new();
        for item in &rendered.objects {
            let name = item.object.name().to_owned();
            match &item.object {
                Object::Role(it) => drop(granted.insert(("Role", name), it.rules.clone().unwrap_or_default())),
                Object::ClusterRole(it) => {
                    assert!(it.aggregation_rule.is_none());
                    granted.insert(("ClusterRole", name), it.rules.clone().unwrap_or_default());
                }
                Object::RoleBinding(it) => {
                    bound.insert(("Role", name), (it.role_ref.clone(), it.subjects.clone().unwrap_or_default()));
                }
                Object::ClusterRoleBinding(it) => {
                    bound.insert(("ClusterRole", name), (it.role_ref.clone(), it.subjects.clone().unwrap_or_default()));
                }
                _ => {}
            }
        }
        let mut expected = 0;
        for identity in &plan.identities {
            let account = rendered.pending_secrets.iter().find_map(|pending_secret| match &pending_secret.purpose {
                SecretPurpose::Token { identity: whose, service_account, .. } if *whose == identity.name => Some(service_account),
                _ => None,
            });
            let account = account.expect("an account");
            for (kind, rules) in [("Role", &identity.namespace_rules), ("ClusterRole", &identity.cluster_rules)] {
                if rules.is_empty() {
                    continue;
                }
                expected += 1;
                let key = (kind, account.clone());
                assert_eq!(&granted[&key], &rules.iter().map(rule).collect::<Vec<_>>());
                let (role, subjects) = &bound[&key];
                assert_eq!((role.kind.as_str(), &role.name), (kind, account));
                assert_eq!(subjects.len(), 1);
                assert_eq!((subjects[0].kind.as_str(), &subjects[0].name), ("ServiceAccount", account));
                assert_eq!(subjects[0].namespace.as_deref(), Some(plan.run.namespace.as_str()));
            }
        }
        assert_eq!((granted.len(), bound.len()), (expected, expected));
    }

    /// A token is only mounted by the parts of its identity.
    tokens_are_seen_by_their_identity_only(plan, rendered) {
        for skeleton in &rendered.pending_secrets {
            let SecretPurpose::Token { identity, .. } = &skeleton.purpose else { continue };
            for (spec, _) in pods(rendered) {
                let of_token: BTreeSet<&str> = volumes(&spec)
                    .filter(|volume| volume.secret.as_ref().is_some_and(|secret| secret.secret_name.as_ref() == Some(&skeleton.secret)))
                    .map(|volume| volume.name.as_str())
                    .collect();
                for container in containers(&spec) {
                    let sees = container.volume_mounts.iter().flatten().any(|volume_mount| of_token.contains(volume_mount.name.as_str()));
                    let part = plan.parts.iter().find(|part| part.name.0 == container.name);
                    assert_eq!(sees, part.is_some_and(|part| part.identity.as_ref() == Some(identity)));
                }
            }
        }
    }

    /// Every Secret of ours is empty, and lists every key that a container waits for.
    skeletons_have_every_key_that_is_read(_plan, rendered) {
        let mut read: BTreeSet<(String, String)> = BTreeSet::new();
        for (spec, _) in pods(rendered) {
            for volume in volumes(&spec) {
                let plain = volume.secret.iter().map(|secret| (secret.secret_name.clone(), secret.items.clone()));
                let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
                let projected = projected.filter_map(|source| source.secret.as_ref()).map(|secret| (Some(secret.name.clone()), secret.items.clone()));
                for (name, items) in plain.chain(projected) {
                    for item in items.into_iter().flatten() {
                        read.insert((name.clone().unwrap_or_default(), item.key));
                    }
                }
            }
            for container in containers(&spec) {
                for source in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()?.secret_key_ref.as_ref()) {
                    read.insert((source.name.clone(), source.key.clone()));
                }
            }
        }
        let mut filled = BTreeSet::new();
        let secrets = rendered.objects.iter().filter_map(|item| match &item.object {
            Object::Secret(secret) => Some(secret),
            _ => None,
        });
        let secrets: Vec<_> = secrets.collect();
        assert_eq!(secrets.len(), rendered.pending_secrets.len());
        for secret in secrets {
            assert!(secret.data.is_none() && secret.string_data.is_none());
            let name = secret.metadata.name.clone().unwrap_or_default();
            let skeleton = rendered.pending_secrets.iter().find(|pending_secret| pending_secret.secret == name).expect("a skeleton");
            filled.extend(skeleton.keys.iter().map(|key| (name.clone(), key.clone())));
        }
        let ours = read.into_iter().filter(|(name, _)| rendered.pending_secrets.iter().any(|pending_secret| pending_secret.secret == *name));
        assert_eq!(ours.collect::<BTreeSet<_>>(), filled);
    }

    nothing_but_the_gateway_and_the_api_server_is_reached(plan, rendered) {
        let policy = rendered.objects.iter().find_map(|item| match &item.object {
            Object::NetworkPolicy(policy) => policy.spec.clone(),
            _ => None,
        });
        let policy = policy.expect("a policy");
        assert_eq!(policy.policy_types, Some(vec!["Ingress".to_owned(), "Egress".to_owned()]));
        assert!(policy.ingress.is_none());
        let settings = RenderSettings::default();
        let servers = if plan.identities.is_empty() { 0 } else { settings.api_server.len() };
        let egress = policy.egress.unwrap_or_default();
        assert_eq!(egress.len(), 1 + servers);
        for rule in egress {
            assert!(rule.to.is_some_and(|peers| !peers.is_empty()));
            let ports = serde_json::to_value(rule.ports).expect("ports");
            let port = ports[0]["port"].as_u64().expect("a port");
            assert_eq!(ports.as_array().map(Vec::len), Some(1));
            assert!(port != 53 && port != u64::from(settings.gateway.canary_port));
        }
        let selected = policy.pod_selector.and_then(|pod_selector| pod_selector.match_labels).unwrap_or_default();
        for (_, template) in templates(rendered) {
            let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
            assert!(selected.iter().all(|(name, value)| labels.get(name) == Some(value)));
        }
    }

    /// Without it sockets and inotify between containers do not work in gVisor.
    shared_scratch_space_is_annotated_for_gvisor(_plan, rendered) {
        for (_, template) in templates(rendered) {
            let spec = template.spec.clone().unwrap_or_default();
            let annotations = template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone()).unwrap_or_default();
            let annotated: BTreeSet<&str> = annotations.keys()
                .filter_map(|key| key.strip_prefix("dev.gvisor.spec.mount.")?.strip_suffix(".share"))
                .collect();
            let shared: BTreeSet<&str> = volumes(&spec)
                .filter(|volume| volume.empty_dir.is_some())
                .filter(|volume| containers(&spec).filter(|container| container.volume_mounts.iter().flatten().any(|volume_mount| volume_mount.name == volume.name)).count() > 1)
                .map(|volume| volume.name.as_str())
                .collect();
            assert_eq!(&annotated, &shared);
            for name in shared {
                let medium = volumes(&spec).find(|volume| volume.name == name).and_then(|volume| volume.empty_dir.as_ref()?.medium.clone());
                let expected = if medium.is_some() { "tmpfs" } else { "bind" };
                assert_eq!(&annotations[&format!("dev.gvisor.spec.mount.{name}.type")], expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_same_plan_gives_the_same_bytes(seed in any::<u64>()) {
        let bytes = |(_, rendered): (RunPlan, Rendered)| {
            let objects: Vec<_> = rendered.objects.iter().map(|object| &object.object).collect();
            serde_json::to_vec(&objects).expect("objects")
        };
        prop_assert_eq!(run(seed).map(bytes), run(seed).map(bytes));
    }

    /// 4: whatever else two runs have in common.
    #[test]
    fn two_runs_share_no_name(seed in any::<u64>(), other in any::<u128>()) {
        let uid = uuid(other);
        if let (Some((plan, one)), Some((_, two))) = (run(seed), run_with(seed, |harness| harness.run.metadata.uid = Some(uid.clone()))) {
            prop_assume!(plan.run.uid != uid.as_str());
            let names = |rendered: &Rendered| -> BTreeSet<String> {
                rendered.objects.iter().map(|object| object.object.name().to_owned()).collect()
            };
            prop_assert_eq!(names(&one).intersection(&names(&two)).count(), 0);
        }
    }
}

fn uuid(number: u128) -> String {
    let digits = format!("{number:032x}");
    let (a, b, c, d, e) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}
