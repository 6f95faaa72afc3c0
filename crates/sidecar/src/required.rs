//! What a run's plan requires of its executor, and which of it the platform may hold instead.

use std::collections::BTreeSet;

use anyhow::anyhow;
use sympozium_api::Guarantee;
use sympozium_exec::report::GuaranteeState;
use sympozium_exec::{Floor, IsolationReport, Profile};
use sympozium_program::Failure;

use crate::arguments::{IpcArguments, Minimum};

/// Who holds a kernel that cannot be told from inside.
const KERNEL_HOLDER: &str = "the handler of the pod's RuntimeClass";

/// The plan's floor, for an executor that is told everything by its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Required {
    floor: BTreeSet<Guarantee>,
    platform: BTreeSet<Guarantee>,
}

impl Required {
    /// What the command line says; nothing where the executor is not an injected one.
    pub fn of(arguments: &IpcArguments) -> Option<Self> {
        let set = |words: &Option<Vec<Minimum>>| Minimum::guarantees(words.as_deref().unwrap_or_default()).collect();
        arguments.injected.then(|| Self {
            floor: set(&arguments.sandbox.minimum_isolation),
            platform: set(&arguments.platform_holds),
        })
    }

    /// What the executor itself must hold: all that its profile enforces, and what the plan asks for. A kernel that the
    /// platform gives looks like the node's from here.
    pub fn floor_in(&self, profile: Profile) -> Floor {
        let asked = self.floor.iter().copied();
        let asked = asked.filter(|it| *it != Guarantee::Kernel || !self.has_platform_kernel());
        let floor: BTreeSet<_> = Floor::of_profile(profile).guarantees().chain(asked).collect();
        floor.into_iter().collect()
    }

    /// The report with what the platform holds in it.
    ///
    /// # Errors
    ///
    /// When something that the plan asks for is left to a platform that does not hold it.
    pub fn check(&self, report: &IsolationReport) -> Result<IsolationReport, Failure> {
        let mut report = report.clone();
        let kernel = report.guarantees.get(&Guarantee::Kernel);
        if self.has_platform_kernel() && matches!(kernel, Some(GuaranteeState::NotHeld { .. })) {
            let to = KERNEL_HOLDER.to_owned();
            report.guarantees.insert(Guarantee::Kernel, GuaranteeState::Delegated { to });
        }
        let below = self.floor.iter().filter_map(|guarantee| match report.guarantees.get(guarantee) {
            Some(GuaranteeState::Enforced { .. }) => None,
            Some(GuaranteeState::Delegated { .. }) if self.platform.contains(guarantee) => None,
            Some(standing) => Some(format!("{guarantee} is {standing}")),
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
            "take it out of `minimumIsolation`, or have the platform hold it: docs/isolation.md says how",
        ))
    }

    fn has_platform_kernel(&self) -> bool {
        self.platform.contains(&Guarantee::Kernel)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sympozium_exec::features::layers_of;

    use super::*;

    fn required(floor: &[Guarantee], platform: &[Guarantee]) -> Required {
        Required { floor: floor.iter().copied().collect(), platform: platform.iter().copied().collect() }
    }

    /// A report in which everything is live that the profile rests on.
    fn report(profile: Profile) -> IsolationReport {
        let layers = layers_of(profile).into_iter();
        let layers: BTreeMap<_, _> = layers.map(|layer| (layer, String::new())).collect();
        IsolationReport::new(profile, layers)
    }

    /// Every guarantee, in both profiles of pods: what is enforced needs nobody, what is delegated needs the platform, and
    /// what is not held is refused; but for the kernel, which only the platform can know of.
    #[test]
    fn what_is_delegated_counts_where_the_platform_holds_it() {
        for profile in [Profile::Container, Profile::Gvisor] {
            let report = report(profile);
            for guarantee in Guarantee::ALL {
                let alone = required(&[guarantee], &[]).check(&report).is_ok();
                let held = required(&[guarantee], &[guarantee]).check(&report);
                let expected = match report.guarantees[&guarantee] {
                    GuaranteeState::Enforced { .. } => (true, true),
                    GuaranteeState::Delegated { .. } => (false, true),
                    GuaranteeState::NotHeld { .. } => (false, guarantee == Guarantee::Kernel),
                };
                assert_eq!((alone, held.is_ok()), expected, "{guarantee} in {profile}");
            }
        }
    }

    #[test]
    fn the_platform_cannot_hold_what_the_executor_must() {
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
            assert_eq!(nothing.floor_in(profile), Floor::of_profile(profile));
        }
        let kernel = required(&[Guarantee::Kernel], &[]);
        let floor = kernel.floor_in(Profile::Container);
        assert!(floor.guarantees().any(|it| it == Guarantee::Kernel));
        let vouched = required(&[Guarantee::Kernel], &[Guarantee::Kernel]);
        let floor = vouched.floor_in(Profile::Container);
        assert_eq!(floor, Floor::of_profile(Profile::Container));
        let report = vouched.check(&report(Profile::Container)).unwrap();
        let standing = &report.guarantees[&Guarantee::Kernel];
        assert!(matches!(standing, GuaranteeState::Delegated { .. }), "{standing}");
    }
}
