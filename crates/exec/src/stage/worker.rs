//! A worker: runs one command at a time and replies when all of its processes have ended.
//!
//! It is a subreaper, so every descendant of the command ends up as its child. It takes the next job only when the
//! kernel confirms that it has no child: a survivor of one command can never coexist with the next.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::tree::{self, SignalScope, Targets};
use super::wire::{self, CommandEnd, ControlByte, Job, WorkerReply};
use crate::sys::{self, Child, ChildStack, Image, ReapResult, ReapedChild, SpawnSpec};

/// A message buffer that grew beyond this is shrunk after the job.
const MAX_IDLE_BUFFER_BYTES: usize = 64 * 1024;
/// Interval between checks for ended descendants while it waits for the last of them.
const REAP_INTERVAL: Duration = Duration::from_millis(2);

/// Serves jobs until the executor closes the socket.
///
/// `landlock` is the ruleset that each command enters on top of the worker's own restrictions.
pub(crate) fn serve(socket: &OwnedFd, landlock: Option<&OwnedFd>) -> io::Result<()> {
    // The worker's own scope, around those of its commands: it reaches all of them at once and no other process.
    let scope = landlock.map(SignalScope::enter).transpose()?.flatten();
    // Orphans that end while the command runs are reaped at once: each zombie occupies a pid.
    sys::interrupt_on_child_exit()?;
    let mut stack = ChildStack::new();
    let mut buffer = Vec::new();
    while let Some((job, descriptors)) = wire::receive_job(socket, &mut buffer)? {
        buffer.clear();
        buffer.shrink_to(MAX_IDLE_BUFFER_BYTES);
        let answer = match spawn_command(&job, descriptors, landlock, &mut stack) {
            Ok(child) => RunningCommand::new(socket, scope.as_ref(), &job, child).run()?,
            Err(error) => WorkerReply::NotStarted(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        wire::send(socket, &answer.encode(), &[])?;
        if let WorkerReply::Survivors(_) = answer {
            // Never reuse a worker that still has a child; it stays their reaper until they end.
            while tree::kill(Targets::All(scope.as_ref()), |_| {})? > 0 {}
            return Ok(());
        }
    }
    Ok(())
}

/// A container may have a lower limit than the requested one.
fn within_hard_limit(open_files: u64) -> u64 {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    hard.map_or(open_files, |hard| open_files.min(hard))
}

fn spawn_command(
    job: &Job,
    [stdin, stdout, stderr, directory, program]: [OwnedFd; wire::JOB_DESCRIPTORS],
    landlock: Option<&OwnedFd>,
    stack: &mut ChildStack,
) -> io::Result<Child> {
    let mut rlimits = Vec::with_capacity(2);
    for (resource, value) in
        [(libc::RLIMIT_FSIZE, job.file_bytes), (libc::RLIMIT_NOFILE, job.open_files.map(within_hard_limit))]
    {
        if let Some(value) = value {
            rlimits.push((resource.try_into().unwrap_or_default(), value));
        }
    }
    sys::spawn(
        &SpawnSpec {
            image: match &job.script {
                Some(path) => Image::Path(path),
                None => Image::File(program.as_fd()),
            },
            argv: &job.argv,
            envp: &job.envp,
            descriptors: &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            working_directory: Some(directory.as_fd()),
            rlimits: &rlimits,
            landlock: landlock.map(AsFd::as_fd),
            dies_with_parent: true,
            signals: sys::InitialSignals::Inherited,
        },
        stack,
    )
}

/// One running command.
struct RunningCommand<'a> {
    socket: &'a OwnedFd,
    scope: Option<&'a SignalScope>,
    job: &'a Job,
    child: Child,
    deadline: Option<Instant>,
    end: CommandEnd,
    main_ended: bool,
}

/// Why a wait ended.
enum WakeReason {
    /// The command itself has ended, or the children have to be checked.
    CheckChildren,
    /// The time is up.
    TimedOut,
    Cancelled,
    Drained,
    /// The executor is gone: the reply is not needed.
    Orphaned,
}

impl<'a> RunningCommand<'a> {
    fn new(socket: &'a OwnedFd, scope: Option<&'a SignalScope>, job: &'a Job, child: Child) -> Self {
        Self {
            socket,
            scope,
            job,
            child,
            deadline: Instant::now().checked_add(job.timeout),
            end: CommandEnd {
                status: 0,
                timed_out: false,
                cancelled: false,
                user: Duration::ZERO,
                system: Duration::ZERO,
                max_resident_bytes: 0,
                killed: 0,
            },
            main_ended: false,
        }
    }

    fn run(mut self) -> io::Result<WorkerReply> {
        loop {
            match self.wait(self.deadline)? {
                WakeReason::CheckChildren => {
                    if self.reap()? {
                        return Ok(WorkerReply::Ended(self.end));
                    }
                    if self.main_ended {
                        return self.drain();
                    }
                }
                WakeReason::Drained => {}
                WakeReason::TimedOut => {
                    self.end.timed_out = true;
                    return self.terminate();
                }
                WakeReason::Cancelled => {
                    self.end.cancelled = true;
                    return self.terminate();
                }
                WakeReason::Orphaned => return self.kill(),
            }
        }
    }

    /// The command has ended and descendants live: they may finish writing, for a short while.
    fn drain(mut self) -> io::Result<WorkerReply> {
        wire::send(self.socket, &WorkerReply::Lingering.encode(), &[])?;
        let until = Instant::now() + self.job.drain;
        loop {
            match self.wait(Some(until))? {
                WakeReason::CheckChildren => {
                    if self.reap()? {
                        return Ok(WorkerReply::Ended(self.end));
                    }
                }
                WakeReason::TimedOut | WakeReason::Drained | WakeReason::Cancelled | WakeReason::Orphaned => {
                    return self.kill();
                }
            }
        }
    }

    /// SIGTERM to all, a grace period, then SIGKILL.
    fn terminate(mut self) -> io::Result<WorkerReply> {
        if !self.job.grace.is_zero() {
            tree::signal(Signal::TERM, Targets::All(self.scope))?;
            let until = Instant::now() + self.job.grace;
            loop {
                match self.wait(Some(until))? {
                    WakeReason::CheckChildren => {
                        if self.reap()? {
                            return Ok(WorkerReply::Ended(self.end));
                        }
                    }
                    WakeReason::Cancelled | WakeReason::Drained => {}
                    WakeReason::TimedOut | WakeReason::Orphaned => break,
                }
            }
        }
        self.kill()
    }

    fn kill(mut self) -> io::Result<WorkerReply> {
        let main = self.child.pid;
        let (ended, main_ended) = (&mut self.end, &mut self.main_ended);
        let left = tree::kill(Targets::All(self.scope), |reaped| {
            // Not those that were ending by themselves.
            let by_us = reaped.status & 0x7f == libc::SIGKILL;
            ended.killed += u32::from(by_us && reaped.pid != main);
            record_reaped(ended, main_ended, main, reaped);
        })?;
        Ok(match u32::try_from(left).unwrap_or(u32::MAX) {
            0 => WorkerReply::Ended(self.end),
            left => WorkerReply::Survivors(left),
        })
    }

    /// Reaps ended children. `true`: provably none is left.
    fn reap(&mut self) -> io::Result<bool> {
        // Bounded, because the deadline must be checked however many end.
        for _ in 0..tree::MAX_REAPED_PER_PASS {
            match sys::reap()? {
                ReapResult::One(reaped) => record_reaped(&mut self.end, &mut self.main_ended, self.child.pid, reaped),
                ReapResult::NoneYet => return Ok(false),
                ReapResult::Childless => return Ok(true),
            }
        }
        Ok(false)
    }

    fn wait(&self, until: Option<Instant>) -> io::Result<WakeReason> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(WakeReason::TimedOut);
        }
        let mut fds = [PollFd::new(self.socket, PollFlags::IN), PollFd::new(&self.child.pidfd, PollFlags::IN)];
        // The pidfd of a reaped process stays readable: from then on the children are checked at short intervals.
        let (fds, left) = if self.main_ended {
            let look = left.map_or(REAP_INTERVAL, |left| left.min(REAP_INTERVAL));
            (&mut fds[..1], Some(look))
        } else {
            (&mut fds[..], left)
        };
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, timeout.as_ref()) {
            // A child has ended. (One that ends right before the poll is found with the next.)
            Err(rustix::io::Errno::INTR) => return Ok(WakeReason::CheckChildren),
            other => other?,
        };
        if fds[0].revents().is_empty() {
            return Ok(WakeReason::CheckChildren);
        }
        let mut word = [0];
        match wire::receive(self.socket, &mut word, &mut Vec::new()) {
            Ok(true) if word[0] == ControlByte::Cancel as u8 => Ok(WakeReason::Cancelled),
            Ok(true) if word[0] == ControlByte::Drained as u8 => Ok(WakeReason::Drained),
            // Closed, reset, or an unknown byte: the executor cannot be relied on.
            _ => Ok(WakeReason::Orphaned),
        }
    }
}

fn record_reaped(ended: &mut CommandEnd, main_ended: &mut bool, main: rustix::process::Pid, reaped: ReapedChild) {
    if reaped.pid == main {
        ended.status = reaped.status;
        *main_ended = true;
    }
    ended.user += reaped.user;
    ended.system += reaped.system;
    ended.max_resident_bytes = ended.max_resident_bytes.max(reaped.max_resident_bytes);
}
