//! The executor's link to its keeper: starts the helper stage, requests workers, ends it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::StartError;
use crate::cgroup::{Cgroup, Limits};
use crate::config::{Config, StageProgram};
use crate::guarantee::{Layer, Profile};
use crate::landlock;
use crate::layout::{Bind, BindAccess, Layout};
use crate::lookup::Runner;
use crate::stage::keeper::{KeeperReply, KeeperRequest};
use crate::stage::setup::{LiveLayers, StageReply, StageSetup};
use crate::stage::{STAGE_NAME, wire};
use crate::sys::{self, Child, ChildStack, Image, InitialSignals, SpawnSpec};

/// How long building a sandbox may take. Generous: the machine may be busy.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a keeper may take to end what is left.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a keeper or worker may leave a message unread, or stop in the middle of one of its own. A command that can
/// stop its worker must not block the executor.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The lowest number for descriptors that are passed to the stage, above the fixed numbers that they get there.
const MIN_FD: i32 = 10;
/// Host UIDs for sandboxes that root builds. Distributions do not use this range (systemd's table of UIDs calls it
/// unused), and no account has one of them.
const FIRST_SANDBOX_UID: u32 = 0x7000_0000;
/// A mask: the range ends well before the largest UID that old programs support (2³¹ − 1).
const SANDBOX_UID_MASK: u32 = 0x07ff_ffff;

/// A keeper that is ready.
pub(super) struct StartedKeeper {
    pub(super) link: KeeperLink,
    pub(super) live: LiveLayers,
    pub(super) root: OwnedFd,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) worker: Option<OwnedFd>,
}

/// The control socket and the keeper. Dropping it ends the keeper and all of its descendants, and waits.
#[derive(Debug)]
pub(super) struct KeeperLink {
    control: Option<OwnedFd>,
    keeper: Child,
    /// Requests whose reply has not been read. Replies come in the order of the requests, so a late one is not taken
    /// for the reply to another request.
    pending_replies: u32,
}

/// The identity that runs commands, as this process sees it.
pub(super) fn runner(config: &Config) -> Runner {
    if let Some(identity) = config.layout.identity.filter(|_| config.profile.is_host()) {
        return Runner { uid: identity, gids: vec![identity] };
    }
    let mut gids = vec![rustix::process::getegid().as_raw()];
    gids.extend(rustix::process::getgroups().unwrap_or_default().into_iter().map(rustix::process::Gid::as_raw));
    Runner { uid: rustix::process::geteuid().as_raw(), gids }
}

/// A host UID that no other sandbox of this process has, and no sandbox of another process that has built fewer than
/// 4096. (Two that share one still share no pid, mount or user namespace.)
pub(super) fn allocate_uid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = rustix::process::getpid().as_raw_pid().cast_unsigned();
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    FIRST_SANDBOX_UID + (process.wrapping_mul(4096).wrapping_add(count) & SANDBOX_UID_MASK)
}

/// Starts the helper stage and waits until it is ready.
pub(super) fn start(config: &Config) -> Result<StartedKeeper, StartError> {
    let (control, theirs) = socket_pair().map_err(StartError::Stage)?;
    let stage = spawn_stage(config, theirs).map_err(StartError::Stage)?;
    let mut link = KeeperLink { control: Some(control), keeper: stage, pending_replies: 0 };

    // Before it does anything: all processes that it starts are then in the group.
    let (cgroup, limited) = create_cgroup(config, link.keeper.pid)?;
    wire::send_json(link.control()?, &stage_setup(config), &[]).map_err(StartError::Stage)?;
    // Requested early: it is forked while we check the report.
    let (worker, theirs) = socket_pair().map_err(StartError::Stage)?;
    let asked = link.send(&KeeperRequest::Worker, Some(&theirs));
    drop(theirs);
    // A stage that failed may have ended already, and has sent the reason.
    let (mut live, root) = link.wait_until_ready()?;
    asked.map_err(StartError::Stage)?;
    live.extend(limited);
    if crate::features::is_gvisor() {
        live.insert(Layer::SandboxKernel, "gVisor".to_owned());
    }
    // A worker that could not be forked is requested again when it is needed, and then it is an error.
    let worker = link.receive().is_ok().then_some(worker);
    Ok(StartedKeeper { link, live, root, cgroup, worker })
}

/// Our end, with timeouts in both directions, and theirs.
fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for direction in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&ours, direction, Some(MESSAGE_TIMEOUT))?;
    }
    Ok((ours, theirs))
}

fn spawn_stage(config: &Config, control: OwnedFd) -> io::Result<Child> {
    let path = match &config.stage {
        StageProgram::Current => std::path::Path::new("/proc/self/exe"),
        StageProgram::At(path) => path.as_path(),
    };
    let program = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let high = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, MIN_FD);
    let (program, null, control) = (high(&program)?, high(&null)?, high(&control)?);
    sys::spawn(
        &SpawnSpec {
            image: Image::File(program.as_fd()),
            argv: &[CString::from(STAGE_NAME)],
            // Nothing of our environment: it may contain secrets, and the stage needs none of it.
            envp: &[],
            descriptors: &[null.as_fd(), null.as_fd(), null.as_fd(), control.as_fd()],
            working_directory: None,
            rlimits: &[],
            landlock: None,
            // The signal would be sent when the *thread* ends that started it. The closed socket is used instead.
            dies_with_parent: false,
            signals: InitialSignals::Blocked,
        },
        &mut ChildStack::new(),
    )
}

fn create_cgroup(config: &Config, stage: Pid) -> Result<(Option<Cgroup>, LiveLayers), StartError> {
    if !config.profile.is_host() || config.limits == Limits::default() {
        return Ok((None, LiveLayers::new()));
    }
    let mut limits = config.limits;
    for layer in &config.without {
        match layer {
            Layer::CgroupMemory => limits.memory_bytes = None,
            Layer::CgroupPids => limits.pids = None,
            Layer::CgroupCpu => limits.cpu_millis = None,
            _ => {}
        }
    }
    // Groups that a killed executor left behind. An error is ignored, and once is enough.
    static SWEEP: Once = Once::new();
    SWEEP.call_once(|| {
        let _ = crate::cgroup::sweep_stale();
    });
    let (cgroup, applied) = Cgroup::create(&limits, &config.layout.hostname)?;
    cgroup.add(stage)?;
    Ok((Some(cgroup), applied))
}

fn stage_setup(config: &Config) -> StageSetup {
    StageSetup {
        profile: config.profile,
        without: config.without.clone(),
        landlock_abi: landlock::abi(),
        view: config.view.clone(),
        tcp: config.tcp.clone(),
        sockets: config.sockets,
        processes: config.processes,
        home: config.environment.home().to_owned(),
        world: config.profile.is_host().then(|| bounded_layout(config)),
    }
}

/// The layout, with file systems in memory that leave some of it to processes: files stay when the kernel kills for
/// memory.
fn bounded_layout(config: &Config) -> Layout {
    let mut layout = config.layout.clone();
    if let Some(memory) = config.limits.memory_bytes {
        layout.tmp_bytes = layout.tmp_bytes.min(memory / 4);
        layout.shm_bytes = layout.shm_bytes.min(memory / 4);
    }
    layout
}

impl KeeperLink {
    fn control(&self) -> Result<&OwnedFd, StartError> {
        self.control.as_ref().ok_or(StartError::StageEnded)
    }

    fn wait_until_ready(&mut self) -> Result<(LiveLayers, OwnedFd), StartError> {
        loop {
            let control = self.control()?;
            wait_readable(control, START_TIMEOUT).map_err(StartError::Stage)?;
            let (hello, descriptors) = match wire::receive_json(control) {
                Ok(Some(message)) => message,
                Ok(None) => return Err(StartError::StageEnded),
                Err(error) => return Err(StartError::Stage(error)),
            };
            match hello {
                StageReply::Pid(pid) => self.switch_to_init(pid).map_err(StartError::Stage)?,
                StageReply::Ready(live) => {
                    let root = descriptors.into_iter().next();
                    return root.map(|root| (live, root)).ok_or(StartError::Stage(io::ErrorKind::InvalidData.into()));
                }
                StageReply::Failed(failure) => {
                    return Err(StartError::Step {
                        step: failure.step,
                        errno: failure.errno,
                        message: failure.message,
                    });
                }
            }
        }
    }

    /// The stage forked the sandbox's init, a child of ours too, and has ended.
    fn switch_to_init(&mut self, init: i32) -> io::Result<()> {
        let pid = Pid::from_raw(init).filter(|_| init > 0).ok_or(io::ErrorKind::InvalidData)?;
        // It is our child and not reaped, so the number refers to it.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let stage = std::mem::replace(&mut self.keeper, Child { pid, pidfd });
        reap(&stage, END_TIMEOUT);
        Ok(())
    }

    /// Requests a new worker and returns its socket.
    pub(super) fn new_worker(&mut self) -> io::Result<OwnedFd> {
        let (ours, theirs) = socket_pair()?;
        self.call(&KeeperRequest::Worker, Some(&theirs))?;
        Ok(ours)
    }

    /// Returns when nothing is left of workers that died.
    pub(super) fn sweep(&mut self) -> io::Result<()> {
        self.call(&KeeperRequest::Sweep, None).or_else(|error| {
            // The keeper is dead or dying. If it was init of a pid namespace, the kernel reports its end only when
            // everything in there has ended.
            wait_readable(&self.keeper.pidfd, END_TIMEOUT).map_err(|_| error)
        })
    }

    fn call(&mut self, ask: &KeeperRequest, descriptor: Option<&OwnedFd>) -> io::Result<()> {
        self.send(ask, descriptor)?;
        self.receive()
    }

    fn send(&mut self, ask: &KeeperRequest, descriptor: Option<&OwnedFd>) -> io::Result<()> {
        let control = self.control.as_ref().ok_or_else(broken_pipe)?;
        let descriptors: Vec<_> = descriptor.iter().map(|fd| fd.as_fd()).collect();
        wire::send_json(control, ask, &descriptors)?;
        self.pending_replies += 1;
        Ok(())
    }

    /// Receives the reply to the last request.
    fn receive(&mut self) -> io::Result<()> {
        let control = self.control.as_ref().ok_or_else(broken_pipe)?;
        loop {
            wait_readable(control, END_TIMEOUT)?;
            let reply = wire::receive_json(control)?.ok_or_else(broken_pipe)?.0;
            self.pending_replies = self.pending_replies.saturating_sub(1);
            match reply {
                _ if self.pending_replies > 0 => {}
                KeeperReply::Done => return Ok(()),
                KeeperReply::Failed(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// A descriptor that is readable once the keeper has ended.
    pub(super) fn keeper_pidfd(&self) -> io::Result<OwnedFd> {
        self.keeper.pidfd.try_clone()
    }
}

/// Whether the process of a pidfd has ended.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    wait_readable(process, Duration::ZERO).is_ok()
}

fn broken_pipe() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

impl Drop for KeeperLink {
    fn drop(&mut self) {
        // The keeper ends everything when it sees this, and itself last.
        self.control = None;
        reap(&self.keeper, END_TIMEOUT);
    }
}

/// Waits for a child to end and reaps it; kills it after a timeout.
fn reap(child: &Child, limit: Duration) {
    if wait_readable(&child.pidfd, limit).is_err() {
        let _ = rustix::process::pidfd_send_signal(&child.pidfd, Signal::KILL);
        // A process that does not end even then stays a zombie rather than block us for ever.
        let _ = wait_readable(&child.pidfd, limit);
    }
    let _ = rustix::process::waitpid(Some(child.pid), WaitOptions::NOHANG);
}

fn wait_readable(fd: &OwnedFd, limit: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(limit).ok();
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The identity of a sandbox that root builds, unless the caller chose one: an unused UID, which needs idmapped mounts
/// for writable directories; without them the owner of those directories, if that is an ordinary user.
pub(super) fn choose_identity(config: &Config, idmaps: IdmapSupport) -> Option<u32> {
    let root = rustix::process::geteuid().is_root();
    if config.profile != Profile::HostRoot || !root || config.layout.identity.is_some() {
        return config.layout.identity;
    }
    let owner = || {
        let writable = |bind: &&Bind| bind.access != BindAccess::ReadOnly;
        let source = &config.layout.binds.iter().find(writable)?.source;
        let owner = rustix::fs::stat(source).ok()?.st_uid;
        Some(owner).filter(|&owner| owner != 0)
    };
    match idmaps {
        IdmapSupport::Available => Some(allocate_uid()),
        IdmapSupport::Missing => owner().or_else(|| Some(allocate_uid())),
    }
}

/// Whether mounts can be idmapped here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdmapSupport {
    Available,
    Missing,
}

impl IdmapSupport {
    /// As far as the configuration allows it.
    pub(super) fn from_config(config: &Config) -> Self {
        if config.without.contains(&Layer::IdmappedMounts) { Self::Missing } else { Self::Available }
    }
}
