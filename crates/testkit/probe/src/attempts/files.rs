//! Files that are not ours: reading, writing, running, reaching them by a detour.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::attempt::{Attempt, Input, Verdict, in_child, plain, with, with_default};
use crate::sys::{self, Arg, Ending, Errno};

pub const ATTEMPTS: &[Attempt] = &[
    with("read-file", "PATH", "read a file", |input| {
        read_file(input.argument)
    }),
    with(
        "write-file",
        "PATH",
        "write to a file, or into a directory",
        |input| write_to(input.argument),
    ),
    with("list-directory", "PATH", "list a directory", |input| {
        list(input.argument)
    }),
    with("execute-file", "PATH", "run a program", |input| {
        execute(input.argument)
    }),
    with_default(
        "run-own-file",
        "[DIRECTORY]",
        "/tmp",
        "write a program and run it",
        |input| run_copy(Path::new(input.argument)),
    ),
    plain("open-ipc", "open the executor's request volume", |_| {
        list("/ipc")
    }),
    plain(
        "open-run-inputs",
        "open the run's inputs (/run/sympozium)",
        |_| list("/run/sympozium"),
    ),
    plain("read-shadow", "read the password hashes", |_| {
        read_file("/etc/shadow")
    }),
    plain(
        "open-init-root",
        "reach the host's files through process 1",
        |_| init_root(),
    ),
    plain(
        "overwrite-own-program",
        "overwrite the program file that is running",
        |_| overwrite(&own_program()),
    ),
    with_default(
        "overwrite-executor",
        "[PID]",
        "",
        "overwrite the executor's program file",
        |input| match input.target() {
            Ok(pid) => overwrite(&format!("/proc/{pid}/exe")),
            Err(verdict) => verdict,
        },
    ),
    with(
        "follow-planted-link",
        "PATH",
        "read a file through a link planted in /tmp",
        follow_link,
    ),
    with(
        "hard-link",
        "PATH",
        "keep a foreign file by a hard link",
        hard_link,
    ),
    with(
        "connect-socket-file",
        "PATH",
        "talk to a service behind a socket file",
        |input| connect(&[input.argument]),
    ),
    plain("connect-docker", "talk to the container engine", |_| {
        connect(&[
            "/var/run/docker.sock",
            "/run/docker.sock",
            "/run/containerd/containerd.sock",
            "/run/podman/podman.sock",
        ])
    }),
    plain("connect-dbus", "talk to the system or session bus", |_| {
        let session = in_runtime_directory("bus");
        connect(&[
            "/run/dbus/system_bus_socket",
            "/var/run/dbus/system_bus_socket",
            &session,
        ])
    }),
    with_default(
        "connect-ssh-agent",
        "[PATH]",
        "",
        "talk to the ssh agent",
        |input| {
            let socket = if input.argument.is_empty() {
                std::env::var("SSH_AUTH_SOCK").unwrap_or_default()
            } else {
                input.argument.to_owned()
            };
            connect(&[&socket])
        },
    ),
    plain("connect-x11", "talk to the X server", |_| {
        connect(&["/tmp/.X11-unix/X0", "/tmp/.X11-unix/X1"])
    }),
    plain("connect-wayland", "talk to the Wayland compositor", |_| {
        connect(&[&in_runtime_directory("wayland-0")])
    }),
    with(
        "remount-writable",
        "PATH",
        "make a read-only mount writable",
        remount_writable,
    ),
    plain(
        "leave-by-directory-descriptor",
        "climb out through an inherited directory",
        leave_by_descriptor,
    ),
    plain(
        "inherited-descriptors",
        "use a descriptor that was left open",
        inherited,
    ),
    plain("change-root", "change the root directory", |_| {
        Verdict::of_call(sys::call(libc::SYS_chroot, [Arg::Text(c"/")]))
    }),
];

fn read_file(path: &str) -> Verdict {
    let mut byte = [0; 1];
    let read = File::open(path).and_then(|mut file| file.read(&mut byte));
    match read {
        // What was read stays here: it may be a secret of the machine that runs the test.
        Ok(count) => Verdict::Possible(format!("opened and read ({count} byte)")),
        Err(error) => Verdict::Refused(Errno::from(error).to_string()),
    }
}

/// Opens for writing and writes nothing; in a directory, makes a file and removes it.
fn write_to(path: &str) -> Verdict {
    if Path::new(path).is_dir() {
        let file = scratch_name(Path::new(path));
        let made = OpenOptions::new().write(true).create_new(true).open(&file);
        let _ = fs::remove_file(&file);
        return Verdict::of(made, "made a file in it");
    }
    Verdict::of(
        OpenOptions::new().write(true).open(path),
        "opened for writing",
    )
}

fn list(path: &str) -> Verdict {
    match fs::read_dir(path) {
        Ok(entries) => Verdict::Possible(format!("{} entries", entries.count())),
        Err(error) => Verdict::Refused(Errno::from(error).to_string()),
    }
}

/// A name in `directory` that no other attempt uses.
pub fn scratch_name(directory: &Path) -> PathBuf {
    directory.join(format!(".probe-{}", std::process::id()))
}

fn text(path: &Path) -> CString {
    // A path from the command line holds no NUL; an empty one is refused by the kernel.
    CString::new(path.to_string_lossy().as_bytes()).unwrap_or_default()
}

fn execute(path: &str) -> Verdict {
    let program = text(Path::new(path));
    ran(in_child(|| {
        silence();
        sys::execute(&program, &[&program]).0 + 100
    }))
}

/// A child that could not run its program ends with 100 plus the error number.
fn ran(ending: Result<Ending, Errno>) -> Verdict {
    match ending {
        Ok(Ending::Exited(code)) if code > 100 => Verdict::Refused(Errno(code - 100).to_string()),
        Ok(Ending::Exited(code)) => Verdict::Possible(format!("it ran and exited with {code}")),
        Ok(Ending::Killed(signal)) => Verdict::Possible(format!("it ran and got signal {signal}")),
        Err(error) => Verdict::Refused(error.to_string()),
    }
}

/// Keeps a program's output out of the findings.
fn silence() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        for fd in 0..3 {
            let _ = sys::call(
                libc::SYS_dup3,
                [Arg::Int(null.as_raw_fd().into()), Arg::Int(fd), Arg::Int(0)],
            );
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
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(&path)?;
        file.write_all(&bytes)?;
        Ok(())
    });
    let verdict = match made {
        Ok(()) => {
            let program = text(&path);
            ran(in_child(|| {
                sys::execute(&program, &[&program, c"do", c"exit", c"0"]).0 + 100
            }))
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
        let file = sys::call(
            libc::SYS_openat,
            [
                here,
                Arg::Text(path),
                Arg::Int(libc::O_PATH.into()),
                Arg::Int(0),
            ],
        )?;
        Ok((memory, file))
    });
    let Ok((memory, file)) = moved else { return };
    let text = |bytes: std::ffi::OsString| CString::new(bytes.into_encoded_bytes()).ok();
    let words: Vec<CString> = std::env::args_os().filter_map(text).collect();
    let settings =
        std::env::vars_os().map(|(name, value)| [name, "=".into(), value].into_iter().collect());
    let own = std::ffi::OsString::from(format!("{RELOCATED}={file}"));
    let settings: Vec<CString> = settings.chain([own]).filter_map(text).collect();
    let _ = sys::execute_fd(memory.as_raw_fd(), &words, &settings);
}

fn overwrite(path: &str) -> Verdict {
    match OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(Errno::from)
    {
        // Busy hides whether the mount is read-only, for the kernel asks in that order.
        Err(error) if error.0 == libc::ETXTBSY => Verdict::from_condition(
            !is_on_read_only_mount(path),
            "busy now (ETXTBSY); this is what the mount says",
        ),
        result => Verdict::of(result, "opened for writing"),
    }
}

fn is_on_read_only_mount(path: &str) -> bool {
    // struct statfs on 64-bit Linux: eleven words, f_flags among them at byte 80; ST_RDONLY is 1.
    let mut answer = [0_u8; 120];
    let Ok(path) = CString::new(path) else {
        return false;
    };
    sys::call(libc::SYS_statfs, [Arg::Text(&path), Arg::Out(&mut answer)]).is_ok()
        && answer[80] & 1 == 1
}

/// In a world of its own process 1 has the same root as we, and reaching that is nothing.
fn init_root() -> Verdict {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &str| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    match (identity("/proc/1/root/"), identity("/")) {
        (Ok(theirs), Ok(ours)) if theirs == ours => Verdict::Refused("it is our own root".into()),
        (Ok(_), _) => list("/proc/1/root/"),
        (Err(error), _) => Verdict::Refused(Errno::from(error).to_string()),
    }
}

fn follow_link(input: &Input<'_>) -> Verdict {
    let link = scratch_name(Path::new("/tmp"));
    if let Err(error) = std::os::unix::fs::symlink(input.argument, &link) {
        return Verdict::Refused(format!("planting: {}", Errno::from(error)));
    }
    let verdict = read_file(&link.to_string_lossy());
    let _ = fs::remove_file(link);
    verdict
}

fn hard_link(input: &Input<'_>) -> Verdict {
    let mut errors = Vec::new();
    // A link cannot cross file systems, so the file's own directory is tried as well.
    let own = Path::new(input.argument).parent().unwrap_or(Path::new("/"));
    for directory in [Path::new("/tmp"), Path::new("."), own] {
        let link = scratch_name(directory);
        match fs::hard_link(input.argument, &link) {
            Ok(()) => {
                let _ = fs::remove_file(link);
                return Verdict::Possible(format!("linked into {}", directory.display()));
            }
            Err(error) => errors.push(Errno::from(error).to_string()),
        }
    }
    Verdict::Refused(errors.join(", "))
}

fn in_runtime_directory(name: &str) -> String {
    match std::env::var("XDG_RUNTIME_DIR") {
        Ok(directory) => format!("{directory}/{name}"),
        Err(_) => {
            let uid = sys::call(libc::SYS_getuid, []).unwrap_or(0);
            format!("/run/user/{uid}/{name}")
        }
    }
}

/// Connects and says nothing.
fn connect(paths: &[&str]) -> Verdict {
    let mut errors = Vec::new();
    for path in paths {
        match UnixStream::connect(path) {
            Ok(_) => return Verdict::Possible(format!("connected to {path}")),
            Err(error) => errors.push(Errno::from(error).to_string()),
        }
    }
    Verdict::Refused(errors.join(", "))
}

/// Tried in a mount namespace of its own only: where the remount works it must not change the machine's mounts.
fn remount_writable(input: &Input<'_>) -> Verdict {
    let flag = |flags: u64| Arg::Int(flags as i64);
    let none = || Arg::Text(c"none");
    if let Err(error) = sys::call(libc::SYS_unshare, [Arg::Int(libc::CLONE_NEWNS.into())]) {
        return Verdict::Refused(format!("no mount namespace: {error}"));
    }
    let private = libc::MS_REC | libc::MS_PRIVATE;
    if let Err(error) = sys::call(
        libc::SYS_mount,
        [none(), Arg::Text(c"/"), Arg::Null, flag(private), Arg::Null],
    ) {
        return Verdict::Refused(format!("private mounts: {error}"));
    }
    let path = text(Path::new(input.argument));
    let remount = libc::MS_REMOUNT | libc::MS_BIND;
    let result = sys::call(
        libc::SYS_mount,
        [
            none(),
            Arg::Text(&path),
            Arg::Null,
            flag(remount),
            Arg::Null,
        ],
    );
    match result {
        Ok(_) => write_to(input.argument),
        Err(error) => Verdict::Refused(error.to_string()),
    }
}

fn inherited(input: &Input<'_>) -> Verdict {
    let found = &input.start.inherited;
    Verdict::from_condition(!found.is_empty(), format!("descriptors {found:?}"))
}

fn leave_by_descriptor(input: &Input<'_>) -> Verdict {
    for &fd in &input.start.inherited {
        let climbed = sys::call(
            libc::SYS_openat,
            [
                Arg::Int(fd.into()),
                Arg::Text(c"../../../../../../../../../../etc"),
                Arg::Int((libc::O_DIRECTORY | libc::O_CLOEXEC).into()),
                Arg::Int(0),
            ],
        );
        if let Ok(reached) = climbed {
            drop(sys::owned(reached));
            return Verdict::Possible(format!("reached /etc from descriptor {fd}"));
        }
    }
    Verdict::Refused(format!(
        "{} descriptors, none leads out",
        input.start.inherited.len()
    ))
}
