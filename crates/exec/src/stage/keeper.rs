//! The keeper: builds the world, forks workers on demand, and ends everything when the executor is gone.
//!
//! It is a subreaper (in a pid namespace: init). If a worker dies, what it left becomes the keeper's and
//! is killed at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::setup::{self, Hello, Live, Setup, Step, StepError};
use super::tree::{self, Whom};
use super::{wire, worker};
use crate::guarantee::Layer;
use crate::sys::{self, Child, Fork, ParentIs};

/// What the executor may ask of a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Fork a worker on the socket that comes along.
    Worker,
    /// Answer when nothing is left of workers that have died.
    Sweep,
}

/// The keeper's answer to [`Ask::Worker`] (an error number) or [`Ask::Sweep`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    Done,
    Failed(i32),
}

/// From the first message of the executor to the end of everything.
pub(crate) fn run(control: OwnedFd) -> io::Result<()> {
    let Some((setup, _)) = wire::receive_json::<Setup>(&control)? else {
        return Ok(());
    };
    let mut live = Live::new();
    match build(&setup, &control, &mut live) {
        Ok((root, scopes)) => {
            wire::send_json(&control, &Hello::Ready(live), &[root.as_fd()])?;
            drop(root);
            Keeper {
                control,
                scopes,
                supervises: setup.wants(Layer::Supervisor),
                workers: Vec::new(),
            }
            .serve()
        }
        Err(error) => wire::send_json(&control, &Hello::Failed(error.into_failure()), &[]),
    }
}

/// One straight sequence: nothing in it may be reordered.
fn build(
    setup: &Setup,
    control: &OwnedFd,
    live: &mut Live,
) -> Result<(OwnedFd, Option<OwnedFd>), StepError> {
    // Namespaces and mounts first: they need the powers that all later steps give up.
    setup::enter_world(setup, control, live)?;
    // Where every command's HOME points to. If it is there already, or cannot be, commands get by.
    let _ = rustix::fs::mkdir(crate::environment::HOME, Mode::RWXU);
    if setup.wants(Layer::Supervisor) {
        // Orphans of a worker that dies come to us, not to somebody who does not know what they are.
        rustix::process::set_child_subreaper(Some(Pid::INIT)).step("become a subreaper")?;
        live.insert(Layer::Supervisor, String::new());
    }
    // Opened before Landlock hides it; the executor looks programs and directories up below it.
    let root = rustix::fs::open(
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("open the root directory")?;
    let scopes = setup::lock_down(setup, live)?;
    Ok((root, scopes))
}

struct Keeper {
    control: OwnedFd,
    scopes: Option<OwnedFd>,
    supervises: bool,
    workers: Vec<Child>,
}

impl Keeper {
    fn serve(mut self) -> io::Result<()> {
        loop {
            let mut fds = vec![PollFd::new(&self.control, PollFlags::IN)];
            fds.extend(
                self.workers
                    .iter()
                    .map(|worker| PollFd::new(&worker.pidfd, PollFlags::IN)),
            );
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let asked = !fds[0].revents().is_empty();
            let worker_ended = fds[1..].iter().any(|fd| !fd.revents().is_empty());
            if worker_ended {
                self.sweep()?;
            }
            if asked && !self.answer()? {
                return self.end();
            }
        }
    }

    /// `false`: the executor is gone.
    fn answer(&mut self) -> io::Result<bool> {
        // Anything but a well-formed message means that there is no executor to rely on.
        let Ok(Some((ask, descriptors))) = wire::receive_json(&self.control) else {
            return Ok(false);
        };
        let told = match ask {
            Ask::Worker => match descriptors.into_iter().next() {
                Some(socket) => self.fork_worker(socket),
                None => Err(io::ErrorKind::InvalidInput.into()),
            },
            Ask::Sweep => self.sweep(),
        };
        let told = match told {
            Ok(()) => Told::Done,
            Err(error) => Told::Failed(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        Ok(wire::send_json(&self.control, &told, &[]).is_ok())
    }

    fn fork_worker(&mut self, socket: OwnedFd) -> io::Result<()> {
        match sys::fork(ParentIs::Caller)? {
            Fork::Parent(child) => {
                self.workers.push(child);
                Ok(())
            }
            Fork::Child => {
                let code = self.become_worker(socket).is_err();
                sys::exit_now(i32::from(code));
            }
        }
    }

    /// In the new process: keep the socket and the ruleset, close what belongs to the keeper.
    fn become_worker(&mut self, socket: OwnedFd) -> io::Result<()> {
        const SOCKET: i32 = 3;
        const SCOPES: i32 = 4;
        // Out of the way of the two fixed numbers, whatever they are now.
        let park = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(&fd, SCOPES + 1);
        let socket = park(socket)?;
        let scopes = self.scopes.take().map(park).transpose()?;
        let socket = sys::move_to(socket, SOCKET)?;
        let scopes = scopes.map(|fd| sys::move_to(fd, SCOPES)).transpose()?;
        debug_assert!(socket.as_raw_fd() == SOCKET);
        // The keeper's own objects still name descriptors of that range: they must not be dropped.
        std::mem::forget(std::mem::take(&mut self.workers));
        sys::close_from(if scopes.is_some() { SCOPES + 1 } else { SCOPES })?;
        if self.supervises {
            rustix::process::set_child_subreaper(Some(Pid::INIT))?;
        }
        worker::serve(&socket, scopes.as_ref())
    }

    /// Reaps workers that ended and kills what they left behind.
    fn sweep(&mut self) -> io::Result<()> {
        self.workers.retain(|worker| {
            let mut fd = [PollFd::new(&worker.pidfd, PollFlags::IN)];
            let at_once = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            !matches!(poll(&mut fd, Some(&at_once)), Ok(ready) if ready > 0)
        });
        let spare: Vec<Pid> = self.workers.iter().map(|worker| worker.pid).collect();
        match tree::kill(Whom::AllBut(&spare), |_| {})? {
            0 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        }
    }

    /// The executor is gone, and with it its end of every worker's socket: workers end their commands and
    /// themselves. We make sure of it. As init of a pid namespace our own end would do.
    fn end(self) -> io::Result<()> {
        while tree::kill(Whom::All(None), |_| {})? > 0 {}
        Ok(())
    }
}
