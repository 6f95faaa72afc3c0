//! Machines as `Features::detect` reports them.

use std::collections::BTreeMap;

use sympozium_exec::cgroup::Version;
use sympozium_exec::features::{
    Cgroups, Features, Landlock, Obstacle, Rlimit, Seccomp, Support, SystemCalls, UserNamespaces,
};
use sympozium_exec::guarantee::Layer;

const NAMESPACES: [Layer; 6] = [
    Layer::MountNamespace,
    Layer::PidNamespace,
    Layer::NetworkNamespace,
    Layer::IpcNamespace,
    Layer::UtsNamespace,
    Layer::CgroupNamespace,
];
const LIMITS: [Layer; 3] = [Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu];

fn everywhere<const N: usize>(layers: [Layer; N], support: &Support) -> BTreeMap<Layer, Support> {
    layers.map(|layer| (layer, support.clone())).into()
}

pub fn all() -> [Features; 6] {
    [
        root_with_hybrid_cgroups(),
        ubuntu_with_blocked_user_namespaces(),
        linux_5_10_without_landlock(),
        pod_on_linux_5_10(),
        gvisor_pod(),
        ordinary_user_on_cgroup_v2(),
    ]
}

/// The kind of machine that the tests of this repository run on.
pub fn root_with_hybrid_cgroups() -> Features {
    let present = Support::present("");
    let limit = |value| Rlimit { soft: Some(value), hard: None };
    Features {
        kernel_release: "6.18.44".to_owned(),
        architecture: "x86_64".to_owned(),
        is_root: true,
        capabilities: ["CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID"].map(str::to_owned).into(),
        under_seccomp_filter: false,
        container_hints: Vec::new(),
        gvisor: false,
        gvisor_signs: Vec::new(),
        landlock: Landlock::Available { abi: 7 },
        seccomp: Seccomp {
            filter: present.clone(),
            actions: ["kill_process", "errno", "allow"].map(str::to_owned).into(),
        },
        user_namespaces: UserNamespaces::Usable,
        namespaces: everywhere(NAMESPACES, &present),
        private_proc: present.clone(),
        idmapped_mounts: present.clone(),
        process_limit_in_user_namespace: present.clone(),
        system_calls: SystemCalls {
            openat2: present.clone(),
            pidfd: present.clone(),
            close_range: present.clone(),
            clone3: present.clone(),
        },
        cgroups: Cgroups {
            version: Version::Hybrid,
            limits: everywhere(LIMITS, &Support::present("v1")),
            kill_at_once: true,
        },
        yama_ptrace_scope: None,
        core_pattern: Some("core".to_owned()),
        rlimits: [("core".to_owned(), limit(0)), ("nofile".to_owned(), limit(20_000))].into(),
        lists_children: true,
    }
}

/// An ordinary user without a delegated cgroup.
pub fn ordinary_user_on_cgroup_v2() -> Features {
    let refused = "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope: Permission denied (os error 13)";
    Features {
        kernel_release: "6.12.9-amd64".to_owned(),
        is_root: false,
        capabilities: Vec::new(),
        landlock: Landlock::Available { abi: 6 },
        idmapped_mounts: Support::absent("mapping the owners of a mount: Operation not permitted (os error 1)"),
        cgroups: Cgroups {
            version: Version::V2,
            limits: everywhere(LIMITS, &Support::absent(refused)),
            kill_at_once: false,
        },
        yama_ptrace_scope: Some(1),
        ..root_with_hybrid_cgroups()
    }
}

/// Ubuntu 24.04: a user namespace can be created, but AppArmor denies all operations in it.
pub fn ubuntu_with_blocked_user_namespaces() -> Features {
    let why = "making the namespace inside a user namespace: Operation not permitted (os error 1)";
    Features {
        kernel_release: "6.14.0-36-generic".to_owned(),
        user_namespaces: UserNamespaces::Blocked { cause: Obstacle::Apparmor, why: why.to_owned() },
        namespaces: everywhere(NAMESPACES, &Support::absent(why)),
        private_proc: Support::absent(why),
        core_pattern: Some("|/usr/share/apport/apport -p%p".to_owned()),
        ..ordinary_user_on_cgroup_v2()
    }
}

/// Debian 11: no Landlock, and RLIMIT_NPROC counts across the whole machine.
pub fn linux_5_10_without_landlock() -> Features {
    Features {
        kernel_release: "5.10.0-32-amd64".to_owned(),
        landlock: Landlock::NotInKernel,
        idmapped_mounts: Support::absent("mapping the owners of a mount: Function not implemented (os error 38)"),
        process_limit_in_user_namespace: Support::absent("RLIMIT_NPROC counts processes outside too"),
        cgroups: Cgroups {
            version: Version::V2,
            limits: everywhere(LIMITS, &Support::present("v2")),
            kill_at_once: false,
        },
        ..root_with_hybrid_cgroups()
    }
}

/// A restricted pod on such a node.
pub fn pod_on_linux_5_10() -> Features {
    let why = "making a user namespace: Operation not permitted (os error 1)";
    Features {
        is_root: false,
        capabilities: Vec::new(),
        under_seccomp_filter: true,
        container_hints: vec!["KUBERNETES_SERVICE_HOST is set".to_owned()],
        user_namespaces: UserNamespaces::Blocked { cause: Obstacle::SeccompFilter, why: why.to_owned() },
        namespaces: everywhere(NAMESPACES, &Support::absent(why)),
        private_proc: Support::absent(why),
        idmapped_mounts: Support::absent(why),
        process_limit_in_user_namespace: Support::absent(why),
        cgroups: Cgroups {
            version: Version::V2,
            limits: everywhere(LIMITS, &Support::absent("/sys/fs/cgroup: Read-only file system (os error 30)")),
            kill_at_once: false,
        },
        ..linux_5_10_without_landlock()
    }
}

/// A restricted pod with `runtimeClassName: gvisor`.
pub fn gvisor_pod() -> Features {
    let why = "making a user namespace: Operation not permitted (os error 1)";
    let absent = Support::absent("Function not implemented (os error 38)");
    Features {
        kernel_release: "4.19.0-gvisor".to_owned(),
        is_root: false,
        capabilities: Vec::new(),
        container_hints: vec!["KUBERNETES_SERVICE_HOST is set".to_owned()],
        gvisor: true,
        gvisor_signs: vec![
            "the kernel calls itself 4.19.0-gvisor".to_owned(),
            "the kernel was built on Sun Jan 10 15:06:54 PST 2016".to_owned(),
        ],
        landlock: Landlock::NotInKernel,
        user_namespaces: UserNamespaces::Blocked { cause: Obstacle::Unknown, why: why.to_owned() },
        namespaces: everywhere(NAMESPACES, &Support::absent(why)),
        private_proc: Support::absent(why),
        idmapped_mounts: Support::absent(why),
        process_limit_in_user_namespace: Support::absent(why),
        system_calls: SystemCalls {
            openat2: absent.clone(),
            pidfd: Support::present(""),
            close_range: Support::present(""),
            clone3: Support::present(""),
        },
        cgroups: Cgroups {
            version: Version::V1,
            limits: everywhere(LIMITS, &Support::absent("/sys/fs/cgroup/memory: Read-only file system (os error 30)")),
            kill_at_once: false,
        },
        lists_children: false,
        ..root_with_hybrid_cgroups()
    }
}
