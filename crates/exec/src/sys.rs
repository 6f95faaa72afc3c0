//! The only file with `unsafe`: system calls that have no safe wrapper, each returning `io::Result`.
#![expect(
    unsafe_code,
    reason = "process creation, credentials, the environment, and four system calls that rustix does not wrap"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rustix::process::Pid;
use zeroize::{Zeroize as _, Zeroizing};

/// The file that a new process executes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Image<'a> {
    /// The file of this descriptor: it cannot be replaced between check and use.
    File(BorrowedFd<'a>),
    /// The file at this path, for scripts: the kernel passes the *path* to the interpreter.
    Path(&'a CStr),
}

/// The initial state of a new process. All descriptors must be above 2.
pub(crate) struct SpawnSpec<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) argv: &'a [CString],
    pub(crate) envp: &'a [CString],
    /// These become fds 0, 1, 2 (and 3, … if there are more); all others are closed at exec.
    pub(crate) descriptors: &'a [BorrowedFd<'a>],
    pub(crate) working_directory: Option<BorrowedFd<'a>>,
    pub(crate) rlimits: &'a [(c_int, u64)],
    /// A Landlock ruleset that the process enters right before exec.
    pub(crate) landlock: Option<BorrowedFd<'a>>,
    pub(crate) dies_with_parent: bool,
    pub(crate) signals: InitialSignals,
}

/// The signal mask of a new process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitialSignals {
    /// The caller's. Only for a caller whose signal handlers do nothing: the child shares its memory until exec.
    Inherited,
    /// All blocked, for a caller that may have handlers. The new program unblocks them itself.
    Blocked,
}

/// A running child: its pid, and a descriptor that cannot be reused for another process.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

const CHILD_STACK_BYTES: usize = 64 * 1024;

/// The stack of a child between clone and exec; kept by callers that spawn often.
pub(crate) struct ChildStack(Vec<MaybeUninit<u128>>);

impl ChildStack {
    pub(crate) fn new() -> Self {
        Self(vec![MaybeUninit::uninit(); CHILD_STACK_BYTES / size_of::<u128>()])
    }

    fn top(&mut self) -> *mut c_void {
        self.0.as_mut_ptr_range().end.cast()
    }
}

/// The child's input after clone. It is on the parent's stack, which does not change until exec.
struct ChildArgs<'a> {
    birth: &'a SpawnSpec<'a>,
    argv: *const *const c_char,
    envp: *const *const c_char,
    failed_with: c_int,
}

/// Starts a process by `clone(CLONE_VM | CLONE_VFORK)`, like `posix_spawn`: its cost does not depend on the caller's
/// memory.
///
/// Returns when the new image runs. If any step before that fails, no process is left and the error is that of the
/// step.
pub(crate) fn spawn(birth: &SpawnSpec<'_>, stack: &mut ChildStack) -> io::Result<Child> {
    let pointers =
        |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>();
    let argv = pointers(birth.argv);
    let envp = pointers(birth.envp);
    let mut handover = ChildArgs { birth, argv: argv.as_ptr(), envp: envp.as_ptr(), failed_with: 0 };
    let mut pidfd: c_int = -1;
    // No signal handler of ours may run in the child while it shares our memory.
    let mask = match birth.signals {
        InitialSignals::Inherited => None,
        InitialSignals::Blocked => Some(SignalMask::block_all()?),
    };
    // SAFETY: the stack is large enough, aligned and ours alone; CLONE_VFORK suspends this thread until the child has
    // executed or ended, so every pointer in `handover` outlives its use; `child_main` calls only async-signal-safe
    // functions.
    let pid = unsafe {
        libc::clone(
            child_main,
            stack.top(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD,
            (&raw mut handover).cast(),
            &raw mut pidfd,
        )
    };
    let clone_error = io::Error::last_os_error();
    drop(mask);
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        return Err(clone_error);
    };
    // SAFETY: a plain read of a value the child may have written before it ended; volatile because the
    // compiler does not know that the child shares this memory.
    let failed_with = unsafe { ptr::read_volatile(&raw const handover.failed_with) };
    if failed_with != 0 {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        return Err(io::Error::from_raw_os_error(failed_with));
    }
    to_child(pid, pidfd)
}

/// A child with the descriptor that `clone` stored, or with one opened now: kernels without `CLONE_PIDFD` (Linux before
/// 5.2, some user-space kernels) ignore it and store nothing. Without any descriptor the child is killed: it could not
/// be waited for.
fn to_child(pid: Pid, stored: RawFd) -> io::Result<Child> {
    if stored >= 0 {
        // SAFETY: the kernel stored a fresh descriptor that has no other owner.
        let pidfd = unsafe { OwnedFd::from_raw_fd(stored) };
        return Ok(Child { pid, pidfd });
    }
    // It is our child and not reaped, so the number refers to it.
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Child { pid, pidfd }),
        Err(error) => {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            Err(error.into())
        }
    }
}

/// The child's side of [`spawn`], from clone to exec: one fixed sequence of system calls.
extern "C" fn child_main(handover: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to a live `ChildArgs` and waits for us.
    let handover = unsafe { &mut *handover.cast::<ChildArgs<'_>>() };
    handover.failed_with = exec_child(handover);
    // SAFETY: ends this process without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// Returns only on failure, with the error number.
fn exec_child(handover: &ChildArgs<'_>) -> c_int {
    let birth = handover.birth;
    macro_rules! check {
        ($call:expr) => {
            // SAFETY: plain system calls on values that are live for the duration of the call.
            if unsafe { $call } < 0 {
                return errno();
            }
        };
    }
    // A new session: no controlling terminal, no signals for our process group.
    check!(libc::setsid());
    if birth.dies_with_parent {
        check!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0));
    }
    for (target, source) in (0..).zip(birth.descriptors) {
        check!(libc::dup2(source.as_raw_fd(), target));
    }
    if let Some(directory) = birth.working_directory {
        check!(libc::fchdir(directory.as_raw_fd()));
    }
    for &(resource, value) in birth.rlimits {
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        check!(libc::setrlimit(resource as _, &raw const limit));
    }
    // Last before exec, because it removes what the steps above use.
    if let Some(ruleset) = birth.landlock {
        check!(libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0));
    }
    // All of our descriptors are close-on-exec already; this covers those of other libraries too. On a kernel without
    // the flag (before 5.11) only the first sentence applies.
    let first_private = birth.descriptors.len();
    // SAFETY: marks descriptors of this process only.
    unsafe {
        libc::syscall(libc::SYS_close_range, first_private, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    match birth.image {
        Image::File(file) => check!(libc::syscall(
            libc::SYS_execveat,
            file.as_raw_fd(),
            c"".as_ptr(),
            handover.argv,
            handover.envp,
            libc::AT_EMPTY_PATH
        )),
        Image::Path(path) => check!(libc::execve(path.as_ptr(), handover.argv, handover.envp)),
    }
    errno()
}

fn errno() -> c_int {
    // SAFETY: glibc's errno of this thread; always a valid pointer.
    unsafe { *libc::__errno_location() }
}

/// Blocks every signal in this thread until dropped.
struct SignalMask(libc::sigset_t);

impl SignalMask {
    fn block_all() -> io::Result<Self> {
        let mut all = MaybeUninit::uninit();
        let mut previous = MaybeUninit::uninit();
        // SAFETY: both sets are initialised by the calls before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            match libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), previous.as_mut_ptr()) {
                0 => Ok(Self(previous.assume_init())),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: restores the mask saved by `block_all`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut());
        }
    }
}

/// Resets every signal to its default disposition and unblocks all: what a new program expects, whatever the process
/// that started this one ignored or blocked. (Rust's own runtime ignores SIGPIPE.)
pub(crate) fn reset_signals() {
    const LAST_SIGNAL: c_int = 64;
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: sets a disposition; KILL and STOP refuse, which is fine.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
    let mut none = MaybeUninit::uninit();
    // SAFETY: the set is initialised before use.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// From now on a child's end interrupts `poll`. Programs that are started later do not inherit that.
pub(crate) fn interrupt_on_child_exit() -> io::Result<()> {
    extern "C" fn nothing(_signal: c_int) {}
    // SAFETY: zero is a valid sigaction, and the handler does nothing, in whatever state it finds the process.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_NOCLDSTOP | libc::SA_RESTART;
        libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut())
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The side of a fork.
pub(crate) enum Fork {
    Parent(Child),
    Child,
}

/// The parent of a forked process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForkParent {
    Caller,
    /// The caller's own parent (`CLONE_PARENT`): the caller can end and leave the child to it.
    CallersParent,
}

/// Forks this process, which must have one thread.
pub(crate) fn fork(parent: ForkParent) -> io::Result<Fork> {
    let flags = libc::CLONE_PIDFD
        | match parent {
            ForkParent::Caller => libc::SIGCHLD,
            // The kernel uses the exit signal of the caller itself.
            ForkParent::CallersParent => libc::CLONE_PARENT,
        };
    let mut pidfd: c_int = -1;
    // SAFETY: a fork without CLONE_VM; the child gets a copy of everything and, having been the only
    // thread, finds no lock held by another one. The raw call does not refresh glibc's cached thread id,
    // which nothing in the stage uses.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            flags as libc::c_ulong,
            ptr::null_mut::<c_void>(),
            &raw mut pidfd,
            ptr::null_mut::<c_void>(),
            0usize,
        )
    };
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        None if pid == 0 => Ok(Fork::Child),
        Some(pid) if pid.as_raw_pid() > 0 => to_child(pid, pidfd).map(Fork::Parent),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A child that ended, with the resources that it and the children it waited for used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReapedChild {
    pub(crate) pid: Pid,
    pub(crate) status: i32,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) max_resident_bytes: u64,
}

/// The result of a reap.
pub(crate) enum ReapResult {
    One(ReapedChild),
    /// There are children, and none has ended.
    NoneYet,
    /// There is no child.
    Childless,
}

/// Reaps one ended child of any kind, without waiting.
pub(crate) fn reap() -> io::Result<ReapResult> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both out-pointers are valid; __WALL also finds children made with another exit signal.
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG | libc::__WALL, usage.as_mut_ptr()) };
    if pid < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ECHILD) => Ok(ReapResult::Childless),
            _ => Err(error),
        };
    }
    let Some(pid) = Pid::from_raw(pid) else {
        return Ok(ReapResult::NoneYet);
    };
    // SAFETY: zeroed is a valid rusage, and the kernel filled it.
    let usage = unsafe { usage.assume_init() };
    Ok(ReapResult::One(ReapedChild {
        pid,
        status,
        user: to_duration(usage.ru_utime),
        system: to_duration(usage.ru_stime),
        // The kernel counts in KiB.
        max_resident_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    }))
}

fn to_duration(time: libc::timeval) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_usec).unwrap_or(0) * 1000)
}

/// Changes this process to `uid` and `gid`, with no supplementary group. It cannot be undone.
pub(crate) fn set_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: raw calls change this (single) thread's credentials; no memory is involved.
    unsafe {
        if libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) < 0
            || libc::syscall(libc::SYS_setresgid, gid, gid, gid) < 0
            || libc::syscall(libc::SYS_setresuid, uid, uid, uid) < 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Enters new namespaces. The caller must have one thread.
pub(crate) fn unshare(flags: rustix::thread::UnshareFlags) -> io::Result<()> {
    // SAFETY: no other thread exists whose view of fds or the file system could be torn.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Changes a mount, or with `recursive` a whole mount tree, by descriptor (`mount_setattr(2)`).
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    recursive: bool,
    set: u64,
    user_namespace: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set | user_namespace.map_or(0, |_| libc::MOUNT_ATTR_IDMAP),
        attr_clr: 0,
        propagation: 0,
        userns_fd: user_namespace.map_or(0, |fd| u64::try_from(fd.as_raw_fd()).unwrap_or(0)),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the struct and the empty path are valid for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn bring_loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as c_char;
    request.ifr_name[1] = b'o' as c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: SIOCSIFFLAGS reads the name and flags of the struct.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the caller (a fresh fork) owns no descriptor object in that range any more.
    if unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes ownership of the descriptor `fd` that the process was started with.
pub(crate) fn take_inherited_fd(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: sets a flag of the descriptor, if it is open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by the stage's contract nothing else in this fresh process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Moves `fd` to the number `target`, closing what was there.
pub(crate) fn move_fd(fd: OwnedFd, target: RawFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() == target {
        return Ok(fd);
    }
    // SAFETY: dup3 replaces `target`, which the caller gives up by calling this.
    if unsafe { libc::dup3(fd.as_raw_fd(), target, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `target` is now a fresh duplicate, owned here.
    Ok(unsafe { OwnedFd::from_raw_fd(target) })
}

/// Restricts this thread to a Landlock ruleset.
pub(crate) fn landlock_restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The newest Landlock ABI that the kernel supports.
pub(crate) fn landlock_abi() -> io::Result<i32> {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the kernel reads no attributes and returns a number, not a descriptor.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<c_void>(), 0usize, CREATE_RULESET_VERSION)
    };
    i32::try_from(abi).ok().filter(|&abi| abi > 0).ok_or_else(io::Error::last_os_error)
}

/// Signals every process that this one may signal, except itself (and pid 1). Only for a process that has proven to be
/// in a Landlock signal scope.
pub(crate) fn signal_all_in_reach(signal: rustix::process::Signal) {
    // SAFETY: no memory is involved. Finding no process is the only error, and fine.
    unsafe {
        libc::kill(-1, signal.as_raw());
    }
}

unsafe extern "C" {
    /// The environment of the process, including changes by `setenv` (environ(7)).
    static mut environ: *mut *mut c_char;
}

/// Takes a variable out of the environment: returns a copy of the first value, overwrites every value under that name
/// in place, and removes the name. `keep` decides by its length whether a value is copied at all.
///
/// The caller must have one thread, and must not have changed a variable of this name: `setenv` leaves old values
/// behind.
pub(crate) fn take_variable(name: &CStr, keep: impl Fn(usize) -> bool) -> Option<Result<Zeroizing<Vec<u8>>, usize>> {
    let mut taken = None;
    // SAFETY: environ(7): a list of pointers to strings `NAME=VALUE`, both ended by null. No other code reads or
    // changes it, because there is one thread. The strings are in memory that the process may write: on its stack,
    // where the kernel put them, or on the heap of `setenv`; only bytes of the value are written, none behind its end.
    // The slice of a value is gone before anything else reads the string.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            let entry = CStr::from_ptr(*next).to_bytes();
            let after_name =
                (entry.strip_prefix(name.to_bytes())).filter(|rest| rest.first() == Some(&b'=')).map(<[u8]>::len);
            if let Some(after_name) = after_name {
                let length = after_name - 1;
                let value = (*next).add(entry.len() - length).cast::<u8>();
                let value = std::slice::from_raw_parts_mut(value, length);
                taken
                    .get_or_insert_with(|| if keep(length) { Ok(Zeroizing::new(value.to_vec())) } else { Err(length) });
                value.zeroize();
            }
            next = next.add(1);
        }
        libc::unsetenv(name.as_ptr());
    }
    taken
}

/// Ends this process at once: without destructors, and without flushing buffers of a parent twice.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_stores_no_descriptor_is_got_by_with() {
        let own = rustix::process::getpid();
        let child = to_child(own, -1).unwrap();
        assert!(child.pidfd.as_raw_fd() >= 0);
        assert_eq!(child.pid, own);
    }
}
