//! Manifests in, objects out, for people to read.

use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};
use sympozium_api::labels;

use super::rendered;
use crate::plan::agent_view;
use crate::render::RenderSettings;

/// The objects as they are sent, without what other tests check: the plan itself, and its digest.
fn objects(manifests: &str) -> Value {
    let (plan, rendered) = rendered(manifests, &RenderSettings::default());
    let planned = [
        ("plan.json", serde_json::to_value(&plan).expect("a plan")),
        ("agent.json", serde_json::to_value(agent_view(&plan)).expect("a view")),
    ];
    let objects = rendered.objects.iter().map(|item| {
        let mut object = item.object.to_value().expect("an object");
        for (key, planned) in &planned {
            let text = object.pointer_mut(&format!("/data/{key}"));
            if let Some(text) = text {
                let value: Value = serde_json::from_str(text.as_str().unwrap_or_default()).expect("JSON");
                assert_eq!(value, *planned);
                *text = json!("(as planned)");
            }
        }
        json!({ "stage": format!("{:?}", item.step), "object": object })
    });
    let skeletons = rendered.pending_secrets.iter().map(|skeleton| {
        json!({ "secret": skeleton.secret, "for": format!("{:?}", skeleton.purpose), "keys": skeleton.keys })
    });
    json!({ "objects": objects.collect::<Vec<_>>(), "skeletons": skeletons.collect::<Vec<_>>() })
}

macro_rules! golden {
    ($($test:ident: $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                let objects = objects(include_str!(concat!("fixtures/", $name, ".yaml")));
                // It changes with every word of a plan; other tests check that it is the right one.
                insta::with_settings!({ filters => vec![("sha256:[0-9a-f]{64}", "(digest)")] }, {
                    insta::assert_yaml_snapshot!($name, objects);
                });
            }
        )*
    };
}

golden! {
    a_run_without_skills: "plain";
    a_skill_with_rights_a_secret_and_hosts: "one-skill";
    four_skills: "four-skills";
    a_sandbox_and_hooks_before_and_after: "sandbox-and-hooks";
    an_executor_in_images_without_one: "injected";
    a_kernel_of_its_own: "gvisor";
}

/// Names made from those of runs and packs: no two are alike, none is too long.
#[test]
fn names_that_would_run_into_each_other() {
    let manifests = include_str!("fixtures/hostile-names.yaml");
    let (_, rendered) = rendered(manifests, &RenderSettings::default());
    let named = |container: &Container| container.name.clone();
    let first = rendered.objects[0].object.metadata();
    let first = first.labels.clone().unwrap_or_default();
    let run = [labels::RUN, labels::AGENT].map(|label| first[label].clone());
    let objects: Vec<Value> = rendered
        .objects
        .iter()
        .map(|item| {
            let labels = item.object.metadata().labels.clone().unwrap_or_default();
            let pod = item.object.pod_template().and_then(|pod_template| pod_template.spec.as_ref());
            json!({
                "object": format!("{} {}", item.object.kind(), item.object.name()),
                "skill": labels.get(labels::SKILL),
                "containers": pod.map(|pod| {
                    let first = pod.init_containers.iter().flatten().map(named);
                    first.chain(pod.containers.iter().map(named)).collect::<Vec<_>>()
                }),
            })
        })
        .collect();
    insta::assert_yaml_snapshot!("hostile-names", (run, objects));
}
