//! The guarantee × profile matrix, cell by cell: what it says is enforced is refused to the probe, and what
//! it says is not is really possible.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use sympozium_api::Guarantee;
use sympozium_exec::cgroup::Limits;
use sympozium_exec::guarantee::{Cell, cell};
use sympozium_exec::report::GuaranteeState;
use sympozium_exec::{Config, Executor, IsolationReport, Layer, ProcessVisibility, Profile, Request};
use sympozium_testkit::as_user;
use sympozium_testkit::processes::{new_marker, with_marker};
use tempfile::TempDir;

use crate::sandbox::{STAGE, action, attempt, config, probe_path, probe_request, run, stage};

/// Never possible, in any profile.
const FILESYSTEM: &[&str] = &[
    "open-init-root",
    "read-shadow",
    "overwrite-executor",
    "connect-docker",
    "connect-dbus",
    "connect-ssh-agent",
    "connect-x11",
    "connect-wayland",
    "remount-writable=/",
    "leave-by-directory-descriptor",
    "inherited-descriptors",
    "change-root",
    "write-core-pattern",
    "write-kernel-settings",
    "write-sysrq-trigger",
    "write-sysfs",
    "write-release-agent",
    "write-cgroup",
    "open-kernel-memory",
    "open-powerful-device",
    "open-block-device",
    "make-device",
    "setuid-by-chmod",
    "setuid-by-fchmod",
    "setuid-by-fchmodat",
    "setuid-by-fchmodat2",
    "setuid-by-open",
    "setuid-by-creat",
    "setuid-by-openat",
    "setuid-by-openat2",
    "setuid-by-tmpfile",
    "setuid-by-mknod",
    "setuid-by-mknodat",
    "become-root",
    "become-root-group",
    "keep-groups",
    "hold-capabilities",
    "dump-core",
    "gain-by-exec",
    "run-unfiltered",
];

/// Sockets that are not bound to a network namespace, or that look under it.
const STRANGE_SOCKETS: &[&str] = &[
    "raw-socket",
    "raw-ipv6-socket",
    "sctp-socket",
    "mptcp-socket",
    "icmp-socket",
    "packet-socket",
    "netlink-audit-socket",
    "vsock-socket",
    "alg-socket",
    "bluetooth-socket",
    "tipc-socket",
    "can-socket",
    "key-socket",
    "rds-socket",
    "kcm-socket",
    "smc-socket",
    "xdp-socket",
];

/// The ways out of a network namespace.
const WAYS_OUT: &[&str] = &["route-outside", "route-outside-ipv6", "metadata-service", "see-interfaces"];

/// What a command must not do to the process that looks after it.
const SUPERVISOR: &[&str] = &[
    "proc-environ",
    "proc-maps",
    "proc-auxv",
    "proc-mem",
    "proc-mem-write",
    "proc-fd",
    "proc-cwd",
    "proc-root",
    "proc-exe",
    "proc-oom-score",
    "ptrace",
    "read-memory",
    "write-memory",
    "steal-descriptor",
    "compare",
    "set-priority",
    "set-scheduler",
    "set-scheduler-parameters",
    "set-scheduler-attributes",
    "change-limits",
];

/// What would kill a process, if it could be done.
const KILLS: &[&str] = &["kill-by-descriptor-owner", "kill-by-socket-owner", "kill-by-socket-group"];

const SIGNALS: &[&str] = &[
    "signal",
    "signal-by-tkill",
    "signal-by-tgkill",
    "signal-by-sigqueue",
    "signal-by-tgsigqueue",
    "signal-by-pidfd",
    "signal-by-proc-directory",
    "signal-group",
];

const SYSCALLS: &[&str] = &[
    "set-priority-of-user",
    "unshare-user",
    "clone-user",
    "clone3-user",
    "unshare-mount",
    "clone-mount",
    "clone3-mount",
    "unshare-pid",
    "clone-pid",
    "clone3-pid",
    "unshare-network",
    "clone-network",
    "clone3-network",
    "unshare-ipc",
    "clone-ipc",
    "clone3-ipc",
    "unshare-uts",
    "clone-uts",
    "clone3-uts",
    "unshare-cgroup",
    "clone-cgroup",
    "clone3-cgroup",
    "unshare-time",
    "clone3-time",
    "join-namespace",
    "mount",
    "unmount",
    "fsopen",
    "open-tree",
    "move-mount",
    "mount-setattr",
    "pivot-root",
    "bpf",
    "perf-events",
    "keyctl",
    "add-key",
    "request-key",
    "io-uring",
    "userfaultfd",
    "kexec-load",
    "kexec-file-load",
    "reboot",
    "init-module",
    "finit-module",
    "delete-module",
    "ptrace-me",
    "personality",
    "modify-ldt",
    "open-by-handle",
    "type-into-terminal",
    "terminal-selection",
    "call-32bit",
    "call-32bit-unshare",
    "call-x32",
    "call-x32-mount",
    "set-hostname",
    "set-domainname",
    "set-time",
    "adjust-time",
    "swap-on",
    "swap-off",
    "accounting",
    "quota",
    "kernel-log",
];

/// Things of the host that a command must not reach, made for one test.
pub struct Host {
    directory: TempDir,
    listener: TcpListener,
    abstract_name: String,
    _abstract: UnixListener,
}

impl Host {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["private", "public"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
            std::fs::write(directory.path().join(name).join("secret"), "s").expect("a file");
        }
        let abstract_name = new_marker();
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("an address");
        Self {
            directory,
            listener: TcpListener::bind("127.0.0.1:0").expect("a port"),
            _abstract: UnixListener::bind_addr(&address).expect("a socket"),
            abstract_name,
        }
    }

    pub fn secret(&self) -> String {
        self.private().join("secret").display().to_string()
    }

    pub fn private(&self) -> PathBuf {
        self.directory.path().join("private")
    }

    pub fn public(&self) -> String {
        let path = self.directory.path().join("public").join("secret");
        path.display().to_string()
    }

    pub fn tcp(&self) -> String {
        let port = self.listener.local_addr().expect("an address").port();
        format!("tcp-connect=127.0.0.1:{port}")
    }

    pub fn abstract_socket(&self) -> String {
        format!("abstract-connect={}", self.abstract_name)
    }
}

/// The profile with `private` as its own state that commands must not see.
pub fn config_with(profile: Profile, host: &Host) -> Config {
    let mut config = config(profile);
    if !profile.is_host() {
        config.view.hidden = vec![host.private()];
        config.view.writable = vec!["/dev/shm".into()];
    }
    config
}

fn report(config: Config) -> IsolationReport {
    let executor = Executor::new(config).expect("an executor");
    IsolationReport::clone(executor.report())
}

/// The standing that the matrix promises for an executor where everything worked.
fn assert_guarantee_state(report: &IsolationReport, guarantee: Guarantee) {
    let standing = &report.guarantees[&guarantee];
    let expected = match cell(report.profile, guarantee) {
        Cell::Enforced { by } | Cell::WhereAvailable { by } => GuaranteeState::Enforced { by: by.to_vec() },
        Cell::Delegated { to } => GuaranteeState::Delegated { to: to.to_owned() },
        Cell::Unavailable { why } => GuaranteeState::NotHeld { missing: Vec::new(), why: why.to_owned() },
    };
    assert_eq!(*standing, expected, "{}: {guarantee}", report.profile);
}

fn names(list: &[&'static str], of: i32) -> Vec<String> {
    list.iter().map(|name| format!("{name}={of}")).collect()
}

fn assert_refused(config: Config, attempts: &[impl AsRef<str>]) {
    let attempts: Vec<&str> = attempts.iter().map(AsRef::as_ref).collect();
    attempt(config, attempts.iter().copied()).assert_refused(attempts);
}

fn assert_possible(config: Config, attempts: &[impl AsRef<str>]) {
    let attempts: Vec<&str> = attempts.iter().map(AsRef::as_ref).collect();
    attempt(config, attempts.iter().copied()).assert_possible(attempts);
}

/// Runs the body as the user that a pod's containers have, or any ordinary one.
fn as_ordinary_user(body: impl FnOnce()) {
    as_user::run_with(&[(STAGE, &stage())], body);
}

#[test]
fn container() {
    as_ordinary_user(|| {
        let profile = Profile::Container;
        let host = Host::new();
        let config = || config_with(profile, &host);
        let own = i32::try_from(std::process::id()).expect("a pid");
        let report = report(config());
        for guarantee in Guarantee::ALL {
            assert_guarantee_state(&report, guarantee);
        }
        // Filesystem: enforced.
        assert_refused(config(), FILESYSTEM);
        let secret = host.secret();
        let private = host.private().display().to_string();
        assert_refused(
            config(),
            &[
                format!("read-file={secret}"),
                format!("write-file={secret}"),
                format!("list-directory={private}"),
                format!("hard-link={secret}"),
                format!("write-file={}", host.public()),
                "open-ipc".to_owned(),
                "open-run-inputs".to_owned(),
            ],
        );
        assert_possible(config(), &[format!("read-file={}", host.public())]);
        // Network: delegated, and really not ours; but no family that a NetworkPolicy does not see.
        assert_possible(config(), &[host.tcp()]);
        assert_refused(config(), STRANGE_SOCKETS);
        assert_refused(config(), &[host.abstract_socket()]);
        // Processes: enforced, for the supervisor (the probe's parent) and the executor.
        assert_refused(config(), SUPERVISOR);
        assert_refused(config(), SIGNALS);
        assert_refused(config(), &names(SUPERVISOR, own));
        assert_refused(config(), &names(SIGNALS, own));
        assert_refused(config(), &names(KILLS, own));
        assert_refused(config(), &["signal-everyone"]);
        // Syscalls: enforced.
        assert_refused(config(), SYSCALLS);
        // Memory, pids, CPU: delegated to the kubelet, and really not ours.
        assert_possible(config(), &["allocate-memory=200", "make-processes=600"]);
    });
}

/// The kubelet binds the pod's termination message into /dev, writable for everybody: it is not a command's word.
#[test]
fn a_file_among_the_devices_is_not_written() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("a file in /dev needs root");
    }
    let file = tempfile::NamedTempFile::new_in("/dev").expect("a file");
    let write = format!("write-file={}", file.path().display());
    assert_refused(config(Profile::Container), &[write]);
    assert_possible(config(Profile::Container), &["write-file=/dev/null"]);
}

#[test]
fn gvisor() {
    as_ordinary_user(|| {
        let profile = Profile::Gvisor;
        let host = Host::new();
        let config = || config_with(profile, &host);
        let own = i32::try_from(std::process::id()).expect("a pid");
        let report = report(config());
        for guarantee in Guarantee::ALL {
            if guarantee != Guarantee::Kernel {
                assert_guarantee_state(&report, guarantee);
            }
        }
        // Filesystem: delegated to the pod's mounts, and really not ours.
        assert_possible(config(), &[format!("read-file={}", host.secret())]);
        // Processes: enforced, but for the supervisor's own pid, which the keeper stands in for.
        assert_refused(config(), SUPERVISOR);
        assert_refused(config(), &names(SUPERVISOR, own));
        assert_refused(config(), &names(SIGNALS, own));
        assert_refused(config(), &names(KILLS, own));
        assert_refused(config(), SYSCALLS);
        assert_refused(config(), STRANGE_SOCKETS);
        if !report.holds(Guarantee::Kernel) {
            sympozium_testkit::skip!("a gVisor kernel");
        }
        assert_guarantee_state(&report, Guarantee::Kernel);
    });
}

fn host_profile(profile: Profile) {
    let host = Host::new();
    let config = || config_with(profile, &host);
    let own = i32::try_from(std::process::id()).expect("a pid");
    let report = report(config());
    for guarantee in [
        Guarantee::Filesystem,
        Guarantee::Network,
        Guarantee::Processes,
        Guarantee::Syscalls,
        Guarantee::Pids,
        Guarantee::Kernel,
    ] {
        assert_guarantee_state(&report, guarantee);
    }
    assert_refused(config(), FILESYSTEM);
    assert_refused(config(), &["regain-capabilities"]);
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    assert_refused(
        config(),
        &[
            format!("read-file={}", host.public()),
            format!("list-directory={home}"),
            "list-directory=/home".to_owned(),
            "list-directory=/sys".to_owned(),
            "write-file=/usr".to_owned(),
            "write-file=/etc".to_owned(),
            "write-file=/".to_owned(),
            "write-file=/probe".to_owned(),
            "fill-directory=/tmp:300000000".to_owned(),
            "make-files=/tmp:70000".to_owned(),
            "fill-shared-memory=100000000".to_owned(),
        ],
    );
    assert_possible(config(), &["write-file=/tmp", "read-file=/usr/bin/env"]);
    assert_refused(config(), WAYS_OUT);
    assert_refused(config(), STRANGE_SOCKETS);
    assert_refused(config(), &[host.tcp(), host.abstract_socket()]);
    assert_refused(config(), SUPERVISOR);
    assert_refused(config(), SIGNALS);
    // The world's init, and the executor's number outside.
    assert_refused(config(), &names(SUPERVISOR, 1));
    assert_refused(config(), &names(SUPERVISOR, own));
    assert_refused(config(), &[format!("proc-cmdline={own}")]);
    assert_refused(config(), SYSCALLS);
    assert_refused(config(), &["make-processes=600"]);
}

#[test]
fn host_root() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("the host-root profile needs root");
    }
    host_profile(Profile::HostRoot);
}

#[test]
fn host_user() {
    as_ordinary_user(|| host_profile(Profile::HostUser));
}

/// Memory, pids and CPU by cgroup, where this user can write one.
fn limits(profile: Profile) {
    let limited = |limits| {
        let mut config = config(profile);
        config.limits = limits;
        config
    };
    let memory = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let cpu = Limits { cpu_millis: Some(50), ..Limits::default() };
    let all = report(limited(Limits { pids: Some(100), ..memory }));
    if !all.holds(Guarantee::Memory) {
        // The cell says "where available": then it must be said that it is not.
        assert_possible(limited(memory), &["allocate-memory=200"]);
        sympozium_testkit::skip!("no writable cgroup");
    }
    assert_guarantee_state(&all, Guarantee::Memory);
    assert_guarantee_state(&report(limited(cpu)), Guarantee::Cpu);
    assert_refused(limited(memory), &["allocate-memory=200"]);
    let executor = Executor::new(limited(memory)).expect("an executor");
    let bomb = probe_request(profile, ["do", "allocate", "200", "1"]);
    let outcome = run(&executor, &bomb);
    assert!(outcome.oom_killed, "{outcome:?}");
    // Only that command: the sandbox goes on.
    assert!(!run(&executor, &Request::argv(["true"])).oom_killed);
    // Memory of no process: files. The kernel then kills a process that is not the cause.
    let fill = "head -c 200m /dev/zero > /tmp/fill; head -c 200m /dev/zero > /dev/shm/fill; rm /tmp/fill";
    let _ = executor.run(&Request::shell(fill), None);
    assert!(!run(&executor, &Request::argv(["true"])).oom_killed);
    assert_possible(config(profile), &["allocate-memory=200"]);
    let with = cpu_share(limited(cpu));
    // Nobody knows what else the machine does: less than twice the share, and less than without. A busy machine may
    // leave as little to a command without a limit, so that is looked at more than once.
    let without = || cpu_share(limited(cpu).without_layers([Layer::CgroupCpu]));
    assert!(with < 0.1 && (0..10).any(|_| with < without()), "{with}");
    let pids = Limits { pids: Some(100), ..Limits::default() };
    assert_refused(limited(pids), &["make-processes=150"]);
}

/// Where commands share the machine's processes, they need not see them; and what looks after them still does.
#[test]
fn processes_that_are_hidden() {
    as_ordinary_user(|| {
        let shown = config(Profile::Container);
        let mut hidden = shown.clone();
        hidden.view.readable = vec!["/usr".into(), "/bin".into(), "/lib".into(), "/lib64".into()];
        hidden.view.readable.push(probe_path(Profile::Container).to_owned());
        hidden.view.hidden = Vec::new();
        hidden.processes = ProcessVisibility::Hidden;
        let looks = ["see-processes", "read-file=/proc/self/status", "read-file=/proc/meminfo"];
        assert_possible(shown, &looks);
        assert_refused(hidden.clone(), &looks);
        let marker = new_marker();
        let executor = Executor::new(hidden).expect("an executor");
        run(&executor, &action(Profile::Container, &marker, ["daemon", "600", "exit"]));
        assert_eq!(with_marker(&marker), Vec::<i32>::new());
    });
}

/// How much of a processor a command gets that spins for two seconds.
fn cpu_share(config: Config) -> f64 {
    let profile = config.profile;
    let executor = Executor::new(config).expect("an executor");
    let outcome = run(&executor, &probe_request(profile, ["do", "spin", "2"]));
    let used = outcome.usage.user + outcome.usage.system;
    used.as_secs_f64() / outcome.duration.as_secs_f64()
}

#[test]
fn limits_as_root() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("the host-root profile needs root");
    }
    limits(Profile::HostRoot);
}

#[test]
fn limits_as_user() {
    as_ordinary_user(|| limits(Profile::HostUser));
}
