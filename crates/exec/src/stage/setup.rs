//! The specification that the executor sends to the stage, the stage's replies, and the lock-down.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::ProcessVisibility;
use crate::guarantee::{Layer, Profile};
use crate::landlock::{self, TcpPorts, View};
use crate::layout::{self, Layout};
use crate::seccomp::{self, ProtectedProcesses, Sockets};
use crate::stage::oom_score::OomScore;

/// The live layers, with additional information about each.
pub(crate) type LiveLayers = BTreeMap<Layer, String>;

/// The specification of the sandbox for the stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StageSetup {
    pub(crate) profile: Profile,
    /// Layers of the profile that must be left out.
    pub(crate) without: BTreeSet<Layer>,
    pub(crate) landlock_abi: i32,
    pub(crate) view: View,
    pub(crate) tcp: Option<TcpPorts>,
    pub(crate) sockets: Sockets,
    pub(crate) processes: ProcessVisibility,
    /// The home directory of commands, to be created.
    pub(crate) home: PathBuf,
    /// Only for `host-*`.
    pub(crate) world: Option<Layout>,
}

impl StageSetup {
    pub(crate) fn wants(&self, layer: Layer) -> bool {
        !self.without.contains(&layer)
    }
}

/// The stage's replies on the control socket, before it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StageReply {
    /// The pid of the process that continues, as the executor sees it.
    Pid(i32),
    /// Built and locked down. The root directory of the view is attached as a descriptor.
    Ready(LiveLayers),
    /// A step failed; the process has ended.
    Failed(StepFailure),
}

/// The step that failed, and the error, as they are sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StepFailure {
    pub(crate) step: String,
    pub(crate) errno: Option<i32>,
    pub(crate) message: String,
}

/// A step that failed while a sandbox was built.
#[derive(Debug)]
pub(crate) struct StepError {
    step: String,
    error: io::Error,
}

impl StepError {
    pub(crate) fn into_failure(self) -> StepFailure {
        StepFailure { step: self.step, errno: self.error.raw_os_error(), message: self.error.to_string() }
    }
}

/// Adds the name of the step to an error.
pub(crate) trait StepContext<T> {
    fn step(self, step: impl Into<String>) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn step(self, step: impl Into<String>) -> Result<T, StepError> {
        self.map_err(|error| StepError { step: step.into(), error: error.into() })
    }
}

/// Restricts this process irrevocably. The order matters: each step removes what the next ones must not need. Returns
/// the ruleset that every command enters in addition.
pub(crate) fn lock_down(setup: &StageSetup, live: &mut LiveLayers) -> Result<Option<std::os::fd::OwnedFd>, StepError> {
    // First, because dropping the bounding set needs a capability.
    if setup.wants(Layer::NoCapabilities) && drop_capabilities().step("drop capabilities")? {
        live.insert(Layer::NoCapabilities, String::new());
    }
    // Landlock and seccomp without privileges require it.
    if setup.wants(Layer::NoNewPrivileges) {
        rustix::thread::set_no_new_privs(true).step("set no_new_privs")?;
        live.insert(Layer::NoNewPrivileges, String::new());
    }
    if setup.wants(Layer::NonDumpable) {
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
            .step("make the stage non-dumpable")?;
        live.insert(Layer::NonDumpable, String::new());
    }
    disable_core_files().step("set the core limit to 0")?;

    let abi = match setup.profile {
        // gVisor has no Landlock. Not probing keeps the profile the same on every kernel.
        Profile::Gvisor => 0,
        _ => setup.landlock_abi,
    };
    let detail = format!("ABI {abi}");
    let offers = |layer, since| abi >= since && setup.wants(layer);
    let tcp = setup.tcp.as_ref().filter(|_| offers(Layer::LandlockTcp, landlock::ABI_TCP));
    let view = Some(&setup.view).filter(|_| offers(Layer::LandlockFilesystem, landlock::ABI_FILESYSTEM));
    // Created before this process loses access to other files; entered by each command.
    let scopes = if offers(Layer::LandlockScopes, landlock::ABI_SCOPES) {
        live.insert(Layer::LandlockScopes, detail.clone());
        let closer = view.filter(|_| setup.processes == ProcessVisibility::Hidden);
        Some(landlock::scopes_with_view(closer).step("make the Landlock scopes")?)
    } else {
        None
    };
    if view.is_some() || tcp.is_some() {
        let own = view.map(|view| own_view(view, setup.processes));
        landlock::restrict(own.as_ref(), tcp).step("apply Landlock")?;
        if view.is_some() {
            live.insert(Layer::LandlockFilesystem, detail.clone());
        }
        if tcp.is_some() {
            live.insert(Layer::LandlockTcp, detail);
        }
    }

    if setup.wants(Layer::Seccomp) {
        // In a pid namespace the keeper is init, which the kernel itself protects.
        let guard = scopes.is_none() && setup.wants(Layer::SignalGuard) && !live.contains_key(&Layer::PidNamespace);
        let (pids, groups) = if guard { protected_processes() } else { Default::default() };
        let guarded = guard.then_some(ProtectedProcesses { pids: &pids, groups: &groups });
        let sockets = if setup.wants(Layer::SeccompUnixOnly) { setup.sockets } else { Sockets::Network };
        seccomp::restrict(sockets, guarded).step("apply seccomp")?;
        live.insert(Layer::Seccomp, String::new());
        let detail = match sockets {
            Sockets::Network => None,
            Sockets::UnixOnly => Some(""),
            Sockets::None => Some("no sockets at all"),
        };
        if let Some(detail) = detail {
            live.insert(Layer::SeccompUnixOnly, detail.to_owned());
        }
        if guard {
            live.insert(Layer::SignalGuard, String::new());
        }
    }
    Ok(scopes)
}

/// The view of keeper and workers: they read the processes of a command in `/proc`, also where commands cannot.
fn own_view(view: &View, processes: ProcessVisibility) -> View {
    let mut view = view.clone();
    if processes == ProcessVisibility::Hidden {
        view.readable.push(Path::new("/proc").to_owned());
    }
    view
}

/// Keeper and executor, and their process groups.
fn protected_processes() -> (Vec<i32>, Vec<i32>) {
    let processes = [Some(rustix::process::getpid()), rustix::process::getppid()];
    processes
        .into_iter()
        .flatten()
        .filter_map(|pid| Some((pid, rustix::process::getpgid(Some(pid)).ok()?)))
        .map(|(pid, group)| (pid.as_raw_pid(), group.as_raw_pid()))
        .unzip()
}

/// Builds the layout, if the profile has one. On return this process is its init.
pub(crate) fn enter_layout(
    setup: &StageSetup,
    control: &std::os::fd::OwnedFd,
    live: &mut LiveLayers,
) -> Result<OomScore, StepError> {
    match &setup.world {
        Some(world) => layout::build_layout(world, &setup.without, control, live),
        None => Ok(OomScore::open()),
    }
}

/// Drops every capability. `false`: root would regain some by executing a program.
fn drop_capabilities() -> io::Result<bool> {
    use rustix::thread::{
        CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities,
    };
    let mut bounding_is_empty = true;
    for capability in CapabilitySet::all().iter() {
        // Without CAP_SETPCAP the set stays, which only matters for root. For numbers that this kernel does not know
        // the first call fails.
        if capability_is_in_bounding_set(capability).unwrap_or(false)
            && remove_capability_from_bounding_set(capability).is_err()
        {
            bounding_is_empty = false;
        }
    }
    clear_ambient_capability_set()?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(bounding_is_empty || !rustix::process::getuid().is_root())
}

fn disable_core_files() -> io::Result<()> {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).map_err(Into::into)
}
