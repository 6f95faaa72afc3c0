//! The diagnosis of different machines, from their features.

mod machines;

use insta::assert_snapshot;
use sympozium_api::Guarantee;
use sympozium_exec::features::Features;
use sympozium_exec::guarantee::Profile;

use super::diagnosis::Diagnosis;
use super::text::render;

fn text(features: &Features) -> String {
    render(&Diagnosis::from_features(features))
}

#[test]
fn root_with_hybrid_cgroups() {
    let features = machines::root_with_hybrid_cgroups();
    assert_snapshot!(text(&features));
    assert!(Diagnosis::from_features(&features).is_healthy());
}

#[test]
fn ubuntu_with_blocked_user_namespaces() {
    let features = machines::ubuntu_with_blocked_user_namespaces();
    assert_snapshot!(text(&features));
    let diagnosis = Diagnosis::from_features(&features);
    assert_eq!(diagnosis.profile, Profile::Container);
    assert!(!diagnosis.is_healthy());
}

#[test]
fn linux_5_10_without_landlock() {
    let features = machines::linux_5_10_without_landlock();
    assert_snapshot!(text(&features));
    let diagnosis = Diagnosis::from_features(&features);
    let below: Vec<_> = diagnosis.below_floor.keys().copied().collect();
    assert_eq!(below, [Guarantee::Pids]);
}

#[test]
fn pod_on_linux_5_10() {
    let features = machines::pod_on_linux_5_10();
    assert_snapshot!(text(&features));
    let diagnosis = Diagnosis::from_features(&features);
    let below: Vec<_> = diagnosis.below_floor.keys().copied().collect();
    assert_eq!(below, [Guarantee::Filesystem, Guarantee::Processes]);
}

#[test]
fn gvisor_pod() {
    let features = machines::gvisor_pod();
    assert_snapshot!(text(&features));
    assert!(Diagnosis::from_features(&features).is_healthy());
}

#[test]
fn ordinary_user_on_cgroup_v2() {
    let features = machines::ordinary_user_on_cgroup_v2();
    assert_snapshot!(text(&features));
    assert!(Diagnosis::from_features(&features).is_healthy());
}

#[test]
fn json_for_a_blocked_machine() {
    let features = machines::ubuntu_with_blocked_user_namespaces();
    insta::assert_json_snapshot!(Diagnosis::from_features(&features), { ".features" => "[features]" });
}

#[test]
fn no_line_has_trailing_blanks_and_every_missing_layer_has_a_fix() {
    for features in machines::all() {
        let text = text(&features);
        for line in text.lines() {
            assert_eq!(line.trim_end(), line);
        }
        assert!(!text.contains("see fix 0"), "{text}");
    }
}
