//! Derives layers from features, and from layers the profile that would be live.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sympozium_api::Guarantee;

use super::hints::hint;
use super::{Features, Landlock, Support, UserNamespaces};

use crate::guarantee::{Cell, Floor, Layer, Profile, cell};
use crate::report::IsolationReport;

/// Path rules count from this ABI on: before it, `truncate` empties files that may only be read.
const FILESYSTEM_ABI: i32 = 3;
/// TCP rules were added with this ABI.
const TCP_ABI: i32 = 4;
/// Scopes were added with this ABI.
const SCOPES_ABI: i32 = 6;

/// A layer that a profile needs and that this machine does not offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingLayer {
    /// The layer.
    pub layer: Layer,
    /// Why it cannot be used.
    pub why: String,
    /// What a person can do about it, if anything.
    pub hint: Option<String>,
}

/// The profile that this process would use, here and now.
///
/// On gVisor that is `gvisor`; where a private root can be built, the host profile of this user; elsewhere `container`.
/// A container in which a private root can be built but not the rest of a host profile gets `container` too: there the
/// platform is responsible for the rest. On a machine no component is, so the host profile stays, and its floor shows
/// what is missing.
pub fn live_profile(features: &Features) -> Profile {
    if features.gvisor {
        return Profile::Gvisor;
    }
    let host = host_profile(features);
    let private_root = [Layer::UserNamespace, Layer::MountNamespace]
        .into_iter()
        .all(|layer| support_for(features, layer).is_present());
    let in_container = !features.container_hints.is_empty();
    if private_root && (!in_container || meets_floor(features, host)) { host } else { Profile::Container }
}

fn host_profile(features: &Features) -> Profile {
    if features.is_root { Profile::HostRoot } else { Profile::HostUser }
}

fn meets_floor(features: &Features, profile: Profile) -> bool {
    IsolationReport::new(profile, expected_layers(features, profile)).unmet(&Floor::of_profile(profile)).is_empty()
}

/// The profile that suits a machine like this one, whether or not it can be live. If it is not the live one, what it
/// lacks is worth fixing: outside of a pod no component enforces what `container` delegates to the kubelet.
pub fn recommended_profile(features: &Features) -> Profile {
    if features.container_hints.is_empty() && !features.gvisor {
        host_profile(features)
    } else {
        live_profile(features)
    }
}

/// The layers that the matrix needs in `profile` and that this machine does not offer.
pub fn missing_layers(features: &Features, profile: Profile) -> Vec<MissingLayer> {
    layers_of(profile)
        .into_iter()
        .filter_map(|layer| match support_for(features, layer) {
            Support::Present { .. } => None,
            Support::Absent { why } => Some(MissingLayer { layer, why, hint: hint(features, layer) }),
        })
        .collect()
}

/// The layers that would be live in `profile`, with their details, as in an isolation report.
pub fn expected_layers(features: &Features, profile: Profile) -> BTreeMap<Layer, String> {
    layers_of(profile)
        .into_iter()
        .filter_map(|layer| match support_for(features, layer) {
            Support::Present { detail } => Some((layer, detail)),
            Support::Absent { .. } => None,
        })
        .collect()
}

/// Every layer in some cell of `profile`, in the order in which layers are printed.
pub fn layers_of(profile: Profile) -> Vec<Layer> {
    let used: Vec<Layer> = Guarantee::ALL
        .into_iter()
        .flat_map(|guarantee| match cell(profile, guarantee) {
            Cell::Enforced { by } | Cell::WhereAvailable { by } => by,
            Cell::Delegated { .. } | Cell::Unavailable { .. } => &[],
        })
        .copied()
        .collect();
    let in_order = Layer::ALL.into_iter();
    in_order.filter(|layer| used.contains(layer)).collect()
}

/// Whether `layer` could be used on this machine.
pub fn support_for(features: &Features, layer: Layer) -> Support {
    match layer {
        // Older than any kernel that we support.
        Layer::Supervisor | Layer::NoNewPrivileges | Layer::NoCapabilities | Layer::NonDumpable => Support::present(""),
        Layer::LandlockFilesystem => landlock(features, FILESYSTEM_ABI),
        Layer::LandlockTcp => landlock(features, TCP_ABI),
        Layer::LandlockScopes => landlock(features, SCOPES_ABI),
        Layer::Seccomp | Layer::SeccompUnixOnly | Layer::SignalGuard => features.seccomp.filter.clone(),
        Layer::UserNamespace => match &features.user_namespaces {
            UserNamespaces::Usable => Support::present(""),
            UserNamespaces::Blocked { why, .. } => Support::absent(why.clone()),
        },
        // A pid namespace that still shows the /proc of another hides nothing.
        Layer::PidNamespace => match namespace(features, layer) {
            Support::Present { .. } => features.private_proc.clone(),
            absent @ Support::Absent { .. } => absent,
        },
        Layer::MountNamespace
        | Layer::NetworkNamespace
        | Layer::IpcNamespace
        | Layer::UtsNamespace
        | Layer::CgroupNamespace => namespace(features, layer),
        Layer::IdmappedMounts => features.idmapped_mounts.clone(),
        Layer::RlimitNproc => features.process_limit_in_user_namespace.clone(),
        Layer::CgroupMemory | Layer::CgroupPids | Layer::CgroupCpu => {
            let support = features.cgroups.limits.get(&layer).cloned();
            support.unwrap_or_else(|| Support::absent("not tried"))
        }
        Layer::SandboxKernel if features.gvisor => Support::present("gVisor"),
        Layer::SandboxKernel => Support::absent("the kernel is Linux itself"),
    }
}

fn namespace(features: &Features, layer: Layer) -> Support {
    let support = features.namespaces.get(&layer).cloned();
    support.unwrap_or_else(|| Support::absent("not tried"))
}

fn landlock(features: &Features, needed: i32) -> Support {
    match &features.landlock {
        Landlock::Available { abi } if *abi >= needed => Support::present(format!("ABI {abi}")),
        Landlock::Available { abi } => Support::absent(format!("this kernel has ABI {abi}, needed is ABI {needed}")),
        Landlock::NotInKernel => Support::absent("this kernel has no Landlock"),
        Landlock::SwitchedOff => Support::absent("this kernel has Landlock, but it is switched off"),
        Landlock::Refused { why } => Support::absent(why.clone()),
    }
}
