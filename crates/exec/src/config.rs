//! The configuration of an executor: profile, floor, view of the files, limits.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cgroup::Limits;
use crate::environment::Environment;
use crate::guarantee::{Floor, Layer, Profile};
use crate::landlock::{TcpPorts, View};
use crate::layout::{Bind, Layout, RootView};
use crate::seccomp::Sockets;

/// Default limit for concurrent commands; further ones wait.
pub const DEFAULT_MAX_CONCURRENT: usize = 64;
/// Default limit for processes in a host sandbox.
pub const DEFAULT_PIDS: u32 = 512;
/// Default size of `/tmp` in a host sandbox.
pub const DEFAULT_TMP_BYTES: u64 = 256 * 1024 * 1024;
/// Default size of `/dev/shm` in a host sandbox.
pub const DEFAULT_SHM_BYTES: u64 = 64 * 1024 * 1024;
/// Default limit for the files in `/tmp` and `/dev/shm` of a host sandbox, each.
pub const DEFAULT_TMP_INODES: u64 = 65_536;
/// The directories of our own state in a pod; commands never see them.
pub const PRIVATE_PATHS: [&str; 2] = ["/ipc", "/run/sympozium"];

/// The configuration of an executor.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the executor runs.
    pub profile: Profile,
    /// The guarantees without which it must not start.
    pub floor: Floor,
    /// Layers to leave out. Tests disable them one by one; a floor that needs one then refuses.
    pub without: BTreeSet<Layer>,
    /// What commands may open (by Landlock).
    pub view: View,
    /// The TCP ports that commands may use; `None` leaves them to the other layers.
    pub tcp: Option<TcpPorts>,
    /// The sockets that commands may open.
    pub sockets: Sockets,
    /// Whether commands see processes in `/proc`. Without its own pid namespace, a sandbox shares it with the machine.
    pub processes: ProcessVisibility,
    /// The layout of a `host-*` sandbox.
    pub layout: Layout,
    /// Limits for memory, processes and CPU of all commands together, where cgroups are writable.
    pub limits: Limits,
    /// Working directories must be at or below one of these.
    pub working_roots: Vec<PathBuf>,
    /// The working directory of a request without one.
    pub working_directory: PathBuf,
    /// Where programs are looked up.
    pub search_path: Vec<PathBuf>,
    /// The directory of the skills, as commands see it.
    pub skills: PathBuf,
    /// The shells for a shell line, in order of preference.
    pub shells: Vec<PathBuf>,
    /// The base of every command's environment.
    pub environment: Environment,
    /// Limit for concurrent commands; further ones wait.
    pub max_concurrent: usize,
    /// The binary that runs the helper stage.
    pub stage: StageProgram,
}

/// Whether commands can open files in `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessVisibility {
    /// As the view defines.
    Shown,
    /// They cannot, by Landlock, not even about themselves. This needs Landlock's scopes, which are in the floor of
    /// every profile that shares its processes with others.
    Hidden,
}

/// The binary that runs the helper stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageProgram {
    /// This program, whose `main` calls [`stage::enter_if_asked`](crate::stage::enter_if_asked) first.
    Current,
    /// Another program, for processes whose `main` is not ours.
    At(PathBuf),
}

impl Config {
    /// The profile's defaults: its full floor, programs of the system directories, `/workspace` and `/tmp` writable,
    /// and a minimal environment.
    pub fn new(profile: Profile) -> Self {
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        Self {
            profile,
            floor: Floor::of_profile(profile),
            without: BTreeSet::new(),
            view: View {
                readable: paths(&["/"]),
                // A private layout contains nothing of ours but what was bound on purpose.
                hidden: if profile.is_host() { Vec::new() } else { paths(&PRIVATE_PATHS) },
                writable: paths(&["/workspace", "/tmp", "/var/tmp", "/dev/shm"]),
                terminals: true,
            },
            tcp: None,
            sockets: Sockets::default(),
            processes: ProcessVisibility::Shown,
            layout: Layout {
                root: RootView::HostSystem,
                binds: Vec::new(),
                tmp_bytes: DEFAULT_TMP_BYTES,
                shm_bytes: DEFAULT_SHM_BYTES,
                tmp_inodes: DEFAULT_TMP_INODES,
                pids: DEFAULT_PIDS,
                hostname: "sandbox".to_owned(),
                hosts: Vec::new(),
                identity: None,
            },
            limits: Limits::default(),
            working_roots: paths(&["/"]),
            working_directory: PathBuf::from("/"),
            search_path: paths(&["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]),
            skills: PathBuf::from("/usr/local/bin"),
            shells: paths(&["/bin/bash", "/usr/bin/bash", "/bin/sh"]),
            environment: Environment::from_declared([]),
            max_concurrent: DEFAULT_MAX_CONCURRENT,
            stage: StageProgram::Current,
        }
    }

    /// Adds a directory of the host to a `host-*` sandbox and, if it is writable, to the view.
    pub fn with_bind(mut self, bind: Bind) -> Self {
        if bind.access == crate::layout::BindAccess::ReadWrite && !self.view.writable.contains(&bind.target) {
            self.view.writable.push(bind.target.clone());
        }
        self.layout.binds.push(bind);
        self
    }

    /// Leaves layers out.
    pub fn without_layers(mut self, layers: impl IntoIterator<Item = Layer>) -> Self {
        self.without.extend(layers);
        self
    }

    /// Uses `directory` as the working directory of requests without one.
    pub fn with_working_directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.working_directory = directory.as_ref().to_owned();
        self
    }
}
