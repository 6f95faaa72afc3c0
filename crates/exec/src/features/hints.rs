//! Hints for missing layers.

use super::{Features, Landlock, Obstacle, Support, UserNamespaces};
use crate::cgroup::Version;
use crate::guarantee::Layer;

/// What to try for a missing layer; `None` if nothing on this machine helps.
pub fn hint(features: &Features, layer: Layer) -> Option<String> {
    match layer {
        Layer::LandlockFilesystem => landlock_hint(features, "6.2", "3"),
        Layer::LandlockTcp => landlock_hint(features, "6.7", "4"),
        Layer::LandlockScopes => landlock_hint(features, "6.12", "6"),
        Layer::Seccomp | Layer::SeccompUnixOnly | Layer::SignalGuard => {
            Some("use a kernel built with CONFIG_SECCOMP_FILTER, as every distribution ships it".to_owned())
        }
        Layer::UserNamespace
        | Layer::MountNamespace
        | Layer::NetworkNamespace
        | Layer::IpcNamespace
        | Layer::UtsNamespace
        | Layer::CgroupNamespace => user_namespace_hint(features),
        Layer::PidNamespace => user_namespace_hint(features).or_else(|| private_proc_hint(features)),
        Layer::RlimitNproc => user_namespace_hint(features)
            .or_else(|| Some("use Linux 5.14 or later, which counts processes per user namespace".to_owned())),
        Layer::IdmappedMounts if features.is_root => Some(
            "use Linux 5.12 or later, and a file system with mapped owners (ext4, xfs, btrfs, tmpfs from 6.3)"
                .to_owned(),
        ),
        Layer::CgroupMemory | Layer::CgroupPids | Layer::CgroupCpu => cgroup_hint(features),
        Layer::IdmappedMounts
        | Layer::Supervisor
        | Layer::NoNewPrivileges
        | Layer::NoCapabilities
        | Layer::NonDumpable
        | Layer::SandboxKernel => None,
    }
}

/// Guarantees that hold, but less well than they could.
pub fn notes(features: &Features) -> Vec<String> {
    let mut notes = Vec::new();
    let limits = &features.cgroups.limits;
    let on_v1 = matches!(features.cgroups.version, Version::V1 | Version::Hybrid);
    if on_v1 && limits.values().any(Support::is_present) {
        notes.push(format!(
            "limits are held by cgroup v1, which cannot be delegated to ordinary users{}; {SWITCH_TO_V2}",
            if features.cgroups.kill_at_once { "" } else { " and ends a group process by process" },
        ));
    }
    if !features.system_calls.openat2.is_present() {
        notes.push(
            "openat2 is missing: paths are walked part by part, which is slower and gives the same answers".to_owned(),
        );
    }
    if features.core_pattern.as_deref().is_some_and(|pattern| pattern.starts_with('|')) {
        notes.push(
            "crashes are piped to a program (kernel.core_pattern); processes that hold secrets are kept out of it \
             by being non-dumpable"
                .to_owned(),
        );
    }
    notes
}

const SWITCH_TO_V2: &str = "to switch to v2, boot with systemd.unified_cgroup_hierarchy=1, or without systemd with \
     cgroup_no_v1=all and cgroup2 mounted at /sys/fs/cgroup";

fn landlock_hint(features: &Features, kernel: &str, abi: &str) -> Option<String> {
    Some(match &features.landlock {
        Landlock::SwitchedOff => "add landlock to the lsm= list of the kernel's command line, in front of what \
             /sys/kernel/security/lsm shows now (lsm=landlock,…), and boot again"
            .to_owned(),
        Landlock::NotInKernel if features.gvisor => return None,
        Landlock::NotInKernel => format!(
            "use Linux {kernel} or later, built with CONFIG_SECURITY_LANDLOCK (Landlock itself came with \
             5.13, ABI {abi} with {kernel})"
        ),
        Landlock::Available { .. } => {
            format!("use Linux {kernel} or later, which brings Landlock ABI {abi}")
        }
        Landlock::Refused { .. } => "let the container's seccomp profile allow the landlock_* system calls".to_owned(),
    })
}

fn user_namespace_hint(features: &Features) -> Option<String> {
    let UserNamespaces::Blocked { cause, .. } = &features.user_namespaces else {
        return None;
    };
    let hint = match cause {
        Obstacle::LimitIsZero => {
            "sudo sysctl -w user.max_user_namespaces=15000 (and a line in /etc/sysctl.d to keep it)"
        }
        Obstacle::LimitReached => {
            "end programs that hold user namespaces (lsns -t user), or raise user.max_user_namespaces"
        }
        Obstacle::NestedTooDeep => "start it outside of the nested containers: 32 levels are the limit",
        Obstacle::SwitchedOffForUsers => {
            "sudo sysctl -w kernel.unprivileged_userns_clone=1 (and a line in /etc/sysctl.d to keep it)"
        }
        Obstacle::Apparmor => {
            "Ubuntu's AppArmor restricts them: allow this program alone with a profile, for example \
             /etc/apparmor.d/sympozium with `abi <abi/4.0>, profile sympozium /usr/local/bin/sympozium \
             flags=(unconfined) { userns, }` and then `sudo systemctl reload apparmor`; or allow every \
             program with `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        }
        Obstacle::SeccompFilter => {
            "the container runtime's seccomp filter refuses them: as it should be in a pod, where profile \
             container is meant to be used; elsewhere start it outside of the container"
        }
        Obstacle::NotInKernel => "use a kernel built with CONFIG_USER_NS, as every distribution ships it",
        Obstacle::Unknown => {
            "look for the refusal in the kernel's log (sudo dmesg | tail); a security module, a chroot or a \
             container's settings may be behind it"
        }
    };
    Some(hint.to_owned())
}

fn private_proc_hint(features: &Features) -> Option<String> {
    match features.private_proc {
        Support::Present { .. } => None,
        Support::Absent { .. } => Some(
            "the runtime of this container covers parts of /proc: start it outside of the container, or with \
             /proc unmasked (docker run --security-opt systempaths=unconfined)"
                .to_owned(),
        ),
    }
}

fn cgroup_hint(features: &Features) -> Option<String> {
    let on_a_machine = match (features.cgroups.version, features.is_root) {
        (Version::V2, false) => {
            "start it in a delegated cgroup: systemd-run --user --scope -p Delegate=yes sympozium …; for CPU \
             also let systemd delegate it: Delegate=cpu cpuset io memory pids in a drop-in of user@.service"
                .to_owned()
        }
        (Version::V2, true) => {
            "start it in a delegated cgroup: systemd-run --scope -p Delegate=yes sympozium …".to_owned()
        }
        (Version::V1 | Version::Hybrid, false) => {
            format!("cgroup v1 cannot be delegated to ordinary users; {SWITCH_TO_V2}")
        }
        (Version::V1 | Version::Hybrid, true) => format!(
            "mount the controller (mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory) and see that it \
             is writable; {SWITCH_TO_V2}"
        ),
        (Version::None, _) => "mount -t cgroup2 none /sys/fs/cgroup".to_owned(),
    };
    Some(if features.container_hints.is_empty() {
        on_a_machine
    } else {
        format!(
            "in a container, give it a writable cgroup or rely on the container's own limits; on a machine, {on_a_machine}"
        )
    })
}
