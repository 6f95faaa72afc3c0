//! Facts about the machine and this process from files and simple queries.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use rustix::thread::{CapabilitySet, SecureComputingMode, capabilities, secure_computing_mode};

use super::sys_probe;
use super::{Cgroups, Landlock, Rlimit, Seccomp, Support, SystemCalls};
use crate::cgroup::{Cgroup, Hierarchies, Limits, Version};
use crate::guarantee::Layer;

/// The capabilities that matter for building a sandbox.
const RELEVANT_CAPABILITIES: [(&str, CapabilitySet); 10] = [
    ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
    ("CAP_SETUID", CapabilitySet::SETUID),
    ("CAP_SETGID", CapabilitySet::SETGID),
    ("CAP_SETFCAP", CapabilitySet::SETFCAP),
    ("CAP_CHOWN", CapabilitySet::CHOWN),
    ("CAP_DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
    ("CAP_KILL", CapabilitySet::KILL),
    ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
    ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE),
    ("CAP_SYS_RESOURCE", CapabilitySet::SYS_RESOURCE),
];

pub(super) fn effective_capabilities() -> Vec<String> {
    let Ok(sets) = capabilities(None) else {
        return Vec::new();
    };
    RELEVANT_CAPABILITIES
        .into_iter()
        .filter(|&(_, capability)| sets.effective.contains(capability))
        .map(|(name, _)| name.to_owned())
        .collect()
}

pub(super) fn under_seccomp_filter() -> bool {
    secure_computing_mode() == Ok(SecureComputingMode::Filter)
}

/// The constant build time of gVisor's kernel.
const GVISOR_BUILD: &str = "Sun Jan 10 15:06:54 PST 2016";

/// Signs of gVisor. One sign alone proves nothing: a Linux 4.4 may have been built at that very time, and a kernel can
/// have any name.
pub(super) fn gvisor_signs() -> Vec<String> {
    let name = rustix::system::uname();
    let newer_call = statx(CWD, "/", AtFlags::empty(), StatxFlags::TYPE).is_ok();
    match_gvisor_signs(
        &name.release().to_string_lossy(),
        &name.version().to_string_lossy(),
        &sys_probe::read_kernel_log().unwrap_or_default(),
        newer_call,
    )
}

pub(crate) fn match_gvisor_signs(release: &str, version: &str, log: &str, has_statx: bool) -> Vec<String> {
    let mut signs = Vec::new();
    if release.ends_with("-gvisor") {
        signs.push(format!("the kernel calls itself {release}"));
    }
    if version.contains(GVISOR_BUILD) {
        signs.push(format!("the kernel was built on {GVISOR_BUILD}"));
    }
    if log.contains("Starting gVisor") {
        signs.push("the kernel's log says so".to_owned());
    }
    // Linux has it since 4.11.
    if has_statx && (release == "4.4" || release.starts_with("4.4.")) {
        signs.push(format!("the kernel says {release} and has newer calls"));
    }
    signs
}

pub(super) fn container_hints() -> Vec<String> {
    let mut hints = Vec::new();
    for file in ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"] {
        if Path::new(file).exists() {
            hints.push(format!("{file} exists"));
        }
    }
    for variable in ["KUBERNETES_SERVICE_HOST", "container"] {
        if std::env::var_os(variable).is_some() {
            hints.push(format!("{variable} is set"));
        }
    }
    let first_process = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    for engine in ["kubepods", "docker", "containerd", "libpod", "lxc"] {
        if first_process.contains(engine) {
            hints.push(format!("/proc/1/cgroup names {engine}"));
        }
    }
    hints
}

pub(super) fn detect_landlock() -> Landlock {
    match sys_probe::query_landlock_abi() {
        Ok(abi) => Landlock::Available { abi },
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOSYS) => Landlock::NotInKernel,
            Some(libc::EOPNOTSUPP) => Landlock::SwitchedOff,
            _ => Landlock::Refused { why: error.to_string() },
        },
    }
}

pub(super) fn detect_seccomp() -> Seccomp {
    let actions = [
        ("kill_process", libc::SECCOMP_RET_KILL_PROCESS),
        ("kill_thread", libc::SECCOMP_RET_KILL_THREAD),
        ("trap", libc::SECCOMP_RET_TRAP),
        ("errno", libc::SECCOMP_RET_ERRNO),
        ("user_notif", libc::SECCOMP_RET_USER_NOTIF),
        ("trace", libc::SECCOMP_RET_TRACE),
        ("log", libc::SECCOMP_RET_LOG),
        ("allow", libc::SECCOMP_RET_ALLOW),
    ];
    Seccomp {
        filter: super::namespaces::probe_filter(),
        actions: actions
            .into_iter()
            .filter(|&(_, action)| sys_probe::check_seccomp_action(action).is_ok())
            .map(|(name, _)| name.to_owned())
            .collect(),
    }
}

pub(super) fn detect_system_calls() -> SystemCalls {
    let found = |outcome: io::Result<()>| match outcome {
        Ok(()) => Support::present(""),
        Err(error) => Support::absent(error.to_string()),
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let beneath = openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH);
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty());
    SystemCalls {
        openat2: found(beneath.map(drop).map_err(io::Error::from)),
        pidfd: found(pidfd.map(drop).map_err(io::Error::from)),
        close_range: found(sys_probe::check_close_range()),
        clone3: found(sys_probe::check_clone3()),
    }
}

/// Creates a group with limits that every parent allows, and removes it.
pub(super) fn detect_cgroups() -> Cgroups {
    let limits = Limits { memory_bytes: Some(16 << 20), pids: Some(16), cpu_millis: Some(10) };
    let layers = [Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu];
    let version = Hierarchies::read().map_or(Version::None, |layout| layout.version());
    match Cgroup::create(&limits, "probe") {
        Ok((cgroup, applied)) => {
            let generation = |detail: &String| {
                let (generation, _) = detail.split_once(':').unwrap_or((detail, ""));
                Support::present(generation)
            };
            let live = applied.iter().map(|(&layer, applied)| (layer, generation(applied)));
            let refused = cgroup.not_applied().iter();
            let refused = refused.map(|(layer, why)| (*layer, Support::absent(why.clone())));
            let kill_file = cgroup.v2_directory().map(|path| path.join("cgroup.kill"));
            Cgroups {
                version,
                limits: live.chain(refused).collect(),
                kill_at_once: kill_file.is_some_and(|file| file.exists()),
            }
        }
        Err(error) => Cgroups {
            version,
            limits: layers.map(|layer| (layer, Support::absent(error.to_string()))).into(),
            kill_at_once: false,
        },
    }
}

pub(super) fn rlimits() -> BTreeMap<String, Rlimit> {
    [
        ("nofile", Resource::Nofile),
        ("nproc", Resource::Nproc),
        ("core", Resource::Core),
        ("memlock", Resource::Memlock),
        ("as", Resource::As),
    ]
    .into_iter()
    .map(|(name, resource)| {
        let limit = getrlimit(resource);
        let limit = Rlimit { soft: limit.current, hard: limit.maximum };
        (name.to_owned(), limit)
    })
    .collect()
}

/// The content of a file in `/proc/sys`, without its line break.
pub(super) fn read_sysctl(name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    Some(text.trim_end().to_owned())
}

/// Whether the kernel lists the children of a task (CONFIG_PROC_CHILDREN).
pub(super) fn lists_children() -> bool {
    let process = std::process::id();
    Path::new(&format!("/proc/self/task/{process}/children")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gvisor_is_detected_by_two_signs() {
        let build = "#1 SMP Sun Jan 10 15:06:54 PST 2016";
        let log = "[    0.000000] Starting gVisor...\n";
        let signs = |release, version, log, has_statx| match_gvisor_signs(release, version, log, has_statx).len();
        assert_eq!(signs("4.19.0-gvisor", build, "", true), 2);
        assert_eq!(signs("4.4.0", build, log, true), 3);
        assert_eq!(signs("4.4.0", build, "", true), 2);
        // A real Linux 4.4 built at that time.
        assert_eq!(signs("4.4.0", build, "", false), 1);
        assert_eq!(signs("6.18.44", "#1 SMP PREEMPT_DYNAMIC", "", true), 0);
    }
}
