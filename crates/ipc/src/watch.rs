//! Detects changes of a directory: by inotify where it works, by polling where it does not.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// Interval between checks of a directory that is polled.
pub const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval between checks of a directory with events, in case they are not delivered.
pub const SAFETY_INTERVAL: Duration = Duration::from_secs(15);

/// How changes are detected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WatchMode {
    /// By events where they work, otherwise by polling.
    #[default]
    Automatic,
    /// By polling only.
    Polling,
    /// By an inotify that never delivers an event, like that of gVisor without its annotations: for tests.
    #[doc(hidden)]
    Silent,
}

/// Why a directory is polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollReason {
    /// The caller requested it.
    Requested,
    /// File systems of this kind send no events for changes by other machines.
    FileSystem(&'static str),
    /// inotify is not available, or its limits are reached.
    Unavailable(Errno),
    /// inotify is available, and a change happened without an event.
    Silent,
}

impl fmt::Display for PollReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => formatter.write_str("polling was asked for"),
            Self::FileSystem(kind) => write!(formatter, "{kind} sends no events for changes made elsewhere"),
            Self::Unavailable(Errno::MFILE) => formatter.write_str(
                "no more inotify instances or descriptors; hint: raise fs.inotify.max_user_instances or the limit of open files",
            ),
            Self::Unavailable(Errno::NOSPC) => formatter
                .write_str("no more inotify watches; hint: raise fs.inotify.max_user_watches"),
            Self::Unavailable(error) => write!(formatter, "inotify is not available: {error}"),
            Self::Silent => formatter.write_str(
                "a file appeared without an event; hint: under gVisor the volume needs the dev.gvisor.spec.mount annotations",
            ),
        }
    }
}

/// One inotify instance, or the reason why there is none.
#[derive(Debug)]
pub(crate) struct Watch {
    descriptor: Option<OwnedFd>,
    poll_reason: Option<PollReason>,
    silent: bool,
}

/// An event of an inotify descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InotifyEvent<'a> {
    /// A change of this name in the directory with this watch.
    Name(i32, &'a [u8], ReadFlags),
    /// A change of the watched directory itself.
    Directory,
    /// Events were lost.
    Overflow,
}

impl Watch {
    /// Watches nothing yet. `directory` determines the file system.
    pub(crate) fn new(mode: WatchMode, directory: BorrowedFd<'_>) -> Self {
        let (descriptor, polling) = if mode == WatchMode::Polling {
            (None, Some(PollReason::Requested))
        } else if let Some(kind) = silent_file_system(directory) {
            (None, Some(PollReason::FileSystem(kind)))
        } else {
            match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
                Ok(descriptor) => (Some(descriptor), None),
                Err(error) => (None, Some(PollReason::Unavailable(error))),
            }
        };
        Self { descriptor, poll_reason: polling, silent: mode == WatchMode::Silent }
    }

    /// Adds a directory. If that fails, it is polled.
    pub(crate) fn add(&mut self, directory: BorrowedFd<'_>, events: WatchFlags) -> Option<i32> {
        let descriptor = self.descriptor.as_ref().filter(|_| !self.silent)?;
        // By descriptor and not by path, which may lead to another directory by now. Fails without /proc.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        match inotify::add_watch(descriptor, path, events | WatchFlags::ONLYDIR) {
            Ok(watch) => Some(watch),
            Err(error) => {
                self.descriptor = None;
                self.start_polling(PollReason::Unavailable(error));
                None
            }
        }
    }

    /// From now on the directory is polled; events that arrive are still read.
    pub(crate) fn start_polling(&mut self, reason: PollReason) {
        self.poll_reason.get_or_insert(reason);
    }

    pub(crate) fn poll_reason(&self) -> Option<&PollReason> {
        self.poll_reason.as_ref()
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(|descriptor| descriptor.as_fd())
    }

    /// Interval between checks; `safety` while events are delivered.
    pub(crate) fn interval(&self, safety: Duration) -> Duration {
        if self.poll_reason.is_some() { POLL_INTERVAL } else { safety }
    }

    /// Passes the events of one read to `take`, and returns whether there were any. The buffer bounds their number.
    pub(crate) fn read(&mut self, mut take: impl FnMut(InotifyEvent<'_>)) -> bool {
        let Some(descriptor) = &self.descriptor else {
            return false;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(descriptor, &mut buffer);
        let mut any = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    any = true;
                    let flags = event.events();
                    let itself =
                        ReadFlags::IGNORED | ReadFlags::UNMOUNT | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
                    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                        take(InotifyEvent::Overflow);
                    } else if flags.intersects(itself) {
                        take(InotifyEvent::Directory);
                    } else if let Some(name) = event.file_name() {
                        take(InotifyEvent::Name(event.wd(), name.to_bytes(), flags));
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return any,
                Err(error) => {
                    self.descriptor = None;
                    self.start_polling(PollReason::Unavailable(error));
                    return any;
                }
            }
            if reader.is_buffer_empty() {
                return true;
            }
        }
    }
}

/// The name of a file system that may be changed by another machine or without the kernel's knowledge.
fn silent_file_system(directory: BorrowedFd<'_>) -> Option<&'static str> {
    let kind = rustix::fs::fstatfs(directory).ok()?.f_type;
    // The field is signed on some platforms and word-sized on most; the numbers have 32 bits.
    silent_kind(kind as u32)
}

/// The numbers are those of statfs(2).
fn silent_kind(kind: u32) -> Option<&'static str> {
    match kind {
        0x6969 => Some("NFS"),
        0x0102_1997 => Some("9p"),
        0x6573_5546 => Some("FUSE"),
        0xff53_4d42 | 0x517b | 0xfe53_4d42 => Some("SMB"),
        0x00c3_6400 => Some("Ceph"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x0116_1970 => Some("GFS2"),
        0x7461_636f => Some("OCFS2"),
        0x4750_4653 => Some("GPFS"),
        0x786f_4256 => Some("a VirtualBox share"),
        0xbacb_acbc => Some("a VMware share"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_other_machines_are_polled_and_those_of_this_one_are_not() {
        let shared = [(0x6969, "NFS"), (0x0102_1997, "9p"), (0x6573_5546, "FUSE"), (0xff53_4d42, "SMB")];
        for (kind, name) in shared {
            assert_eq!(silent_kind(kind), Some(name));
        }
        // tmpfs, ext4, XFS, btrfs, overlayfs.
        for kind in [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e, 0x794c_7630] {
            assert_eq!(silent_kind(kind), None);
        }
    }

    #[test]
    fn a_reason_says_what_to_do() {
        for reason in [PollReason::Unavailable(Errno::MFILE), PollReason::Unavailable(Errno::NOSPC), PollReason::Silent]
        {
            assert!(reason.to_string().contains("; hint: "), "{reason}");
        }
    }
}
