//! Idmapped mounts: files keep their owner on disk while commands own them inside.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::thread::UnshareFlags;

use crate::sys::{self, Fork, ForkParent};

/// An id mapping for a mount.
pub(super) struct IdMapping {
    pub(super) on_disk: (u32, u32),
    pub(super) inside: (u32, u32),
}

impl IdMapping {
    /// The kernel takes a mapping in the form of a user namespace that has it. No program ever runs in this one: a
    /// child creates it, we map it and keep its descriptor.
    pub(super) fn user_namespace(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        let child = match sys::fork(ForkParent::Caller)? {
            Fork::Parent(child) => child,
            Fork::Child => {
                let made = sys::unshare(UnshareFlags::NEWUSER).is_ok();
                let _ = rustix::io::write(&theirs, &[u8::from(made)]);
                // Waits until it is killed, or until this process has ended.
                let _ = rustix::io::read(&theirs, &mut [0; 1]);
                sys::exit_now(0);
            }
        };
        drop(theirs);
        let result = (|| {
            let mut made = [0; 1];
            rustix::io::read(&ours, &mut made)?;
            if made != [1] {
                return Err(io::Error::from_raw_os_error(libc::EPERM));
            }
            let proc = format!("/proc/{}", child.pid);
            let map = |file: &str, (disk, inside)| fs::write(format!("{proc}/{file}"), format!("{disk} {inside} 1"));
            map("uid_map", (self.on_disk.0, self.inside.0))?;
            map("gid_map", (self.on_disk.1, self.inside.1))?;
            fs::File::open(format!("{proc}/ns/user")).map(OwnedFd::from)
        })();
        let _ = rustix::process::pidfd_send_signal(&child.pidfd, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty());
        result
    }
}
