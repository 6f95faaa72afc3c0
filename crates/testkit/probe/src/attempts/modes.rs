//! Leaving a set-user-id file behind: each way to give a file that mode is a call of its own, and a filter that
//! forgets one is worth nothing.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::files::scratch_name;
use crate::attempt::{Attempt, Input, Verdict, with_default};
use crate::sys::{self, Arg, Errno, call};

const MODE: i64 = 0o4755;
/// Not in every libc crate: since Linux 6.6, the same number on every architecture.
const SYS_FCHMODAT2: i64 = 452;
const HERE: Arg<'static> = Arg::Int(libc::AT_FDCWD as i64);

const fn row(name: &'static str, what: &'static str, run: fn(&Input<'_>) -> Verdict) -> Attempt {
    with_default(name, "[DIRECTORY]", "/tmp", what, run)
}

pub const ATTEMPTS: &[Attempt] = &[
    #[cfg(target_arch = "x86_64")]
    row("setuid-by-chmod", "leave a setuid file: chmod", |input| {
        on_file(input, |path| call(libc::SYS_chmod, [Arg::Text(path), Arg::Int(MODE)]))
    }),
    row("setuid-by-fchmod", "leave a setuid file: fchmod", |input| {
        on_file(input, |path| {
            let fd = open(path, libc::O_RDONLY, 0)?;
            let result = call(libc::SYS_fchmod, [Arg::Int(fd), Arg::Int(MODE)]);
            drop(sys::owned(fd));
            result
        })
    }),
    row("setuid-by-fchmodat", "leave a setuid file: fchmodat", |input| {
        on_file(input, |path| call(libc::SYS_fchmodat, [HERE, Arg::Text(path), Arg::Int(MODE)]))
    }),
    row("setuid-by-fchmodat2", "leave a setuid file: fchmodat2", |input| {
        on_file(input, |path| call(SYS_FCHMODAT2, [HERE, Arg::Text(path), Arg::Int(MODE), Arg::Int(0)]))
    }),
    #[cfg(target_arch = "x86_64")]
    row("setuid-by-open", "leave a setuid file: open", |input| {
        on_nothing(input, |path| {
            let flags = Arg::Int((libc::O_CREAT | libc::O_WRONLY).into());
            call(libc::SYS_open, [Arg::Text(path), flags, Arg::Int(MODE)])
        })
    }),
    #[cfg(target_arch = "x86_64")]
    row("setuid-by-creat", "leave a setuid file: creat", |input| {
        on_nothing(input, |path| call(libc::SYS_creat, [Arg::Text(path), Arg::Int(MODE)]))
    }),
    row("setuid-by-openat", "leave a setuid file: openat", |input| {
        on_nothing(input, |path| open(path, libc::O_CREAT | libc::O_WRONLY, MODE))
    }),
    row("setuid-by-openat2", "leave a setuid file: openat2", |input| {
        on_nothing(input, |path| {
            let mut how = [0_u8; 24];
            how[..8].copy_from_slice(&((libc::O_CREAT | libc::O_WRONLY) as u64).to_ne_bytes());
            how[8..16].copy_from_slice(&(MODE as u64).to_ne_bytes());
            call(libc::SYS_openat2, [HERE, Arg::Text(path), Arg::In(&how), Arg::Int(24)])
        })
    }),
    row("setuid-by-tmpfile", "leave a setuid file: O_TMPFILE and a link", |input| {
        on_nothing(input, |path| {
            let directory = Path::new(input.argument).to_string_lossy().into_owned();
            let directory = std::ffi::CString::new(directory).map_err(|_| Errno(libc::EINVAL))?;
            let fd = open(&directory, libc::O_TMPFILE | libc::O_WRONLY, MODE)?;
            let magic = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| Errno(libc::EINVAL))?;
            let follow = Arg::Int(libc::AT_SYMLINK_FOLLOW.into());
            let result = call(libc::SYS_linkat, [HERE, Arg::Text(&magic), HERE, Arg::Text(path), follow]);
            drop(sys::owned(fd));
            result
        })
    }),
    #[cfg(target_arch = "x86_64")]
    row("setuid-by-mknod", "leave a setuid file: mknod", |input| {
        on_nothing(input, |path| {
            call(libc::SYS_mknod, [Arg::Text(path), Arg::Int(MODE | i64::from(libc::S_IFREG)), Arg::Int(0)])
        })
    }),
    row("setuid-by-mknodat", "leave a setuid file: mknodat", |input| {
        on_nothing(input, |path| {
            let mode = Arg::Int(MODE | i64::from(libc::S_IFREG));
            call(libc::SYS_mknodat, [HERE, Arg::Text(path), mode, Arg::Int(0)])
        })
    }),
];

fn open(path: &CStr, flags: i32, mode: i64) -> Result<i64, Errno> {
    call(libc::SYS_openat, [HERE, Arg::Text(path), Arg::Int(flags.into()), Arg::Int(mode)])
}

/// Makes a plain file, has `change` give it the mode, looks, and removes it.
fn on_file(input: &Input<'_>, change: impl FnOnce(&CStr) -> Result<i64, Errno>) -> Verdict {
    on_nothing(input, |path| {
        let fd = open(path, libc::O_CREAT | libc::O_WRONLY, 0o600)?;
        drop(sys::owned(fd));
        change(path)
    })
}

/// Has `make` make a file with the mode, looks, and removes it.
fn on_nothing(input: &Input<'_>, make: impl FnOnce(&CStr) -> Result<i64, Errno>) -> Verdict {
    let path = scratch_name(Path::new(input.argument));
    let Ok(text) = std::ffi::CString::new(path.to_string_lossy().as_bytes()) else {
        return Verdict::Refused("not a path".into());
    };
    let _ = call(libc::SYS_umask, [Arg::Int(0)]);
    let result = make(&text);
    // The call's word is not enough: it may succeed and quietly drop the bit.
    let mode = fs::symlink_metadata(&path).map(|metadata| metadata.permissions().mode() & 0o7777);
    let _ = fs::remove_file(&path);
    match (result, mode) {
        (Ok(_), Ok(mode)) => Verdict::from_condition(mode & 0o4000 != 0, format!("mode {mode:04o}")),
        (Ok(_), Err(error)) => Verdict::Refused(Errno::from(error).to_string()),
        (Err(error), _) => Verdict::Refused(error.to_string()),
    }
}
