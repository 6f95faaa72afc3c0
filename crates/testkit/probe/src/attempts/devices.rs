//! Kernel knobs and devices. Everything is opened and nothing is written: an open is the power.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::files::scratch_name;
use crate::attempt::{Attempt, Input, Verdict, plain, with_default};
use crate::sys::{self, Arg, Errno};

pub const ATTEMPTS: &[Attempt] = &[
    plain("write-core-pattern", "make the kernel run a program at every crash", |_| {
        open_for_writing(["/proc/sys/kernel/core_pattern"])
    }),
    plain("write-kernel-settings", "change a kernel setting (/proc/sys)", |_| {
        open_for_writing(["/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/hostname"])
    }),
    plain("write-sysrq-trigger", "order the kernel about by sysrq", |_| open_for_writing(["/proc/sysrq-trigger"])),
    plain("write-sysfs", "change a device or kernel setting (/sys)", |_| {
        open_for_writing([
            "/sys/kernel/uevent_helper",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/devices/system/cpu/cpu1/online",
            "/sys/power/state",
        ])
    }),
    plain("write-release-agent", "make the kernel run a program when a cgroup empties", |_| {
        open_for_writing(below("/sys/fs/cgroup", "release_agent"))
    }),
    plain("write-cgroup", "move itself to another cgroup", |_| {
        open_for_writing(below("/sys/fs/cgroup", "cgroup.procs"))
    }),
    plain("open-kernel-memory", "read the machine's memory or the kernel's log", |_| {
        open_any(["/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/dev/kmsg", "/proc/kmsg"])
    }),
    plain("open-powerful-device", "open kvm, fuse, tun, uinput or the loop control", |_| {
        open_any(["/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/uinput", "/dev/loop-control", "/dev/vhost-net"])
    }),
    plain("open-terminal", "open the terminal that the executor was started from", |_| open_any(["/dev/tty"])),
    plain("open-block-device", "read a disk around its file system", |_| open_any(block_devices())),
    with_default("make-device", "[DIRECTORY]", "/tmp", "make a device node", make_device),
];

fn open_for_writing<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Verdict {
    first_open(paths, OpenOptions::new().write(true))
}

fn open_any<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Verdict {
    // Never block: a device may wait for hardware.
    first_open(paths, OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK))
}

fn first_open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>, how: &OpenOptions) -> Verdict {
    let mut errors = Vec::new();
    for path in paths {
        match how.open(&path) {
            Ok(_) => return Verdict::Possible(format!("opened {}", path.as_ref().display())),
            Err(error) => errors.push(Errno::from(error).to_string()),
        }
    }
    errors.dedup();
    Verdict::Refused(if errors.is_empty() { "none in sight".to_owned() } else { errors.join(", ") })
}

/// `directory/NAME` and `directory/*/NAME`: cgroup v2 has the one, v1 the other.
fn below(directory: &str, name: &str) -> Vec<PathBuf> {
    let mut found = vec![Path::new(directory).join(name)];
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path().join(name);
        if path.exists() {
            found.push(path);
        }
    }
    found
}

fn block_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_block_device()))
        .map(|entry| entry.path())
        .collect()
}

fn make_device(input: &Input<'_>) -> Verdict {
    let path = scratch_name(Path::new(input.argument));
    let Ok(text) = std::ffi::CString::new(path.to_string_lossy().as_bytes()) else {
        return Verdict::Refused("not a path".into());
    };
    // The device of /dev/null: harmless if it comes into being.
    let mode = libc::S_IFCHR | 0o600;
    let made = sys::call(
        libc::SYS_mknodat,
        [
            Arg::Int(libc::AT_FDCWD.into()),
            Arg::Text(&text),
            Arg::Int(mode.into()),
            Arg::Int(libc::makedev(1, 3) as i64),
        ],
    );
    let _ = fs::remove_file(path);
    Verdict::of(made, "made one")
}
