use std::thread;

use super::*;
use crate::guarantee::{Floor, Profile};
use crate::report::IsolationReport;

#[test]
fn probing_from_many_threads_gives_one_answer() {
    let first = Features::detect();
    let threads: Vec<_> =
        (0..4).map(|_| thread::spawn(|| (0..4).map(|_| Features::detect()).collect::<Vec<_>>())).collect();
    for features in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
        // Not compared as a whole: the reason contains the name of a refused cgroup, which differs each time.
        assert_eq!(features.user_namespaces, first.user_namespaces);
        assert_eq!(features.namespaces, first.namespaces);
        assert_eq!(features.private_proc, first.private_proc);
        assert_eq!(features.idmapped_mounts, first.idmapped_mounts);
        assert_eq!(features.seccomp, first.seccomp);
        assert_eq!(features.landlock, first.landlock);
        assert_eq!(features.process_limit_in_user_namespace, first.process_limit_in_user_namespace);
    }
}

#[test]
fn features_survive_the_wire() {
    let features = Features::get();
    let text = serde_json::to_string(features).unwrap();
    assert_eq!(&serde_json::from_str::<Features>(&text).unwrap(), features);
    assert!(text.contains("\"kernelRelease\""));
}

#[test]
fn this_process_keeps_its_own_namespaces_and_limits() {
    let state = || {
        let links = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]
            .map(|name| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap());
        (links, machine::rlimits(), machine::under_seccomp_filter())
    };
    let before = state();
    Features::detect();
    assert_eq!(state(), before);
}

/// An ordinary user's machine where everything works.
fn workstation() -> Features {
    let present = || Support::present("");
    let namespaces = [
        Layer::MountNamespace,
        Layer::PidNamespace,
        Layer::NetworkNamespace,
        Layer::IpcNamespace,
        Layer::UtsNamespace,
        Layer::CgroupNamespace,
    ];
    let limits = [Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu];
    Features {
        kernel_release: "6.12.0".to_owned(),
        architecture: "x86_64".to_owned(),
        is_root: false,
        capabilities: Vec::new(),
        under_seccomp_filter: false,
        container_hints: Vec::new(),
        gvisor: false,
        gvisor_signs: Vec::new(),
        landlock: Landlock::Available { abi: 6 },
        seccomp: Seccomp { filter: present(), actions: Vec::new() },
        user_namespaces: UserNamespaces::Usable,
        namespaces: namespaces.map(|layer| (layer, present())).into(),
        private_proc: present(),
        idmapped_mounts: Support::absent("mapping the owners of a mount: EPERM"),
        process_limit_in_user_namespace: present(),
        system_calls: SystemCalls { openat2: present(), pidfd: present(), close_range: present(), clone3: present() },
        cgroups: Cgroups {
            version: Version::V2,
            limits: limits.map(|layer| (layer, Support::present("v2"))).into(),
            kill_at_once: true,
        },
        yama_ptrace_scope: Some(1),
        core_pattern: Some("core".to_owned()),
        rlimits: BTreeMap::new(),
        lists_children: true,
    }
}

#[test]
fn the_live_profile_follows_from_what_can_be_made() {
    let user = workstation();
    assert_eq!(live_profile(&user), Profile::HostUser);
    assert_eq!(missing_layers(&user, Profile::HostUser), []);
    let root = Features { is_root: true, ..user.clone() };
    assert_eq!(live_profile(&root), Profile::HostRoot);
    let gvisor = Features { gvisor: true, ..root.clone() };
    assert_eq!(live_profile(&gvisor), Profile::Gvisor);
    assert_eq!(missing_layers(&gvisor, Profile::Gvisor), []);

    let blocked = Features {
        user_namespaces: UserNamespaces::Blocked {
            cause: Obstacle::Apparmor,
            why: "mounting inside a user namespace: EPERM".to_owned(),
        },
        ..user.clone()
    };
    assert_eq!(live_profile(&blocked), Profile::Container);
    assert_eq!(recommended_profile(&blocked), Profile::HostUser);
    let fixes = missing_layers(&blocked, Profile::HostUser);
    let layers: Vec<_> = fixes.iter().map(|fix| fix.layer).collect();
    assert_eq!(layers, [Layer::UserNamespace]);
    let hint = fixes[0].hint.as_deref().unwrap();
    assert!(hint.contains("apparmor_restrict_unprivileged_userns=0"), "{hint}");
}

#[test]
fn a_half_open_container_stays_a_container_and_a_half_broken_machine_a_machine() {
    let machine =
        Features { private_proc: Support::absent("mounting /proc for a pid namespace: EPERM"), ..workstation() };
    assert_eq!(live_profile(&machine), Profile::HostUser);
    let report = IsolationReport::new(Profile::HostUser, expected_layers(&machine, Profile::HostUser));
    assert_eq!(report.unmet(&Floor::of_profile(Profile::HostUser)).len(), 1);
    let container = Features { container_hints: vec!["/.dockerenv exists".to_owned()], ..machine };
    assert_eq!(live_profile(&container), Profile::Container);
}

#[test]
fn every_layer_that_can_be_missing_has_a_hint_or_a_reason_to_have_none() {
    let nothing = Features {
        landlock: Landlock::NotInKernel,
        seccomp: Seccomp { filter: Support::absent("EINVAL"), actions: Vec::new() },
        user_namespaces: UserNamespaces::Blocked {
            cause: Obstacle::NotInKernel,
            why: "making a user namespace: EINVAL".to_owned(),
        },
        namespaces: BTreeMap::new(),
        private_proc: Support::absent("EINVAL"),
        process_limit_in_user_namespace: Support::absent("EINVAL"),
        cgroups: Cgroups { version: Version::None, limits: BTreeMap::new(), kill_at_once: false },
        ..workstation()
    };
    for profile in [Profile::Container, Profile::HostRoot, Profile::HostUser] {
        for MissingLayer { layer, hint, .. } in missing_layers(&nothing, profile) {
            assert!(hint.is_some(), "{layer} in {profile}");
        }
    }
}

#[test]
fn landlock_hints_tell_the_kernel_that_helps() {
    let hint_for = |landlock: Landlock| {
        let features = Features { landlock, ..workstation() };
        missing_layers(&features, Profile::Container)
            .into_iter()
            .map(|missing| format!("{}: {}", missing.layer, missing.hint.unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        hint_for(Landlock::Available { abi: 4 }),
        ["landlock-scopes: use Linux 6.12 or later, which brings Landlock ABI 6"]
    );
    let off = hint_for(Landlock::SwitchedOff);
    assert!(off.iter().all(|hint| hint.contains("lsm=landlock")), "{off:?}");
    assert_eq!(off.len(), 2);
}
