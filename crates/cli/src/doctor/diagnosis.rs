//! Derives a diagnosis from the probed features. No I/O.

use std::collections::BTreeMap;

use serde::Serialize;
use sympozium_api::Guarantee;
use sympozium_exec::features::{
    Features, MissingLayer, Support, expected_layers, hint, layers_of, live_profile, missing_layers, notes,
    recommended_profile, support_for,
};
use sympozium_exec::guarantee::{Cell, Floor, Layer, Profile, cell};
use sympozium_exec::report::{GuaranteeState, IsolationReport};

/// Everything that `doctor` prints; also its JSON form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis<'a> {
    pub profile: Profile,
    /// Why runs would use that profile.
    pub because: String,
    /// The profile intended for a machine like this.
    pub suited_profile: Profile,
    /// The guarantees of the live profile's default floor that would not be met.
    pub below_floor: BTreeMap<Guarantee, GuaranteeState>,
    /// Every layer, whether or not the live profile uses it.
    pub layers: Vec<LayerStatus>,
    /// The guarantee matrix, evaluated for this machine.
    pub matrix: BTreeMap<Profile, BTreeMap<Guarantee, CellStatus>>,
    /// What to change, required changes first.
    pub fixes: Vec<Fix>,
    /// What works with restrictions.
    pub notes: Vec<String>,
    /// The probed features that everything else is derived from.
    pub features: &'a Features,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerStatus {
    pub layer: Layer,
    /// Whether the live profile or the suited one depends on the layer.
    pub needed: bool,
    #[serde(flatten)]
    pub support: Support,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One cell of the matrix, and its state on this machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CellStatus {
    #[serde(flatten)]
    pub cell: Cell,
    pub here: GuaranteeState,
}

/// One change to make.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fix {
    /// The profile that the change improves.
    pub profile: Profile,
    /// Whether the floor of that profile needs it.
    pub required: bool,
    /// The guarantees that depend on it.
    pub guarantees: Vec<Guarantee>,
    /// The missing layers that the change provides.
    pub layers: Vec<Layer>,
    /// Why they are missing.
    pub why: String,
    pub hint: Option<String>,
}

impl<'a> Diagnosis<'a> {
    pub fn from_features(features: &'a Features) -> Self {
        let profile = live_profile(features);
        let suited_profile = recommended_profile(features);
        let report = IsolationReport::new(profile, expected_layers(features, profile));
        let mut fixes = find_fixes(features, profile);
        if suited_profile != profile {
            fixes.extend(self::find_fixes(features, suited_profile));
        }
        // The sort is stable: within a group the order of the layers stays.
        fixes.sort_by_key(|fix| !fix.required);
        Self {
            profile,
            because: profile_reason(features, profile),
            suited_profile,
            below_floor: report.unmet(&Floor::of_profile(profile)).into_iter().collect(),
            layers: list_layers(features, [profile, suited_profile]),
            matrix: build_matrix(features),
            fixes,
            notes: notes(features),
            features,
        }
    }

    /// Whether the live profile is the intended one for this machine, and meets its default floor.
    pub fn is_healthy(&self) -> bool {
        self.floor_holds() && self.profile == self.suited_profile
    }

    /// Whether the live profile meets its whole default floor.
    pub fn floor_holds(&self) -> bool {
        self.below_floor.is_empty()
    }
}

fn profile_reason(features: &Features, profile: Profile) -> String {
    match profile {
        Profile::Gvisor => format!("the kernel is gVisor: {}", features.gvisor_signs.join(", ")),
        Profile::HostRoot => "the user is root, and a private root file system can be created".to_owned(),
        Profile::HostUser => "a private root file system can be created by a user who is not root".to_owned(),
        Profile::Container => {
            let root = [Layer::UserNamespace, Layer::MountNamespace];
            let obstacle = root.into_iter().find_map(|layer| match support_for(features, layer) {
                Support::Absent { why } => Some(why),
                Support::Present { .. } => None,
            });
            match obstacle {
                Some(why) => format!("no private root file system can be created ({why})"),
                None => "this looks like a container that permits only a part of a host profile".to_owned(),
            }
        }
    }
}

fn list_layers(features: &Features, profiles: [Profile; 2]) -> Vec<LayerStatus> {
    let needed: Vec<Layer> = profiles.into_iter().flat_map(layers_of).collect();
    let line = |layer| {
        let support = support_for(features, layer);
        let needed = needed.contains(&layer);
        // A layer that neither profile needs is listed, but there is nothing to fix.
        let hint = if needed && !support.is_present() { hint(features, layer) } else { None };
        LayerStatus { layer, needed, support, hint }
    };
    Layer::ALL.into_iter().map(line).collect()
}

fn build_matrix(features: &Features) -> BTreeMap<Profile, BTreeMap<Guarantee, CellStatus>> {
    let column = |profile| {
        let report = IsolationReport::new(profile, expected_layers(features, profile));
        let cells = report.guarantees.into_iter().map(|(guarantee, here)| {
            let cell = cell(profile, guarantee);
            (guarantee, CellStatus { cell, here })
        });
        (profile, cells.collect())
    };
    Profile::ALL.into_iter().map(column).collect()
}

/// The fixes for the missing layers of `profile`. Layers that one change provides are one fix.
fn find_fixes(features: &Features, profile: Profile) -> Vec<Fix> {
    let mut fixes: Vec<Fix> = Vec::new();
    for MissingLayer { layer, why, hint } in missing_layers(features, profile) {
        let same = |fix: &&mut Fix| match &hint {
            Some(_) => fix.hint == hint,
            None => fix.hint.is_none() && fix.why == why,
        };
        match fixes.iter_mut().find(same) {
            Some(fix) => fix.layers.push(layer),
            None => {
                fixes.push(Fix { profile, required: false, guarantees: Vec::new(), layers: vec![layer], why, hint })
            }
        }
    }
    for fix in &mut fixes {
        for guarantee in Guarantee::ALL {
            let (by, required) = match cell(profile, guarantee) {
                Cell::Enforced { by } => (by, true),
                Cell::WhereAvailable { by } => (by, false),
                Cell::Delegated { .. } | Cell::Unavailable { .. } => continue,
            };
            if by.iter().any(|layer| fix.layers.contains(layer)) {
                fix.guarantees.push(guarantee);
                fix.required |= required;
            }
        }
    }
    fixes
}
