//! Each layer switched off in turn: something that was refused becomes possible. A layer that could be lost
//! without any test noticing would not be a layer.

use sympozium_exec::cgroup::Limits;
use sympozium_exec::landlock::TcpPorts;
use sympozium_exec::seccomp::Sockets;
use sympozium_exec::world::{Bind, BindAccess};
use sympozium_exec::{Config, Executor, Floor, Layer, Profile, Request, StartError};
use sympozium_testkit::as_user;
use sympozium_testkit::processes::{new_marker, with_marker};

use crate::matrix::{Host, config_with};
use crate::sandbox::{STAGE, action, assert_gone, attempt, config, host, run, stage};

/// `what` is refused with `layer` and possible without it. `others` are left out in both, where several
/// layers refuse the same thing.
#[track_caller]
fn notices(config: &Config, layer: Layer, others: &[Layer], what: &str) {
    let mut config = config.clone().leaving_out(others.iter().copied());
    config.floor = Floor::none();
    attempt(config.clone(), [what]).assert_refused([what]);
    attempt(config.leaving_out([layer]), [what]).assert_possible([what]);
}

/// What a command prints differs with and without the layer.
#[track_caller]
fn shows(config: &Config, layer: Layer, line: &str) {
    let printed = |config: Config| {
        let executor = Executor::new(config).expect("an executor");
        run(&executor, &Request::shell(line)).stdout.bytes
    };
    let mut config = config.clone();
    config.floor = Floor::none();
    assert_ne!(printed(config.clone()), printed(config.leaving_out([layer])), "{layer}: {line}");
}

#[test]
fn in_a_container() {
    as_user::run_with(&[(STAGE, &stage())], || {
        let there = Host::new();
        let config = config_with(Profile::Container, &there);
        let own = std::process::id();
        let secret = format!("read-file={}", there.secret());
        notices(&config, Layer::LandlockFilesystem, &[], &secret);
        notices(&config, Layer::LandlockScopes, &[], "signal");
        notices(&config, Layer::LandlockScopes, &[], &there.abstract_socket());
        notices(&config, Layer::Seccomp, &[], "unshare-user");
        notices(&config, Layer::Seccomp, &[], "vsock-socket");
        notices(&config, Layer::Seccomp, &[], "change-limits");
        notices(&config, Layer::Seccomp, &[], "set-scheduler");
        notices(&config, Layer::Seccomp, &[], "set-priority-of-user");
        notices(&config, Layer::Seccomp, &[], "setuid-by-chmod=/dev/shm");
        // Without scopes, a guard in seccomp stands in for the processes whose pids are known.
        let signal = format!("signal={own}");
        notices(&config, Layer::SignalGuard, &[Layer::LandlockScopes], &signal);
        // A Landlock domain hides processes outside it too, and seccomp refuses ptrace.
        let landlock = [Layer::LandlockFilesystem, Layer::LandlockScopes];
        notices(&config, Layer::NonDumpable, &landlock, "proc-maps");
        // Landlock and seccomp both bring it along.
        let both = [landlock[0], landlock[1], Layer::Seccomp];
        notices(&config, Layer::NoNewPrivileges, &both, "gain-by-exec");

        let mut ports = config.clone();
        ports.tcp = Some(TcpPorts::default());
        notices(&ports, Layer::LandlockTcp, &[], "bind-tcp");
        notices(&ports, Layer::LandlockTcp, &[], &there.tcp());
        // What goes round Landlock's rules is refused by seccomp.
        let by_other_ways =
            ["by-send", "by-mptcp"].map(|way| there.tcp().replace("tcp-connect", &format!("tcp-connect-{way}")));
        for way in &by_other_ways {
            notices(&ports, Layer::Seccomp, &[], way);
        }
        let mut unix = config.clone();
        unix.sockets = Sockets::UnixOnly;
        notices(&unix, Layer::SeccompUnixOnly, &[], "tcp-socket");
        let mut none = config;
        none.sockets = Sockets::None;
        for socket in ["unix-socket", "unix-socket-pair", "tcp-socket", "netlink-socket"] {
            notices(&none, Layer::SeccompUnixOnly, &[], socket);
        }
        // It stands for having no namespaces, so what else is shared with the machine is refused with it.
        let times = ["change-times", "change-times-by-high-pointer"];
        let [plain, high] = times.map(|how| format!("{how}={}", there.public()));
        for shared in
            [plain.as_str(), high.as_str(), "make-shared-memory", "make-semaphores", "make-queue", "use-ipc-object"]
        {
            notices(&none, Layer::SeccompUnixOnly, &[], shared);
        }
        // A POSIX queue is a file to Landlock, on a file system that no rule is about.
        let files = [Layer::LandlockFilesystem];
        notices(&none, Layer::SeccompUnixOnly, &files, "make-posix-queue");
    });
}

#[test]
fn the_supervisor() {
    let marker = new_marker();
    let request = action(Profile::Container, &marker, ["daemon", "600", "exit"]);
    run(&Executor::new(config(Profile::Container)).expect("an executor"), &request);
    assert_gone(&marker);
    let mut without = config(Profile::Container).leaving_out([Layer::Supervisor]);
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
    notices(&config, Layer::NoCapabilities, &[], "hold-capabilities");
}

#[test]
fn on_a_host() {
    let there = Host::new();
    let config = config(host());
    let public = format!("read-file={}", there.public());
    // Landlock's own rules are about the private root, so they fall away with it.
    let others = [Layer::LandlockFilesystem];
    notices(&config, Layer::MountNamespace, &others, &public);
    notices(&config, Layer::NetworkNamespace, &[], &there.tcp());
    let cmdline = format!("proc-cmdline={}", std::process::id());
    notices(&config, Layer::PidNamespace, &[], &cmdline);
    notices(&config, Layer::RlimitNproc, &[], "make-processes=600");
    notices(&config, Layer::Seccomp, &[], "vsock-socket");
    shows(&config, Layer::UtsNamespace, "cat /proc/sys/kernel/hostname");
}

#[test]
fn shared_memory_of_the_host() {
    let segment = sympozium_testkit::sysv::SharedMemory::new().expect("a segment");
    let what = format!("sysv-shared-memory={}", segment.key());
    notices(&config(host()), Layer::IpcNamespace, &[], &what);
}

#[test]
fn there_is_no_host_world_without_a_user_namespace() {
    let config = config(host()).leaving_out([Layer::UserNamespace]);
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
        let refused = Executor::new(config(profile).leaving_out([layer]));
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
    notices(&config, Layer::CgroupMemory, &[], "allocate-memory=200");
    notices(&config, Layer::CgroupPids, &[], "make-processes=150");
    config.limits = Limits { pids: Some(100), ..Limits::default() };
    shows(&config, Layer::CgroupNamespace, "cat /proc/self/cgroup");
}

#[test]
fn idmapped_mounts() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("idmapped mounts need root");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let config = config(Profile::HostRoot).bind(Bind {
        source: directory.path().to_owned(),
        target: "/workspace".into(),
        access: BindAccess::ReadWrite,
    });
    let what = "write-file=/workspace";
    attempt(config.clone(), [what]).assert_possible([what]);
    // The other way round: without it the directory is somebody else's.
    attempt(config.leaving_out([Layer::IdmappedMounts]), [what]).assert_refused([what]);
}
