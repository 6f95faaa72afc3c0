//! The isolation report of every outcome: what was really live.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sympozium_api::Guarantee;

use crate::guarantee::{Cell, Floor, Layer, Profile, cell};

/// The layers that were live, and the resulting state of each guarantee.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IsolationReport {
    /// The requested profile.
    pub profile: Profile,
    /// Every live layer, with additional information if there is any (`ABI 7`, `v1`, `256`).
    pub layers: BTreeMap<Layer, String>,
    /// The state of each guarantee.
    pub guarantees: BTreeMap<Guarantee, GuaranteeState>,
}

/// Whether one guarantee holds, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum GuaranteeState {
    /// Enforced by us, by these layers.
    Enforced {
        /// The layers that enforce it.
        by: Vec<Layer>,
    },
    /// Enforced by another component; we did not check.
    Delegated {
        /// That component.
        to: String,
    },
    /// Not enforced.
    NotHeld {
        /// The layers that would enforce it and are not live.
        missing: Vec<Layer>,
        /// The reason, for people.
        why: String,
    },
}

impl fmt::Display for GuaranteeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |layers: &[Layer]| layers.iter().map(|layer| layer.as_str()).collect::<Vec<_>>().join(" + ");
        match self {
            Self::Enforced { by } => write!(f, "enforced by {}", names(by)),
            Self::Delegated { to } => write!(f, "delegated to {to}"),
            Self::NotHeld { missing, why } if missing.is_empty() => write!(f, "not held: {why}"),
            Self::NotHeld { missing, why } => {
                write!(f, "not held: {} missing ({why})", names(missing))
            }
        }
    }
}

impl IsolationReport {
    /// Derives from the live `layers` which guarantees hold in `profile`, by the matrix.
    pub fn new(profile: Profile, layers: BTreeMap<Layer, String>) -> Self {
        let guarantees = Guarantee::ALL
            .into_iter()
            .map(|guarantee| (guarantee, guarantee_state(profile, guarantee, &layers)))
            .collect();
        Self { profile, layers, guarantees }
    }

    /// The same outside of a pod: guarantees that the profile delegates to the kubelet do not hold.
    #[must_use]
    pub fn without_pod(mut self) -> Self {
        for standing in self.guarantees.values_mut() {
            if let GuaranteeState::Delegated { .. } = standing {
                *standing = GuaranteeState::NotHeld {
                    missing: Vec::new(),
                    why: "there is no pod around it, and no namespace".to_owned(),
                };
            }
        }
        self
    }

    /// Whether `guarantee` holds, enforced by us or by a component that we delegate to.
    pub fn holds(&self, guarantee: Guarantee) -> bool {
        matches!(
            self.guarantees.get(&guarantee),
            Some(GuaranteeState::Enforced { .. } | GuaranteeState::Delegated { .. })
        )
    }

    /// The guarantees of `floor` that do not hold, each with what is missing.
    pub fn unmet(&self, floor: &Floor) -> Vec<(Guarantee, GuaranteeState)> {
        floor
            .guarantees()
            .filter(|&guarantee| !self.holds(guarantee))
            .filter_map(|guarantee| {
                let standing = self.guarantees.get(&guarantee)?;
                Some((guarantee, standing.clone()))
            })
            .collect()
    }
}

fn guarantee_state(profile: Profile, guarantee: Guarantee, layers: &BTreeMap<Layer, String>) -> GuaranteeState {
    // Without any sockets, the network guarantee holds in every profile.
    if guarantee == Guarantee::Network && layers.contains_key(&Layer::SeccompUnixOnly) {
        let mut by = vec![Layer::SeccompUnixOnly];
        by.extend([Layer::NetworkNamespace].into_iter().filter(|layer| layers.contains_key(layer)));
        return GuaranteeState::Enforced { by };
    }
    match cell(profile, guarantee) {
        Cell::Enforced { by } | Cell::WhereAvailable { by } => {
            let missing: Vec<_> = by.iter().copied().filter(|layer| !layers.contains_key(layer)).collect();
            if missing.is_empty() {
                GuaranteeState::Enforced { by: by.to_vec() }
            } else {
                GuaranteeState::NotHeld { missing, why: "not applied on this machine".to_owned() }
            }
        }
        Cell::Delegated { to } => GuaranteeState::Delegated { to: to.to_owned() },
        Cell::Unavailable { why } => GuaranteeState::NotHeld { missing: Vec::new(), why: why.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(list: &[Layer]) -> BTreeMap<Layer, String> {
        list.iter().map(|&layer| (layer, String::new())).collect()
    }

    #[test]
    fn a_missing_layer_is_named() {
        let report =
            IsolationReport::new(Profile::Container, layers(&[Layer::Supervisor, Layer::NonDumpable, Layer::Seccomp]));
        let below = report.unmet(&Floor::of_profile(Profile::Container));
        let text: Vec<_> = below.iter().map(|(guarantee, standing)| format!("{guarantee}: {standing}")).collect();
        assert_eq!(
            text,
            [
                "filesystem: not held: landlock-filesystem + no-new-privileges + no-capabilities missing (not applied on this machine)",
                "processes: not held: landlock-scopes missing (not applied on this machine)",
            ]
        );
    }

    #[test]
    fn outside_of_a_pod_nothing_is_delegated() {
        let report = IsolationReport::new(Profile::Container, layers(&[Layer::SeccompUnixOnly]));
        let report = report.without_pod();
        let floor: Floor = Guarantee::ALL.into_iter().collect();
        let below: Vec<_> = (report.unmet(&floor).into_iter()).map(|(guarantee, _)| guarantee).collect();
        let all_but_network = Guarantee::ALL.into_iter();
        let all_but_network = all_but_network.filter(|guarantee| *guarantee != Guarantee::Network);
        assert_eq!(below, all_but_network.collect::<Vec<_>>());
    }

    #[test]
    fn no_sockets_is_a_network_guarantee_anywhere() {
        let report = IsolationReport::new(Profile::Container, layers(&[Layer::SeccompUnixOnly]));
        assert_eq!(
            report.guarantees[&Guarantee::Network],
            GuaranteeState::Enforced { by: vec![Layer::SeccompUnixOnly] }
        );
    }
}
