//! CAs that the operator has set reach the bridge and no other container; without the setting, none.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use sympozium_api::run_plan::Role;

use super::checks::{containers, pods};
use super::rendered;
use crate::render::{Object, RenderSettings, Rendered, SecretPurpose, key};

const FLAG: &str = "--certificates=/run/sympozium/certificates.pem";

/// Containers with the flag, and parts whose Secret has the key.
fn recipients(rendered: &Rendered) -> (Vec<String>, Vec<String>) {
    let flagged = |(spec, _): (PodSpec, _)| {
        let has_flag = |container: &&Container| container.args.iter().flatten().any(|arg| arg == FLAG);
        let found = containers(&spec).filter(has_flag);
        found.map(|container| container.name.clone()).collect::<Vec<_>>()
    };
    let keyed = rendered.pending_secrets.iter().filter_map(|skeleton| {
        let SecretPurpose::Input { part } = &skeleton.purpose else {
            return None;
        };
        let has_key = skeleton.keys.iter().any(|name| name == key::CERTIFICATES);
        has_key.then(|| part.0.clone())
    });
    (pods(rendered).flat_map(flagged).collect(), keyed.collect())
}

#[test]
fn certificates_reach_the_bridge_only_where_the_operator_has_set_some() {
    let manifests = include_str!("fixtures/four-skills.yaml");
    let (plan, plain) = rendered(manifests, &RenderSettings::default());
    assert_eq!(recipients(&plain), (Vec::new(), Vec::new()));
    let shown = format!("{plain:?}");
    assert!(!shown.contains("--certificates") && !shown.contains(key::CERTIFICATES));

    let settings = RenderSettings { certificates: Some("a certificate".to_owned()), ..RenderSettings::default() };
    let (same_plan, trusting) = rendered(manifests, &settings);
    // CAs belong to the installation, not to the plan of a run.
    assert_eq!(same_plan, plan);
    let mut parts = plan.parts.iter();
    let bridge = parts.find(|part| part.role == Role::Bridge).expect("a bridge");
    let bridge = vec![bridge.name.0.clone()];
    assert_eq!(recipients(&trusting), (bridge.clone(), bridge));
    // The controller fills the Secret; no rendered object has the text.
    assert!(!format!("{trusting:?}").contains("a certificate"));
    // Nothing else differs.
    let others = |rendered: &Rendered| -> Vec<Object> {
        let objects = rendered.objects.iter().map(|item| item.object.clone());
        objects.filter(|object| object.pod_template().is_none()).collect()
    };
    assert_eq!(others(&trusting), others(&plain));
}
