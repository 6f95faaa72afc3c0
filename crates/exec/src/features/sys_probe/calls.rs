//! System calls that query without side effects, made in this process.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

fn check_result(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The Landlock ABI. `ENOSYS`: not in this kernel; `EOPNOTSUPP`: disabled at boot; see landlock(7).
pub(in crate::features) fn query_landlock_abi() -> io::Result<i32> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_long = 1;
    let none: libc::c_long = 0;
    // SAFETY: with this flag the kernel wants a null pointer and a size of zero, and only answers.
    let abi = check_result(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, none, LANDLOCK_CREATE_RULESET_VERSION)
    })?;
    i32::try_from(abi).map_err(io::Error::other)
}

/// Whether the kernel supports a seccomp action, one of the `SECCOMP_RET_*`.
pub(in crate::features) fn check_seccomp_action(action: u32) -> io::Result<()> {
    let operation = libc::c_long::from(libc::SECCOMP_GET_ACTION_AVAIL);
    let flags: libc::c_long = 0;
    // SAFETY: the kernel reads one u32 behind the pointer and only answers.
    check_result(unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const action) })?;
    Ok(())
}

/// Whether `close_range` is available: called with a range in which no descriptor can be.
pub(in crate::features) fn check_close_range() -> io::Result<()> {
    let (nowhere, flags) = (libc::c_long::from(u32::MAX), libc::c_long::from(0));
    // SAFETY: no descriptor has this number, so nothing is closed.
    check_result(unsafe { libc::syscall(libc::SYS_close_range, nowhere, nowhere, flags) })?;
    Ok(())
}

/// Whether `clone3` is available: called without arguments it must fail because of them, not because of the call.
/// Container runtimes hide it behind `ENOSYS`.
pub(in crate::features) fn check_clone3() -> io::Result<()> {
    let none: libc::c_long = 0;
    // SAFETY: arguments of size zero are refused before they are read.
    match check_result(unsafe { libc::syscall(libc::SYS_clone3, none, none) }) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Maps the owners of files in the detached mount `tree` by a user namespace.
pub(in crate::features) fn map_owners(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    /// `struct mount_attr` of mount_setattr(2).
    #[repr(C)]
    struct MountAttributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let fd = u64::try_from(user_namespace.as_raw_fd()).map_err(io::Error::other)?;
    let attributes = MountAttributes { set: MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, user_namespace: fd };
    // SAFETY: the path is a constant, the structure has the given size, and both outlive the call.
    check_result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    })?;
    Ok(())
}

/// The kernel's log, as far as it fits. Not readable for most users on Linux, readable for all on gVisor.
pub(in crate::features) fn read_kernel_log() -> io::Result<String> {
    const SYSLOG_ACTION_READ_ALL: libc::c_int = 3;
    let mut text = vec![0_u8; 16 * 1024];
    let room = libc::c_int::try_from(text.len()).map_err(io::Error::other)?;
    // SAFETY: the buffer has the given length, and only bytes are written to it.
    let length = unsafe { libc::klogctl(SYSLOG_ACTION_READ_ALL, text.as_mut_ptr().cast(), room) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    text.truncate(length);
    Ok(String::from_utf8_lossy(&text).into_owned())
}
