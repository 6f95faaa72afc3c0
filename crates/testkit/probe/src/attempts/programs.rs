//! Programs: running what should not run, and overwriting what does.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use super::files::{scratch_name, text};
use crate::attempt::{Attempt, Verdict, pipe, plain, with, with_default};
use crate::sys::{self, Arg, Ending, Errno};

pub const ATTEMPTS: &[Attempt] = &[
    with("execute-file", "PATH", "run a program", |input| execute(input.argument)),
    with_default("run-own-file", "[DIRECTORY]", "/tmp", "write a program and run it", |input| {
        run_copy(Path::new(input.argument))
    }),
    plain("overwrite-own-program", "overwrite the program file that is running", |_| overwrite(&own_program())),
    with_default("overwrite-executor", "[PID]", "", "overwrite the executor's program file", |input| {
        match input.target() {
            Ok(pid) => overwrite(&format!("/proc/{pid}/exe")),
            Err(verdict) => verdict,
        }
    }),
];

fn execute(path: &str) -> Verdict {
    let program = text(Path::new(path));
    ran(run(|| {
        silence();
        sys::execute(&program, &[&program])
    }))
}

/// Runs `execute` in a child and waits for the program, or gives the error that kept it from starting.
///
/// The error comes by a pipe that a successful start closes: an exit code could be the program's own.
pub fn run(execute: impl FnOnce() -> Errno) -> Result<Ending, Errno> {
    let (read, write) = pipe()?;
    let Some(child) = sys::fork()? else {
        let error = execute();
        let _ = File::from(write).write_all(&error.0.to_ne_bytes());
        sys::exit_now(0)
    };
    drop(write);
    let mut error = [0; 4];
    let failed = File::from(read).read_exact(&mut error).is_ok();
    let ending = sys::wait_for(child)?;
    if failed { Err(Errno(i32::from_ne_bytes(error))) } else { Ok(ending) }
}

fn ran(ending: Result<Ending, Errno>) -> Verdict {
    match ending {
        Ok(Ending::Exited(code)) => Verdict::Possible(format!("it ran and exited with {code}")),
        Ok(Ending::Killed(signal)) => Verdict::Possible(format!("it ran and got signal {signal}")),
        Err(error) => Verdict::Refused(error.to_string()),
    }
}

/// Keeps a program's output out of the findings.
fn silence() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        for fd in 0..3 {
            let _ = sys::call(libc::SYS_dup3, [Arg::Int(null.as_raw_fd().into()), Arg::Int(fd), Arg::Int(0)]);
        }
    } else {
        for fd in 0..3 {
            let _ = sys::call(libc::SYS_close, [Arg::Int(fd)]);
        }
    }
}

/// The probe's own bytes, to have a program that runs anywhere.
pub fn own_bytes() -> Result<Vec<u8>, Errno> {
    let bytes = fs::read("/proc/self/exe").or_else(|error| match sys::own_path() {
        Some(path) => fs::read(path.to_string_lossy().as_ref()),
        None => Err(error),
    })?;
    Ok(bytes)
}

fn run_copy(directory: &Path) -> Verdict {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = scratch_name(directory);
    let made = own_bytes().and_then(|bytes| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(&path)?;
        file.write_all(&bytes)?;
        Ok(())
    });
    let verdict = match made {
        Ok(()) => {
            let program = text(&path);
            ran(run(|| sys::execute(&program, &[&program, c"do", c"exit", c"0"])))
        }
        Err(error) => Verdict::Refused(error.to_string()),
    };
    let _ = fs::remove_file(path);
    verdict
}

/// Where the probe has left its file (see `relocate`), or the file it runs from.
fn own_program() -> String {
    match std::env::var(RELOCATED) {
        Ok(fd) => format!("/proc/self/fd/{fd}"),
        Err(_) => "/proc/self/exe".to_owned(),
    }
}

/// Names the descriptor of the probe's file while the probe runs from memory.
pub const RELOCATED: &str = "PROBE_FILE_DESCRIPTOR";

/// Goes on from a copy in memory, holding on to the file that it came from: nobody can write to a program that runs,
/// and an attacker who knows that (CVE-2019-5736) waits until it does not. Returns where that cannot be done.
pub fn relocate() {
    let Some(path) = sys::own_path() else { return };
    let moved = own_bytes().and_then(|bytes| {
        let close = Arg::Int(libc::MFD_CLOEXEC.into());
        let memory = sys::call(libc::SYS_memfd_create, [Arg::Text(c"probe"), close])?;
        let mut memory = File::from(sys::owned(memory));
        memory.write_all(&bytes)?;
        let here = Arg::Int(libc::AT_FDCWD.into());
        let file = sys::call(libc::SYS_openat, [here, Arg::Text(path), Arg::Int(libc::O_PATH.into()), Arg::Int(0)])?;
        Ok((memory, file))
    });
    let Ok((memory, file)) = moved else { return };
    let text = |bytes: std::ffi::OsString| CString::new(bytes.into_encoded_bytes()).ok();
    let words: Vec<CString> = std::env::args_os().filter_map(text).collect();
    let settings = std::env::vars_os().map(|(name, value)| [name, "=".into(), value].into_iter().collect());
    let own = std::ffi::OsString::from(format!("{RELOCATED}={file}"));
    let settings: Vec<CString> = settings.chain([own]).filter_map(text).collect();
    let _ = sys::execute_fd(memory.as_raw_fd(), &words, &settings);
}

fn overwrite(path: &str) -> Verdict {
    match OpenOptions::new().write(true).open(path).map_err(Errno::from) {
        // Busy hides whether the mount is read-only, for the kernel asks in that order.
        Err(error) if error.0 == libc::ETXTBSY => {
            Verdict::from_condition(!is_on_read_only_mount(path), "busy now (ETXTBSY); this is what the mount says")
        }
        result => Verdict::of(result, "opened for writing"),
    }
}

fn is_on_read_only_mount(path: &str) -> bool {
    // struct statfs on 64-bit Linux: eleven words, f_flags among them at byte 80; ST_RDONLY is 1.
    let mut answer = [0_u8; 120];
    let Ok(path) = CString::new(path) else {
        return false;
    };
    sys::call(libc::SYS_statfs, [Arg::Text(&path), Arg::Out(&mut answer)]).is_ok() && answer[80] & 1 == 1
}
