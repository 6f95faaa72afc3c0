//! The keeper: builds the sandbox, forks workers on demand, and ends everything when the executor is gone.
//!
//! It is a subreaper (in a pid namespace: init). If a worker dies, its descendants become children of the keeper and
//! are killed at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::oom_score::OomScore;
use super::setup::{self, LiveLayers, StageReply, StageSetup, StepContext, StepError};
use super::tree::{self, Targets};
use super::{wire, worker};
use crate::guarantee::Layer;
use crate::sys::{self, Child, Fork, ForkParent};

/// A request of the executor to the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum KeeperRequest {
    /// Fork a worker on the socket that is attached.
    Worker,
    /// Reply when nothing is left of workers that have died, or whose sockets the executor has closed.
    Sweep,
}

/// The keeper's reply to [`KeeperRequest::Worker`] (with an error number) or [`KeeperRequest::Sweep`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum KeeperReply {
    Done,
    Failed(i32),
}

/// Runs from the first message of the executor to the end of everything.
pub(crate) fn run(control: OwnedFd) -> io::Result<()> {
    let Some((setup, _)) = wire::receive_json::<StageSetup>(&control)? else {
        return Ok(());
    };
    let mut live = LiveLayers::new();
    match build_sandbox(&setup, &control, &mut live) {
        Ok(built) => {
            wire::send_json(&control, &StageReply::Ready(live), &[built.root.as_fd()])?;
            drop(built.root);
            Keeper {
                control,
                scopes: built.scopes,
                oom_score: built.oom_score,
                supervises: setup.wants(Layer::Supervisor),
                workers: Vec::new(),
            }
            .serve()
        }
        Err(error) => wire::send_json(&control, &StageReply::Failed(error.into_failure()), &[]),
    }
}

/// One fixed sequence: no step may be reordered.
fn build_sandbox(setup: &StageSetup, control: &OwnedFd, live: &mut LiveLayers) -> Result<BuiltSandbox, StepError> {
    // Namespaces and mounts first: they need the powers that all later steps give up.
    let oom_score = setup::enter_layout(setup, control, live)?;
    // The target of every command's HOME. If it exists, or cannot be created, commands still run.
    let _ = rustix::fs::mkdir(&setup.home, Mode::RWXU);
    if setup.wants(Layer::Supervisor) {
        // Orphans of a worker that dies become our children, not those of a process that does not know them.
        rustix::process::set_child_subreaper(Some(Pid::INIT)).step("become a subreaper")?;
        live.insert(Layer::Supervisor, String::new());
    }
    // Opened before Landlock hides it; the executor looks up programs and directories below it.
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step("open the root directory")?;
    let scopes = setup::lock_down(setup, live)?;
    Ok(BuiltSandbox { root, scopes, oom_score })
}

struct BuiltSandbox {
    root: OwnedFd,
    scopes: Option<OwnedFd>,
    oom_score: OomScore,
}

struct Keeper {
    control: OwnedFd,
    scopes: Option<OwnedFd>,
    oom_score: OomScore,
    supervises: bool,
    workers: Vec<Worker>,
}

struct Worker {
    child: Child,
    /// The worker's end of its socket. It shows when the other end is closed, whether the worker reads or not.
    socket: OwnedFd,
}

/// How long a worker whose socket was closed may take to end its command before it is killed with it. A command may
/// have stopped it (without Landlock scopes), or it hangs in the start of a program.
const LOST_WORKER_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between kills of what does not end once the executor is gone.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// Delay before another attempt to kill what could not be killed.
const SWEEP_RETRY_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

impl Keeper {
    fn serve(mut self) -> io::Result<()> {
        let mut unswept = false;
        loop {
            let mut fds = vec![PollFd::new(&self.control, PollFlags::IN)];
            fds.extend(self.workers.iter().map(|worker| PollFd::new(&worker.child.pidfd, PollFlags::IN)));
            match poll(&mut fds, unswept.then_some(&SWEEP_RETRY_INTERVAL)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let asked = !fds[0].revents().is_empty();
            let worker_ended = fds[1..].iter().any(|fd| !fd.revents().is_empty());
            if worker_ended || unswept {
                // Processes that cannot be killed now stay our children: if we ended, they would get another parent.
                unswept = self.sweep().is_err();
            }
            if asked && !self.handle_request()? {
                self.kill_all();
                return Ok(());
            }
        }
    }

    /// `false`: the executor is gone.
    fn handle_request(&mut self) -> io::Result<bool> {
        // Any malformed message means that there is no executor to rely on.
        let Ok(Some((ask, descriptors))) = wire::receive_json(&self.control) else {
            return Ok(false);
        };
        let reply = match ask {
            KeeperRequest::Worker => match descriptors.into_iter().next() {
                Some(socket) => self.fork_worker(socket),
                None => Err(io::ErrorKind::InvalidInput.into()),
            },
            KeeperRequest::Sweep => self.kill_lost_workers().and_then(|()| self.sweep()),
        };
        let reply = match reply {
            Ok(()) => KeeperReply::Done,
            Err(error) => KeeperReply::Failed(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        Ok(wire::send_json(&self.control, &reply, &[]).is_ok())
    }

    fn fork_worker(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.oom_score.raise();
        let forked = sys::fork(ForkParent::Caller);
        if !matches!(forked, Ok(Fork::Child)) {
            self.oom_score.restore();
        }
        match forked? {
            Fork::Parent(child) => {
                self.workers.push(Worker { child, socket });
                Ok(())
            }
            Fork::Child => {
                let code = self.become_worker(socket).is_err();
                sys::exit_now(i32::from(code));
            }
        }
    }

    /// In the new process: keeps the socket and the ruleset, closes the keeper's descriptors.
    fn become_worker(&mut self, socket: OwnedFd) -> io::Result<()> {
        const SOCKET: i32 = 3;
        const SCOPES: i32 = 4;
        // Moves them away from the two fixed numbers, whatever they are now.
        let park = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(&fd, SCOPES + 1);
        let socket = park(socket)?;
        let scopes = self.scopes.take().map(park).transpose()?;
        let socket = sys::move_fd(socket, SOCKET)?;
        let scopes = scopes.map(|fd| sys::move_fd(fd, SCOPES)).transpose()?;
        debug_assert!(socket.as_raw_fd() == SOCKET);
        // The keeper's own objects still refer to descriptors of that range: they must not be dropped.
        std::mem::forget(std::mem::take(&mut self.workers));
        sys::close_from(if scopes.is_some() { SCOPES + 1 } else { SCOPES })?;
        if self.supervises {
            rustix::process::set_child_subreaper(Some(Pid::INIT))?;
        }
        worker::serve(&socket, scopes.as_ref())
    }

    /// Kills workers that the executor has released and that do not end by themselves.
    fn kill_lost_workers(&self) -> io::Result<()> {
        let until = Instant::now() + LOST_WORKER_TIMEOUT;
        for worker in &self.workers {
            if !poll_for(&worker.socket, PollFlags::HUP, Duration::ZERO)? {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !poll_for(&worker.child.pidfd, PollFlags::IN, left)? {
                // Only we reap it, so the number cannot refer to another process.
                kill_process(worker.child.pid, Signal::KILL)?;
                poll_for(&worker.child.pidfd, PollFlags::IN, LOST_WORKER_TIMEOUT)?;
            }
        }
        Ok(())
    }

    /// Reaps workers that ended and kills their remaining descendants.
    fn sweep(&mut self) -> io::Result<()> {
        self.workers.retain(|worker| !poll_for(&worker.child.pidfd, PollFlags::IN, Duration::ZERO).unwrap_or(false));
        let spare: Vec<Pid> = self.workers.iter().map(|worker| worker.child.pid).collect();
        match tree::kill(Targets::AllExcept(&spare), |_| {})? {
            0 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        }
    }

    /// Handles the end of the executor. Its ends of all sockets are closed: workers end their commands and themselves.
    /// This makes sure of it. As init of a pid namespace our own end would be enough.
    fn kill_all(self) {
        while !matches!(tree::kill(Targets::All(None), |_| {}), Ok(0)) {
            std::thread::sleep(KILL_INTERVAL);
        }
    }
}

/// Whether a descriptor has one of `flags` within `limit`.
fn poll_for(fd: &OwnedFd, flags: PollFlags, limit: Duration) -> io::Result<bool> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(fd, flags)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => return Ok(fds[0].revents().intersects(flags)),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
