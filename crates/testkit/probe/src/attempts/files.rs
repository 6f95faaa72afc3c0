//! Files that are not ours: reading, writing, reaching them by a detour.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::attempt::{Attempt, Input, Verdict, plain, with, with_default};
use crate::sys::{self, Arg, Errno};

pub const ATTEMPTS: &[Attempt] = &[
    with("read-file", "PATH", "read a file", |input| read_file(input.argument)),
    with("write-file", "PATH", "write to a file, or into a directory", |input| write_to(input.argument)),
    with("list-directory", "PATH", "list a directory", |input| list(input.argument)),
    plain("open-ipc", "open the executor's request volume", |_| list("/ipc")),
    plain("open-run-inputs", "open the run's inputs (/run/sympozium)", |_| list("/run/sympozium")),
    plain("read-shadow", "read the password hashes", |_| read_file("/etc/shadow")),
    plain("open-init-root", "reach the host's files through process 1", |_| init_root()),
    with("follow-planted-link", "PATH", "read a file through a link planted in /tmp", follow_link),
    with("hard-link", "PATH", "keep a foreign file by a hard link", hard_link),
    with("connect-socket-file", "PATH", "talk to a service behind a socket file", |input| connect(&[input.argument])),
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
        connect(&["/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket", &session])
    }),
    with_default("connect-ssh-agent", "[PATH]", "", "talk to the ssh agent", |input| {
        let socket = if input.argument.is_empty() {
            std::env::var("SSH_AUTH_SOCK").unwrap_or_default()
        } else {
            input.argument.to_owned()
        };
        connect(&[&socket])
    }),
    plain("connect-x11", "talk to the X server", |_| connect(&["/tmp/.X11-unix/X0", "/tmp/.X11-unix/X1"])),
    plain("connect-wayland", "talk to the Wayland compositor", |_| connect(&[&in_runtime_directory("wayland-0")])),
    with("remount-writable", "PATH", "make a read-only mount writable", remount_writable),
    plain("leave-by-directory-descriptor", "climb out through an inherited directory", leave_by_descriptor),
    plain("inherited-descriptors", "use a descriptor that was left open", inherited),
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
    Verdict::of(OpenOptions::new().write(true).open(path), "opened for writing")
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

pub fn text(path: &Path) -> CString {
    // A path from the command line holds no NUL; an empty one is refused by the kernel.
    CString::new(path.to_string_lossy().as_bytes()).unwrap_or_default()
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
    if let Err(error) = sys::call(libc::SYS_mount, [none(), Arg::Text(c"/"), Arg::Null, flag(private), Arg::Null]) {
        return Verdict::Refused(format!("private mounts: {error}"));
    }
    let path = text(Path::new(input.argument));
    let remount = libc::MS_REMOUNT | libc::MS_BIND;
    let result = sys::call(libc::SYS_mount, [none(), Arg::Text(&path), Arg::Null, flag(remount), Arg::Null]);
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
    Verdict::Refused(format!("{} descriptors, none leads out", input.start.inherited.len()))
}
