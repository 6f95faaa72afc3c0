//! What the summary says that a run cannot do is held against its plan.

use proptest::prelude::*;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::VolumeSource;

use super::plans::any_plan;
use crate::explain::explain;

/// Whether a run has anything of the node.
fn touches_node(plan: &RunPlan) -> bool {
    let volumes = plan.volumes.iter().any(|it| match &it.source {
        VolumeSource::Host { .. } => true,
        VolumeSource::Declared { volume } => volume.source.contains_key("hostPath"),
        _ => false,
    });
    let mut access = plan.parts.iter().filter_map(|it| it.host_access.as_ref());
    volumes
        || access.any(|it| {
            let asks = it.privileged || it.host_network || it.host_pid || it.run_as_root;
            it.enabled && (asks || !it.mounts.is_empty())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn who_has_anything_of_the_node_is_not_said_to_have_nothing(plan in any_plan()) {
        let explanation = explain(&plan);
        let mut denied = explanation.summary.cannot.iter();
        let says = denied.any(|it| it.contains("the node"));
        prop_assert_eq!(says, !touches_node(&plan));
    }
}
