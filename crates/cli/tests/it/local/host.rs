//! The host of a run: its kernel, its programs, the services of its users (hostile cases 57 to 59).

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::{Home, Scenario, for_each_user_with_probe};

/// Attempts to change the host, or to gain the privileges for it.
const POWER: [&str; 33] = [
    "overwrite-own-program",
    "overwrite-executor",
    "overwrite-executor=1",
    "write-core-pattern",
    "write-kernel-settings",
    "write-sysrq-trigger",
    "write-sysfs",
    "write-release-agent",
    "write-cgroup",
    "open-kernel-memory",
    "open-powerful-device",
    "open-terminal",
    "open-block-device",
    "make-device=/workspace",
    "make-device=/tmp",
    "setuid-by-chmod=/workspace",
    "setuid-by-openat2=/workspace",
    "setuid-by-tmpfile=/workspace",
    "read-shadow",
    "open-init-root",
    "change-root",
    "inherited-descriptors",
    "leave-by-directory-descriptor",
    "become-root",
    "become-root-group",
    "keep-groups",
    "hold-capabilities",
    "regain-capabilities",
    "gain-by-exec",
    "run-unfiltered",
    "dump-core",
    "realtime-priority",
    "raise-priority",
];

/// Attempts on processes of others. Affinity can be changed, see docs/isolation.md.
const TO_OTHERS: [&str; 19] = [
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
    "signal",
    "signal-by-pidfd",
    "signal-by-tgkill",
    "set-priority",
    "change-limits",
];

/// Our processes in the sandbox of a skill: its init, the one that starts the executor, the executor, and the two around its
/// commands.
const OURS: std::ops::RangeInclusive<u32> = 1..=5;

#[test]
fn the_host_is_not_accessible() {
    for_each_user_with_probe(|home| {
        let programs = [home.at("bin/probe"), PathBuf::from(env!("CARGO_BIN_EXE_sympozium"))];
        let before = programs.clone().map(|it| stamp(&it));
        let kernel = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname"];
        let settings = kernel.map(|it| fs::read_to_string(it).unwrap());

        let run = home.run(&Scenario::attempts(&POWER));
        run.assert_succeeded();
        run.findings(0).assert_refused(POWER);

        assert_eq!(programs.map(|it| stamp(&it)), before);
        assert_eq!(kernel.map(|it| fs::read_to_string(it).unwrap()), settings);
    });
}

/// The attributes that change when a file is written or replaced.
fn stamp(path: &Path) -> (u64, u64, std::time::SystemTime) {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::metadata(path).unwrap();
    (found.ino(), found.len(), found.modified().unwrap())
}

#[test]
fn commands_cannot_access_our_processes() {
    for_each_user_with_probe(|home| {
        let attempts: Vec<String> = OURS.flat_map(|pid| TO_OTHERS.map(|name| format!("{name}={pid}"))).collect();
        let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
        // The result of one command is bounded.
        let commands: Vec<String> =
            (attempts.chunks(TO_OTHERS.len())).map(|part| format!("probe attempt {}", part.join(" "))).collect();
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let run = home.run(&Scenario::commands(&["probe"], &commands).patient());
        run.assert_succeeded();
        for (number, part) in attempts.chunks(TO_OTHERS.len()).enumerate() {
            run.findings(number).assert_refused(part.iter().copied());
        }
    });
}

/// Services of a user as on a desktop, with listening sockets.
struct Services {
    _directories: Vec<TempDir>,
    paths: Vec<PathBuf>,
    abstracts: Vec<String>,
    streams: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
}

impl Services {
    fn listen(home: &Home) -> Self {
        let mut services = Self {
            _directories: Vec::new(),
            paths: Vec::new(),
            abstracts: Vec::new(),
            streams: Vec::new(),
            datagrams: Vec::new(),
        };
        for name in ["docker.sock", "agent.sock", "bus", "wayland-0", "X7"] {
            services.bind(home.at(name));
        }
        // The paths of the host's own services, to which only root can write.
        for place in ["/tmp", "/run", "/dev/shm"] {
            if let Ok(directory) = tempfile::Builder::new().prefix(home.name()).tempdir_in(place) {
                services.bind(directory.path().join("service.sock"));
                services._directories.push(directory);
            }
        }
        for name in ["X11-unix-X7", "dbus"] {
            let name = format!("{}-{name}", home.name());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            services.streams.push(UnixListener::bind_addr(&address).unwrap());
            services.abstracts.push(name);
        }
        let name = format!("{}-notify", home.name());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        services.datagrams.push(UnixDatagram::bind_addr(&address).unwrap());
        services.abstracts.push(name);
        services
    }

    fn bind(&mut self, path: PathBuf) {
        use std::os::unix::fs::PermissionsExt as _;
        self.streams.push(UnixListener::bind(&path).unwrap());
        for (path, mode) in [(path.as_path(), 0o777), (path.parent().unwrap(), 0o755)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        self.paths.push(path);
    }

    /// Asserts that there was no connection.
    fn assert_alone(&self) {
        for stream in &self.streams {
            stream.set_nonblocking(true).unwrap();
            assert!(stream.accept().is_err(), "{:?}", stream.local_addr());
        }
        for datagram in &self.datagrams {
            datagram.set_nonblocking(true).unwrap();
            assert!(datagram.recv(&mut [0; 16]).is_err());
        }
    }
}

#[test]
fn services_of_the_host_are_not_accessible() {
    for_each_user_with_probe(|home| {
        let services = Services::listen(home);
        // Other processes can connect.
        for path in &services.paths {
            UnixStream::connect(path).unwrap();
        }
        for listener in &services.streams {
            if listener.local_addr().unwrap().as_pathname().is_some() {
                listener.accept().unwrap();
            }
        }
        let mut attempts = ["connect-docker", "connect-dbus", "connect-ssh-agent", "connect-x11", "connect-wayland"]
            .map(str::to_owned)
            .to_vec();
        for path in &services.paths {
            attempts.push(format!("connect-socket-file={}", path.display()));
            attempts.push(format!("connect-socket-file=/proc/1/root{}", path.display()));
        }
        for name in &services.abstracts {
            attempts.push(format!("abstract-connect={name}"));
            attempts.push(format!("abstract-send={name}"));
        }
        let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
        let mut scenario = Scenario::attempts(&attempts);
        scenario.turns.push(super::call(super::PACK, "probe do print env"));
        let file = home.manifests(&scenario);
        let at = |name: &str| home.at(name).display().to_string();
        let variables = [
            ("SSH_AUTH_SOCK", at("agent.sock")),
            ("DOCKER_HOST", format!("unix://{}", at("docker.sock"))),
            ("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={}", at("bus"))),
            ("WAYLAND_DISPLAY", at("wayland-0")),
            ("DISPLAY", ":7".to_owned()),
            ("XDG_RUNTIME_DIR", home.path().display().to_string()),
            ("AWS_SECRET_ACCESS_KEY", "of-the-user".to_owned()),
            ("LD_PRELOAD_OF_USER", "of-the-user".to_owned()),
        ];
        let output = home.sympozium(&["run", &file]).envs(variables.clone()).output().unwrap();
        let run = super::Ended { home, output, directory: home.directory_of(&scenario.name) };
        run.assert_succeeded();
        run.findings(0).assert_refused(attempts);
        services.assert_alone();
        // The run does not inherit the environment of its user.
        let printed: Value = serde_json::from_str(&run.results()[1]).unwrap();
        let printed = printed.to_string();
        for (name, value) in &variables {
            assert!(!printed.contains(name), "{name} in {printed}");
            assert!(value.len() < 4 || !printed.contains(value), "{printed}");
        }
    });
}

#[test]
fn a_run_that_cannot_be_isolated_enough_does_not_start() {
    // No local profile has a kernel of its own.
    super::for_each_user(|home| {
        let mut scenario = Scenario::commands(&["touch"], &["touch /workspace/it-ran"]);
        scenario.others.push(serde_json::json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "policy"},
            "spec": {"sandboxPolicy": {"minimumIsolation": ["kernel"]}},
        }));
        let run = home.run(&scenario);
        let said = String::from_utf8_lossy(&run.output.stderr).into_owned();
        assert_ne!(run.output.status.code(), Some(0), "{said}");
        assert!(said.contains("kernel"), "{said}");
        assert_eq!(run.results(), Vec::<String>::new());
        assert!(!run.directory.join("workspace/it-ran").exists());
        assert_eq!(super::leftovers::of(home), Vec::<String>::new());
    });
}
