//! Each layer switched off in turn: something that was refused becomes possible. A layer that could be lost
//! without any test noticing would not be a layer.

use sympozium_exec::cgroup::Limits;
use sympozium_exec::landlock::TcpPorts;
use sympozium_exec::layout::{Bind, BindAccess};
use sympozium_exec::seccomp::Sockets;
use sympozium_exec::{Config, Executor, Floor, Layer, Profile, Request, StartError};
use sympozium_testkit::as_user;
use sympozium_testkit::processes::{new_marker, with_marker};

use crate::matrix::{Host, config_with};
use crate::sandbox::{STAGE, action, assert_gone, attempt, config, host, run, stage};

/// `what` is refused with `layer` and possible without it. `others` are left out in both, where several
/// layers refuse the same thing.
#[track_caller]
fn assert_noticed(config: &Config, layer: Layer, others: &[Layer], what: &str) {
    let mut config = config.clone().without_layers(others.iter().copied());
    config.floor = Floor::none();
    attempt(config.clone(), [what]).assert_refused([what]);
    attempt(config.without_layers([layer]), [what]).assert_possible([what]);
}

/// What a command prints differs with and without the layer.
#[track_caller]
fn assert_shown(config: &Config, layer: Layer, line: &str) {
    let printed = |config: Config| {
        let executor = Executor::new(config).expect("an executor");
        run(&executor, &Request::shell(line)).stdout.bytes
    };
    let mut config = config.clone();
    config.floor = Floor::none();
    assert_ne!(printed(config.clone()), printed(config.without_layers([layer])), "{layer}: {line}");
}

#[test]
fn in_a_container() {
    as_user::run_with(&[(STAGE, &stage())], || {
        let there = Host::new();
        let config = config_with(Profile::Container, &there);
        let own = std::process::id();
        let secret = format!("read-file={}", there.secret());
        assert_noticed(&config, Layer::LandlockFilesystem, &[], &secret);
        assert_noticed(&config, Layer::LandlockScopes, &[], "signal");
        assert_noticed(&config, Layer::LandlockScopes, &[], &there.abstract_socket());
        assert_noticed(&config, Layer::Seccomp, &[], "unshare-user");
        assert_noticed(&config, Layer::Seccomp, &[], "vsock-socket");
        assert_noticed(&config, Layer::Seccomp, &[], "change-limits");
        assert_noticed(&config, Layer::Seccomp, &[], "set-scheduler");
        assert_noticed(&config, Layer::Seccomp, &[], "set-priority-of-user");
        assert_noticed(&config, Layer::Seccomp, &[], "setuid-by-chmod=/dev/shm");
        // Without scopes, a guard in seccomp stands in for the processes whose pids are known.
        let signal = format!("signal={own}");
        assert_noticed(&config, Layer::SignalGuard, &[Layer::LandlockScopes], &signal);
        // A Landlock domain hides processes outside it too, and seccomp refuses ptrace.
        let landlock = [Layer::LandlockFilesystem, Layer::LandlockScopes];
        assert_noticed(&config, Layer::NonDumpable, &landlock, "proc-maps");
        // Landlock and seccomp both bring it along.
        let both = [landlock[0], landlock[1], Layer::Seccomp];
        assert_noticed(&config, Layer::NoNewPrivileges, &both, "gain-by-exec");

        let mut ports = config.clone();
        ports.tcp = Some(TcpPorts::default());
        assert_noticed(&ports, Layer::LandlockTcp, &[], "bind-tcp");
        assert_noticed(&ports, Layer::LandlockTcp, &[], &there.tcp());
        // What goes round Landlock's rules is refused by seccomp.
        let by_other_ways =
            ["by-send", "by-mptcp"].map(|way| there.tcp().replace("tcp-connect", &format!("tcp-connect-{way}")));
        for way in &by_other_ways {
            assert_noticed(&ports, Layer::Seccomp, &[], way);
        }
        let mut unix = config.clone();
        unix.sockets = Sockets::UnixOnly;
        assert_noticed(&unix, Layer::SeccompUnixOnly, &[], "tcp-socket");
        let mut none = config;
        none.sockets = Sockets::None;
        for socket in ["unix-socket", "unix-socket-pair", "tcp-socket", "netlink-socket"] {
            assert_noticed(&none, Layer::SeccompUnixOnly, &[], socket);
        }
        // It stands for having no namespaces, so what else is shared with the machine is refused with it.
        let times = ["change-times", "change-times-by-high-pointer"];
        let [plain, high] = times.map(|how| format!("{how}={}", there.public()));
        for shared in
            [plain.as_str(), high.as_str(), "make-shared-memory", "make-semaphores", "make-queue", "use-ipc-object"]
        {
            assert_noticed(&none, Layer::SeccompUnixOnly, &[], shared);
        }
        // A POSIX queue is a file to Landlock, on a file system that no rule is about.
        let files = [Layer::LandlockFilesystem];
        assert_noticed(&none, Layer::SeccompUnixOnly, &files, "make-posix-queue");
    });
}

#[test]
fn the_supervisor() {
    let marker = new_marker();
    let request = action(Profile::Container, &marker, ["daemon", "600", "exit"]);
    run(&Executor::new(config(Profile::Container)).expect("an executor"), &request);
    assert_gone(&marker);
    let mut without = config(Profile::Container).without_layers([Layer::Supervisor]);
    without.floor = Floor::none();
    run(&Executor::new(without).expect("an executor"), &request);
    let survivors = with_marker(&marker);
    for &pid in &survivors {
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    }
    assert!(!survivors.is_empty());
}

#[test]
fn capabilities() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("capabilities to drop need root");
    }
    let config = config(Profile::Container);
    assert_noticed(&config, Layer::NoCapabilities, &[], "hold-capabilities");
}

#[test]
fn on_a_host() {
    let there = Host::new();
    let config = config(host());
    let public = format!("read-file={}", there.public());
    // Landlock's own rules are about the private root, so they fall away with it.
    let others = [Layer::LandlockFilesystem];
    assert_noticed(&config, Layer::MountNamespace, &others, &public);
    assert_noticed(&config, Layer::NetworkNamespace, &[], &there.tcp());
    let cmdline = format!("proc-cmdline={}", std::process::id());
    assert_noticed(&config, Layer::PidNamespace, &[], &cmdline);
    assert_noticed(&config, Layer::RlimitNproc, &[], "make-processes=600");
    assert_noticed(&config, Layer::Seccomp, &[], "vsock-socket");
    assert_shown(&config, Layer::UtsNamespace, "cat /proc/sys/kernel/hostname");
}

#[test]
fn shared_memory_of_the_host() {
    let segment = sympozium_testkit::sysv::SharedMemory::new().expect("a segment");
    let what = format!("sysv-shared-memory={}", segment.key());
    assert_noticed(&config(host()), Layer::IpcNamespace, &[], &what);
}

#[test]
fn there_is_no_host_world_without_a_user_namespace() {
    let config = config(host()).without_layers([Layer::UserNamespace]);
    let refused = Executor::new(config).expect_err("a refusal");
    assert!(matches!(refused, StartError::Step { .. }), "{refused:?}");
}

#[test]
fn a_floor_refuses_what_is_left_out() {
    for (profile, layer) in [
        (Profile::Container, Layer::LandlockFilesystem),
        (Profile::Container, Layer::LandlockScopes),
        (Profile::Container, Layer::Seccomp),
        (host(), Layer::MountNamespace),
        (host(), Layer::NetworkNamespace),
        (host(), Layer::RlimitNproc),
    ] {
        let refused = Executor::new(config(profile).without_layers([layer]));
        let error = refused.expect_err("a refusal");
        let text = error.to_string();
        assert!(text.contains(layer.as_str()), "{text}");
        assert!(error.hint().is_some(), "{text}");
    }
}

#[test]
fn limits_by_cgroup() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("no writable cgroup");
    }
    let mut config = config(Profile::HostRoot);
    config.limits = Limits { memory_bytes: Some(64 << 20), pids: Some(100), cpu_millis: None };
    assert_noticed(&config, Layer::CgroupMemory, &[], "allocate-memory=200");
    assert_noticed(&config, Layer::CgroupPids, &[], "make-processes=150");
    config.limits = Limits { pids: Some(100), ..Limits::default() };
    assert_shown(&config, Layer::CgroupNamespace, "cat /proc/self/cgroup");
}

#[test]
fn idmapped_mounts() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("idmapped mounts need root");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let config = config(Profile::HostRoot).with_bind(Bind {
        source: directory.path().to_owned(),
        target: "/workspace".into(),
        access: BindAccess::ReadWrite,
    });
    let what = "write-file=/workspace";
    attempt(config.clone(), [what]).assert_possible([what]);
    // The other way round: without it the directory belongs to another user.
    attempt(config.without_layers([Layer::IdmappedMounts]), [what]).assert_refused([what]);
}
