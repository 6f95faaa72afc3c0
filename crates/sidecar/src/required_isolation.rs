//! The guarantees that a run's plan requires of its executor, and those that the platform may hold instead.

use std::collections::BTreeSet;

use anyhow::anyhow;
use sympozium_api::Guarantee;
use sympozium_exec::report::GuaranteeState;
use sympozium_exec::{Floor, IsolationReport, Profile};
use sympozium_program::Failure;

use crate::arguments::{GuaranteeArgument, IpcArguments};

/// Who holds a kernel of its own that looks like the node's from inside.
const KERNEL_HOLDER: &str = "the handler of the pod's RuntimeClass";

/// The isolation floor of the plan, for an injected executor, whose command line is its whole configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredIsolation {
    floor: BTreeSet<Guarantee>,
    held_by_platform: BTreeSet<Guarantee>,
}

impl RequiredIsolation {
    /// `None` where the executor is not an injected one.
    pub fn from_arguments(arguments: &IpcArguments) -> Option<Self> {
        let set = |words: &Option<Vec<GuaranteeArgument>>| {
            GuaranteeArgument::guarantees(words.as_deref().unwrap_or_default()).collect()
        };
        arguments.injected.then(|| Self {
            floor: set(&arguments.sandbox.minimum_isolation),
            held_by_platform: set(&arguments.platform_holds),
        })
    }

    /// The floor for the executor itself: all that its profile enforces, and what the plan requires. A kernel that the
    /// platform holds is left out, because the executor cannot distinguish it from the node's.
    pub fn executor_floor(&self, profile: Profile) -> Floor {
        let required = self.floor.iter().copied();
        let required = required.filter(|guarantee| *guarantee != Guarantee::Kernel || !self.has_platform_kernel());
        let floor: BTreeSet<_> = Floor::of_profile(profile).guarantees().chain(required).collect();
        floor.into_iter().collect()
    }

    /// The report, with a kernel that the platform holds marked as delegated.
    ///
    /// # Errors
    ///
    /// When the plan requires a guarantee that the executor delegates and the platform does not hold.
    pub fn check(&self, report: &IsolationReport) -> Result<IsolationReport, Failure> {
        let mut report = report.clone();
        let kernel = report.guarantees.get(&Guarantee::Kernel);
        if self.has_platform_kernel() && matches!(kernel, Some(GuaranteeState::NotHeld { .. })) {
            let to = KERNEL_HOLDER.to_owned();
            report.guarantees.insert(Guarantee::Kernel, GuaranteeState::Delegated { to });
        }
        let below = self.floor.iter().filter_map(|guarantee| match report.guarantees.get(guarantee) {
            Some(GuaranteeState::Enforced { .. }) => None,
            Some(GuaranteeState::Delegated { .. }) if self.held_by_platform.contains(guarantee) => None,
            Some(state) => Some(format!("{guarantee} is {state}")),
            None => Some(format!("{guarantee} is not reported")),
        });
        let below: Vec<String> = below.collect();
        if below.is_empty() {
            return Ok(report);
        }
        Err(Failure::new(
            anyhow!(
                "the isolation is below the floor of the run's plan, and the platform does not hold it: {}",
                below.join("; ")
            ),
            "remove it from `minimumIsolation`, or let the platform hold it: see docs/isolation.md",
        ))
    }

    fn has_platform_kernel(&self) -> bool {
        self.held_by_platform.contains(&Guarantee::Kernel)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sympozium_exec::features::layers_of;

    use super::*;

    fn required(floor: &[Guarantee], platform: &[Guarantee]) -> RequiredIsolation {
        RequiredIsolation {
            floor: floor.iter().copied().collect(),
            held_by_platform: platform.iter().copied().collect(),
        }
    }

    /// A report in which every layer of the profile is live.
    fn report(profile: Profile) -> IsolationReport {
        let layers = layers_of(profile).into_iter();
        let layers: BTreeMap<_, _> = layers.map(|layer| (layer, String::new())).collect();
        IsolationReport::new(profile, layers)
    }

    /// Every guarantee, in both profiles of pods: an enforced one needs nothing else, a delegated one needs the platform,
    /// and one that is not held is refused; except the kernel, which only the platform can know of.
    #[test]
    fn a_delegated_guarantee_counts_where_the_platform_holds_it() {
        for profile in [Profile::Container, Profile::Gvisor] {
            let report = report(profile);
            for guarantee in Guarantee::ALL {
                let without_platform = required(&[guarantee], &[]).check(&report).is_ok();
                let with_platform = required(&[guarantee], &[guarantee]).check(&report).is_ok();
                let expected = match report.guarantees[&guarantee] {
                    GuaranteeState::Enforced { .. } => (true, true),
                    GuaranteeState::Delegated { .. } => (false, true),
                    GuaranteeState::NotHeld { .. } => (false, guarantee == Guarantee::Kernel),
                };
                assert_eq!((without_platform, with_platform), expected, "{guarantee} in {profile}");
            }
        }
    }

    #[test]
    fn the_platform_cannot_hold_what_the_executor_must_enforce() {
        let report = IsolationReport::new(Profile::Container, BTreeMap::new());
        for guarantee in [Guarantee::Filesystem, Guarantee::Processes, Guarantee::Syscalls] {
            let required = required(&[guarantee], &Guarantee::ALL);
            assert!(required.check(&report).is_err(), "{guarantee}");
        }
    }

    #[test]
    fn the_floor_of_the_profile_is_never_lowered() {
        let nothing = required(&[], &Guarantee::ALL);
        for profile in Profile::ALL {
            assert_eq!(nothing.executor_floor(profile), Floor::of_profile(profile));
        }
        let kernel = required(&[Guarantee::Kernel], &[]);
        let floor = kernel.executor_floor(Profile::Container);
        assert!(floor.guarantees().any(|guarantee| guarantee == Guarantee::Kernel));
        let held = required(&[Guarantee::Kernel], &[Guarantee::Kernel]);
        let floor = held.executor_floor(Profile::Container);
        assert_eq!(floor, Floor::of_profile(Profile::Container));
        let report = held.check(&report(Profile::Container)).unwrap();
        let state = &report.guarantees[&Guarantee::Kernel];
        assert!(matches!(state, GuaranteeState::Delegated { .. }), "{state}");
    }
}
