//! The executor: runs commands, each until all of its processes have ended.

mod command_io;
mod keeper_link;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use sympozium_api::Guarantee;

use crate::beneath::{self, Resolve};
use crate::cancel::Cancel;
use crate::cgroup::{Cgroup, CgroupError};
use crate::config::Config;
use crate::environment::EnvironmentError;
use crate::guarantee::Layer;
use crate::layout::IDMAP_STEP;
use crate::lookup::{self, LookupError, Program, ProgramKind, Runner, SkillName};
use crate::outcome::{Outcome, Stream, Termination, Usage};
use crate::report::{GuaranteeState, IsolationReport};
use crate::request::{DRAIN_LIMIT, Invocation, Request, RequestError};
use crate::stage::wire::{self, CommandEnd, Job, WorkerReply};
use command_io::CommandIo;
use keeper_link::{IdmapSupport, KeeperLink};

/// Limit for idle workers; further ones are released.
const MAX_IDLE_WORKERS: usize = 16;
/// Interval between checks for cancellation while a caller waits for a free worker.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Limit for the entries of a skills directory that are read for a list of skills.
pub const MAX_SKILLS: usize = 4096;

/// Runs commands in one sandbox. Can be shared between threads; each call of [`run`](Self::run) blocks its own.
///
/// Dropping it ends all processes that it started and waits for that.
#[derive(Debug)]
pub struct Executor {
    config: Config,
    report: Arc<IsolationReport>,
    runner: Runner,
    root: OwnedFd,
    null: OwnedFd,
    keeper_pidfd: OwnedFd,
    pool: Mutex<Pool>,
    freed: Condvar,
    // Fields drop in this order: first every worker's socket and the keeper, then the cgroup they were in.
    keeper: Mutex<KeeperLink>,
    cgroup: Option<Cgroup>,
}

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<OwnedFd>,
    /// Number of workers, idle or not.
    workers: usize,
}

/// Why an executor did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The helper stage could not be started or did not communicate.
    #[error("cannot start the helper stage")]
    Stage(#[source] io::Error),
    /// The helper stage ended without a message: most likely its binary does not call
    /// [`stage::enter_if_asked`](crate::stage::enter_if_asked).
    #[error("the helper stage ended before it was ready")]
    StageEnded,
    /// A step of building the sandbox failed.
    #[error("cannot {step}: {message}")]
    Step {
        /// The step.
        step: String,
        /// The system's error number, if it was a system call that failed.
        errno: Option<i32>,
        /// The error message.
        message: String,
    },
    /// A cgroup could not be used as required.
    #[error("cannot limit the sandbox")]
    Cgroup(#[from] CgroupError),
    /// The sandbox works, but its isolation is below the floor.
    #[error("the isolation is below the floor: {}", describe(.0))]
    BelowFloor(Vec<(Guarantee, GuaranteeState)>),
}

impl StartError {
    /// Whether the cause is that this user may not create user namespaces on this machine.
    pub fn is_blocked_namespaces(&self) -> bool {
        const REFUSALS: [i32; 5] = [
            libc::EPERM,
            libc::EACCES,
            // The limit is reached, or zero.
            libc::ENOSPC,
            libc::EUSERS,
            // A kernel without them.
            libc::EINVAL,
        ];
        matches!(self, Self::Step { step, errno: Some(errno), .. }
            if (step == "make namespaces" || step == "map the UID") && REFUSALS.contains(errno))
    }

    /// What a person can do about it, if we know.
    pub fn hint(&self) -> Option<String> {
        match self {
            _ if self.is_blocked_namespaces() => Some(
                "user namespaces are blocked on this machine; `sympozium doctor` says by what and how to allow them".to_owned(),
            ),
            Self::Step { step, .. } if step.starts_with(IDMAP_STEP) => Some(
                "put the directory on a file system with idmapped mounts (ext4, xfs, btrfs, tmpfs from Linux 6.3), or give it to an unprivileged user".to_owned(),
            ),
            Self::BelowFloor(_) => Some(
                "`sympozium doctor` says which kernel feature is missing; a lower floor must be asked for explicitly".to_owned(),
            ),
            Self::StageEnded => Some(
                "call sympozium_exec::stage::enter_if_asked() first in main, or name a stage program".to_owned(),
            ),
            _ => None,
        }
    }
}

fn describe(below: &[(Guarantee, GuaranteeState)]) -> String {
    below.iter().map(|(guarantee, standing)| format!("{guarantee} is {standing}")).collect::<Vec<_>>().join("; ")
}

/// Why a command has no outcome. Unless it states otherwise, nothing was executed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request exceeds a limit.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A variable of the request is refused.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The program does not exist, or must not be run.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The working directory cannot be used.
    #[error("the working directory {} cannot be used", path.display())]
    WorkingDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The sandbox was killed from outside, or its init was killed for lack of memory. It runs nothing any more.
    #[error("the sandbox is gone")]
    SandboxGone,
    /// It was cancelled before it started.
    #[error("the command was cancelled before it started")]
    Cancelled,
    /// The kernel refused to start the program.
    #[error("the program could not be started")]
    NotStarted(#[source] io::Error),
    /// Arguments and environment together are too large.
    #[error("arguments and environment together exceed {} bytes", wire::MAX_JOB_BYTES)]
    TooLarge,
    /// A pipe or socket failed on our side. The command, if it had started, was ended.
    #[error("the executor lost contact with the command, which was ended")]
    ContactLost(#[source] io::Error),
    /// The command or another process killed its supervisor. It may have run; it does not any more.
    #[error("the command's supervisor died; whatever was left of the command was killed")]
    SupervisorDied,
    /// Contact was lost, and it could not be verified that all processes of the command have ended. Killing them is
    /// still being tried.
    #[error("the executor lost contact with the command, parts of which may still run")]
    NotEnded(#[source] io::Error),
    /// Processes could not be killed within the timeout. Their supervisor stays with them.
    #[error("{0} processes of the command cannot be killed")]
    Survivors(u32),
}

impl Executor {
    /// Builds the sandbox and compares it with the floor.
    ///
    /// Where commands share a pid namespace with this process (`container`, `gvisor`), the process becomes
    /// non-dumpable, so that they cannot read its memory, environment or descriptors.
    pub fn new(config: Config) -> Result<Self, StartError> {
        let mut config = config;
        let chosen = config.layout.identity;
        config.layout.identity = keeper_link::choose_identity(&config, IdmapSupport::from_config(&config));
        if !config.profile.is_host() {
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
                .map_err(|error| StartError::Stage(error.into()))?;
        }
        let started = match keeper_link::start(&config) {
            Err(StartError::Step { step, .. }) if chosen.is_none() && step.starts_with(IDMAP_STEP) => {
                config.layout.identity = None;
                config.layout.identity = keeper_link::choose_identity(&config, IdmapSupport::Missing);
                config.without.insert(Layer::IdmappedMounts);
                keeper_link::start(&config)?
            }
            other => other?,
        };
        let runner = keeper_link::runner(&config);
        let report = IsolationReport::new(config.profile, started.live);
        let below = report.unmet(&config.floor);
        if !below.is_empty() {
            return Err(StartError::BelowFloor(below));
        }
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| StartError::Stage(error.into()))?;
        let end_of_keeper = started.link.keeper_pidfd().map_err(StartError::Stage)?;
        Ok(Self {
            config,
            report: Arc::new(report),
            runner,
            root: started.root,
            null,
            keeper_pidfd: end_of_keeper,
            pool: Mutex::new(Pool {
                workers: usize::from(started.worker.is_some()),
                idle: started.worker.into_iter().collect(),
            }),
            freed: Condvar::new(),
            keeper: Mutex::new(started.link),
            cgroup: started.cgroup,
        })
    }

    /// What is live, for every command of this executor.
    pub fn report(&self) -> &Arc<IsolationReport> {
        &self.report
    }

    /// Runs one command and returns when all of its processes have ended.
    ///
    /// It checks the request, looks up program and directory in the view in which the command will run, starts it in a
    /// worker, and writes and reads its streams until it ends. The command runs at most once: an error after its start
    /// says so and is never retried here.
    pub fn run(&self, request: &Request, cancel: Option<&Cancel>) -> Result<Outcome, RunError> {
        self.run_with_output(request, cancel, &mut |_, _| {})
    }

    /// Like [`run`](Self::run), and passes the command's output to `watch` as it is written, also what is not captured.
    ///
    /// # Errors
    ///
    /// Like [`run`](Self::run).
    pub fn run_with_output(
        &self,
        request: &Request,
        cancel: Option<&Cancel>,
        watch: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<Outcome, RunError> {
        let argv = request.to_arguments()?;
        let envp = self.config.environment.for_request(&request.environment)?;
        let found =
            self.open_working_directory(request).and_then(|directory| Ok((self.find(request, &directory)?, directory)));
        // A sandbox that is gone has no programs either; return the real cause.
        let (program, directory) = found
            .map_err(|error| if keeper_link::has_ended(&self.keeper_pidfd) { RunError::SandboxGone } else { error })?;
        let job = Job {
            script: match &program.kind {
                ProgramKind::Elf => None,
                ProgramKind::Script { path } => Some(c_path(path)?),
            },
            argv,
            envp,
            timeout: request.timeout,
            grace: request.grace,
            drain: DRAIN_LIMIT,
            file_bytes: request.file_bytes,
            open_files: Some(request.open_files),
        }
        .encode();
        if job.len() > wire::MAX_JOB_BYTES {
            return Err(RunError::TooLarge);
        }
        let worker = self.take_worker(cancel)?;
        let oom_before = self.oom_kills();
        let started = Instant::now();
        let flow = CommandIo::start(&worker, &job, request, &self.null, &directory, &program.file);
        let (answer, stdout, stderr) = match flow.and_then(|flow| flow.run(cancel, watch)) {
            Ok(done) => done,
            Err(error) => return Err(self.abandon_worker(worker, error)),
        };
        let duration = started.elapsed();
        match answer {
            WorkerReply::Ended(ended) => {
                self.return_worker(worker);
                Ok(Outcome {
                    termination: Termination::from_status(ended.status),
                    stdout,
                    stderr,
                    timed_out: ended.timed_out,
                    cancelled: ended.cancelled,
                    oom_killed: self.oom_kills() > oom_before,
                    duration,
                    usage: to_usage(&ended),
                    isolation: Arc::clone(&self.report),
                })
            }
            WorkerReply::NotStarted(errno) => {
                self.return_worker(worker);
                Err(RunError::NotStarted(io::Error::from_raw_os_error(errno)))
            }
            WorkerReply::Survivors(count) => {
                self.discard_worker();
                Err(RunError::Survivors(count))
            }
            // Handled by `CommandIo`.
            WorkerReply::Lingering => Err(self.abandon_worker(worker, io::ErrorKind::InvalidData.into())),
        }
    }

    /// Kills the sandbox with all of its processes, from any thread: running commands end with [`RunError`]. In a
    /// `host-*` sandbox nothing survives this; otherwise the processes that the keeper started are ended when the
    /// executor is dropped.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = rustix::process::pidfd_send_signal(&self.keeper_pidfd, rustix::process::Signal::KILL);
    }

    /// The existing skills by name, and for each whether it may be run.
    ///
    /// Files whose names are not skill names are left out, and so is everything beyond [`MAX_SKILLS`] entries.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn skills(&self) -> io::Result<BTreeMap<SkillName, Result<(), LookupError>>> {
        let directory = beneath::open(
            self.root.as_fd(),
            &self.config.skills,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            Resolve::IN_ROOT,
        )?;
        let mut skills = BTreeMap::new();
        for entry in rustix::fs::Dir::new(directory)?.take(MAX_SKILLS) {
            let entry = entry?;
            let Some(name) = (entry.file_name().to_str().ok()).and_then(|n| SkillName::parse(n).ok()) else {
                continue;
            };
            let found = lookup::find_skill(self.root.as_fd(), &self.config.skills, &name, &self.runner);
            skills.insert(name, found.map(drop));
        }
        Ok(skills)
    }

    fn find(&self, request: &Request, directory: &OwnedFd) -> Result<Program, RunError> {
        let root = self.root.as_fd();
        let name = match &request.invocation {
            Invocation::Skill { name, .. } => {
                return Ok(lookup::find_skill(root, &self.config.skills, name, &self.runner)?);
            }
            Invocation::Shell(_) => {
                let mut last = None;
                for shell in &self.config.shells {
                    match lookup::find_at_path(root, shell, &self.runner) {
                        Ok(program) => return Ok(program),
                        Err(error) => last = Some(error),
                    }
                }
                return Err(last.map_or(RequestError::NoProgram.into(), RunError::Lookup));
            }
            Invocation::Argv(argv) => argv.first().ok_or(RequestError::NoProgram)?,
        };
        if name.as_bytes().contains(&b'/') {
            let path = Path::new(name);
            return Ok(if path.is_absolute() {
                lookup::find_at_path(root, path, &self.runner)?
            } else {
                lookup::find_in_directory(directory.as_fd(), path, &self.runner)?
            });
        }
        Ok(lookup::find(root, &self.config.search_path, name, &self.runner)?)
    }

    /// Opens the directory once; from here on it is used by descriptor, whatever happens to its path.
    fn open_working_directory(&self, request: &Request) -> Result<OwnedFd, RunError> {
        let default = &self.config.working_directory;
        let path = match &request.working_directory {
            Some(path) => default.join(path),
            None => default.clone(),
        };
        let open = || {
            let outside = || io::Error::from_raw_os_error(libc::EXDEV);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let open = |directory: &OwnedFd, path: &Path, resolve| {
                beneath::open(directory.as_fd(), path, flags, Mode::empty(), resolve)
            };
            let (root, rest) = self
                .config
                .working_roots
                .iter()
                .find_map(|root| Some((root, path.strip_prefix(root).ok()?)))
                .ok_or_else(outside)?;
            if root == Path::new("/") {
                return open(&self.root, &path, Resolve::IN_ROOT);
            }
            let root = open(&self.root, root, Resolve::IN_ROOT)?;
            if rest.as_os_str().is_empty() {
                return Ok(root);
            }
            open(&root, rest, Resolve::BENEATH)
        };
        open().map_err(|source| RunError::WorkingDirectory { path, source })
    }

    /// An idle worker, a new one, or the next one that becomes free.
    fn take_worker(&self, cancel: Option<&Cancel>) -> Result<OwnedFd, RunError> {
        let mut pool = lock(&self.pool);
        loop {
            if cancel.is_some_and(Cancel::is_cancelled) {
                return Err(RunError::Cancelled);
            }
            if let Some(worker) = pool.idle.pop() {
                return Ok(worker);
            }
            if pool.workers < self.config.max_concurrent.max(1) {
                pool.workers += 1;
                drop(pool);
                return lock(&self.keeper).new_worker().map_err(|error| {
                    self.discard_worker();
                    if keeper_link::has_ended(&self.keeper_pidfd) {
                        RunError::SandboxGone
                    } else {
                        RunError::ContactLost(error)
                    }
                });
            }
            pool = self.freed.wait_timeout(pool, CANCEL_CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn return_worker(&self, worker: OwnedFd) {
        let mut pool = lock(&self.pool);
        if pool.idle.len() < MAX_IDLE_WORKERS {
            pool.idle.push(worker);
        } else {
            pool.workers -= 1;
        }
        drop(pool);
        self.freed.notify_one();
    }

    fn discard_worker(&self) {
        lock(&self.pool).workers -= 1;
        self.freed.notify_one();
    }

    /// Handles a worker that cannot be relied on any more: closing its socket makes it end its command; the keeper then
    /// makes sure that nothing is left.
    fn abandon_worker(&self, worker: OwnedFd, error: io::Error) -> RunError {
        drop(worker);
        self.discard_worker();
        let swept = lock(&self.keeper).sweep();
        match (error.kind(), swept) {
            (io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset, Ok(())) => RunError::SupervisorDied,
            (_, Ok(())) => RunError::ContactLost(error),
            (_, Err(sweeping)) => RunError::NotEnded(sweeping),
        }
    }

    fn oom_kills(&self) -> u64 {
        self.cgroup.as_ref().map_or(0, Cgroup::oom_kills)
    }
}

fn to_usage(ended: &CommandEnd) -> Usage {
    Usage {
        user: ended.user,
        system: ended.system,
        max_resident_bytes: ended.max_resident_bytes,
        killed_descendants: ended.killed,
    }
}

fn c_path(path: &Path) -> Result<CString, RunError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| RunError::Request(RequestError::Nul { index: 0 }))
}

/// A panic in another thread leaves these values consistent: they are changed by single assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
