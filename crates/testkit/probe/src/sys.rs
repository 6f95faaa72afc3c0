//! The raw system calls of the probe, and the only module with `unsafe` in it.
//!
//! A hostile program does not go through a polite library, so this is close to the metal: `call` takes any number.
#![expect(unsafe_code, reason = "the probe makes the calls that a sandbox must refuse; no safe library offers them")]

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{FromRawFd as _, OwnedFd};

use libc::{c_int, c_long};

/// An error number of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

const NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"),
    (libc::ENOEXEC, "ENOEXEC"),
    (libc::EBADF, "EBADF"),
    (libc::ECHILD, "ECHILD"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::EXDEV, "EXDEV"),
    (libc::ENODEV, "ENODEV"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EISDIR, "EISDIR"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENFILE, "ENFILE"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ETXTBSY, "ETXTBSY"),
    (libc::EFBIG, "EFBIG"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::EROFS, "EROFS"),
    (libc::EPIPE, "EPIPE"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ELOOP, "ELOOP"),
    (libc::ENOKEY, "ENOKEY"),
    (libc::EDQUOT, "EDQUOT"),
    (libc::ESTALE, "ESTALE"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
    (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
    (libc::ESOCKTNOSUPPORT, "ESOCKTNOSUPPORT"),
    (libc::EADDRINUSE, "EADDRINUSE"),
    (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (libc::ENETUNREACH, "ENETUNREACH"),
    (libc::EHOSTUNREACH, "EHOSTUNREACH"),
    (libc::ENETDOWN, "ENETDOWN"),
    (libc::ECONNREFUSED, "ECONNREFUSED"),
    (libc::ECONNRESET, "ECONNRESET"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
];

impl Errno {
    /// The error of the last call through libc or std.
    pub fn last() -> Self {
        std::io::Error::last_os_error().into()
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        // Errors that std makes up have no number; EINVAL is what they are about (a NUL in a path, a bad address).
        Self(error.raw_os_error().unwrap_or(libc::EINVAL))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// One argument of a system call. Memory is borrowed for the length of the call, so the kernel never writes to
/// anything that is gone.
pub enum Arg<'a> {
    /// A number, a descriptor or a flag.
    Int(i64),
    /// A C string.
    Text(&'a CStr),
    /// Bytes that the kernel reads.
    In(&'a [u8]),
    /// Bytes that the kernel may write.
    Out(&'a mut [u8]),
    /// A null pointer.
    Null,
}

/// Makes any system call.
pub fn call<const N: usize>(number: c_long, arguments: [Arg<'_>; N]) -> Result<i64, Errno> {
    let mut words = [0 as c_long; 6];
    for (word, argument) in words.iter_mut().zip(arguments) {
        *word = match argument {
            Arg::Int(value) => value,
            Arg::Text(text) => text.as_ptr() as c_long,
            Arg::In(bytes) => bytes.as_ptr() as c_long,
            Arg::Out(bytes) => bytes.as_mut_ptr() as c_long,
            Arg::Null => 0,
        };
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: pointers come from borrows that outlive the call and are as long as the call's structure (each caller
    // sizes them by the man page); no caller asks for a call that changes this process's address space.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(Errno::last()) } else { Ok(result) }
}

/// Copies `text` to an address where nothing is yet, for the rest of the process's life.
pub fn place_at(address: usize, text: &CStr) -> Result<&'static CStr, Errno> {
    let bytes = text.to_bytes_with_nul();
    // SAFETY: MAP_FIXED_NOREPLACE maps nothing over what is there; the result is compared, because an old kernel takes
    // the address for a hint. The mapping is as long as the text and is never removed.
    unsafe {
        let wanted = std::ptr::without_provenance_mut(address);
        let got = libc::mmap(
            wanted,
            bytes.len(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        );
        if got == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        if got != wanted {
            return Err(Errno(libc::EEXIST));
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), got.cast(), bytes.len());
        Ok(CStr::from_ptr(got.cast()))
    }
}

/// Takes over a descriptor that `call` has just given us.
pub fn owned(fd: i64) -> OwnedFd {
    // SAFETY: every caller passes a number that a call has just returned and that no other code knows.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// `fork`: `Some(pid)` in the parent, `None` in the child.
pub fn fork() -> Result<Option<i32>, Errno> {
    fork_with(0)
}

/// `fork` with more `clone` flags (new namespaces, `CLONE_PARENT`).
///
/// The kernel's own call, not the C library's, so that a filter sees exactly `clone`; memory is copied, so both sides
/// go on as after `fork`. Sound because the probe has one thread.
pub fn fork_with(flags: i32) -> Result<Option<i32>, Errno> {
    let flags = i64::from(flags) | i64::from(libc::SIGCHLD);
    // x86_64, aarch64 and riscv64 agree on the first two arguments, and the rest is null.
    match call(libc::SYS_clone, [Arg::Int(flags), Arg::Null, Arg::Null, Arg::Null, Arg::Null])? {
        0 => Ok(None),
        pid => Ok(Some(pid as i32)),
    }
}

/// Ends the process without running anything at exit: what a forked child must do.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: takes a number, does not return.
    unsafe { libc::_exit(code) }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
}

/// Waits for `pid`; children stopped or traced are waited for until they end.
pub fn wait_for(pid: i32) -> Result<Ending, Errno> {
    let mut status: c_int = 0;
    loop {
        // SAFETY: `status` is a live c_int.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if waited == -1 {
            let error = Errno::last();
            if error.0 != libc::EINTR {
                return Err(error);
            }
        } else if libc::WIFEXITED(status) {
            return Ok(Ending::Exited(libc::WEXITSTATUS(status)));
        } else if libc::WIFSIGNALED(status) {
            return Ok(Ending::Killed(libc::WTERMSIG(status)));
        }
    }
}

/// Sends `signal`, or with 0 only asks whether it could be sent.
pub fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    call(libc::SYS_kill, [Arg::Int(pid.into()), Arg::Int(signal.into())]).map(drop)
}

/// Makes the kernel ignore `signal` for this process and those it forks.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is a valid disposition; no handler of ours runs.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Gives `signal` its default meaning.
pub fn default(signal: i32) {
    // SAFETY: as in `ignore`.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// The names of what the process does with each signal, for those that are not at their default.
pub fn dispositions() -> Vec<(i32, &'static str)> {
    let mut found = Vec::new();
    for signal in 1..=64 {
        // SAFETY: an all-zero sigaction is valid, and asking changes nothing.
        let (result, action) = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let result = libc::sigaction(signal, std::ptr::null(), &raw mut action);
            (result, action.sa_sigaction)
        };
        if result == 0 && action != libc::SIG_DFL {
            let name = if action == libc::SIG_IGN { "ignored" } else { "handled" };
            found.push((signal, name));
        }
    }
    found
}

/// Blocks every signal that can be blocked.
pub fn block_all_signals() {
    let mask = u64::MAX.to_ne_bytes();
    let _ = call(libc::SYS_rt_sigprocmask, [Arg::Int(libc::SIG_BLOCK.into()), Arg::In(&mask), Arg::Null, Arg::Int(8)]);
}

/// Ends this process by SIGALRM after `seconds`; 0 cancels.
pub fn alarm(seconds: u32) {
    // SAFETY: takes a number.
    unsafe { libc::alarm(seconds) };
}

/// Replaces the program. Returns only on failure.
pub fn execute(path: &CStr, arguments: &[&CStr]) -> Errno {
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let environment = [std::ptr::null()];
    // SAFETY: both arrays end with a null pointer and their strings are borrowed.
    unsafe { libc::execve(path.as_ptr(), pointers.as_ptr(), environment.as_ptr()) };
    Errno::last()
}

/// Replaces the program by the file open at `fd`. Returns only on failure.
pub fn execute_fd<T: AsRef<CStr>>(fd: i32, arguments: &[T], environment: &[T]) -> Errno {
    let pointers = |texts: &[T]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ref().as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: as in `execute`; the path is empty because AT_EMPTY_PATH names the descriptor itself.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd,
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Errno::last()
}

/// Sends descriptor `fd` over the Unix socket `socket`.
pub fn send_descriptor(socket: i32, fd: i32) -> Result<(), Errno> {
    let mut byte = *b"f";
    let mut control = [0_u64; 4];
    // SAFETY: every pointer of the header names a local that lives until sendmsg returns, and `control` is larger than
    // CMSG_SPACE of one int and aligned for cmsghdr.
    let sent = unsafe {
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(fd);
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent == 1 { Ok(()) } else { Err(Errno::last()) }
}

/// Receives one byte and whatever descriptors come with it, and keeps them open.
pub fn receive_descriptor(socket: i32) -> Result<(), Errno> {
    let mut byte = [0_u8; 1];
    let mut control = [0_u64; 4];
    // SAFETY: as in `send_descriptor`.
    let received = unsafe {
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        libc::recvmsg(socket, &raw mut message, 0)
    };
    if received == 1 { Ok(()) } else { Err(Errno::last()) }
}

/// The process's own file, by the path the kernel was given (`AT_EXECFN`): there even where /proc is not.
pub fn own_path() -> Option<&'static CStr> {
    // SAFETY: AT_EXECFN is a string on the initial stack, which lives as long as the process.
    unsafe {
        let address = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        if address.is_null() { None } else { Some(CStr::from_ptr(address)) }
    }
}

/// A system call through the 32-bit entry of an x86_64 kernel, where numbers mean other things.
#[cfg(target_arch = "x86_64")]
pub fn call_32bit(number: u32, argument: u32) -> Result<i64, Errno> {
    let result: i64;
    // SAFETY: `int 0x80` takes the number in eax and the first argument in ebx; the calls made through it take numbers
    // only. rbx belongs to LLVM, so it is swapped in and out by hand; the kernel clears r8 to r11 on this entry.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {argument:r}",
            "int 0x80",
            "xchg rbx, {argument:r}",
            argument = inout(reg) u64::from(argument) => _,
            inout("rax") u64::from(number) => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            in("rcx") 0_u64, in("rdx") 0_u64,
        );
    }
    // The 32-bit side answers in eax; its sign is in bit 31.
    let result = i64::from(result as i32);
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result) }
}
