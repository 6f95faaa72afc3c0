//! I/O errors as sentences that tell the model what to do differently.

use std::io;

use rustix::io::Errno;
use sympozium_api::builtin_tool::LIST_DIRECTORY;

use super::roots::ResolvedPath;
use crate::tools::ToolError;

pub fn read_error(path: &ResolvedPath<'_>, error: &io::Error) -> ToolError {
    describe(path, error, "read")
}

pub fn write_error(path: &ResolvedPath<'_>, error: &io::Error) -> ToolError {
    describe(path, error, "write")
}

fn describe(resolved: &ResolvedPath<'_>, error: &io::Error, verb: &str) -> ToolError {
    let path = &resolved.shown;
    let root = resolved.root_shown();
    ToolError(match Errno::from_io_error(error) {
        Some(Errno::NOENT) => {
            format!("{path} does not exist; {LIST_DIRECTORY} shows what is there")
        }
        Some(Errno::NOTDIR) => {
            format!("cannot {verb} {path}: a component of the path is a file, not a directory")
        }
        Some(Errno::XDEV) if resolved.forbids_mounts() => {
            format!("cannot {verb} {path}: it lies on a mount, or behind a link, that is not a part of {root}")
        }
        Some(Errno::XDEV) => {
            format!("cannot {verb} {path}: a link in the path leads out of {root}, and such links are not followed")
        }
        Some(Errno::LOOP) => format!(
            "cannot {verb} {path}: a link in the path is broken, is a loop, or leads to a location that is not opened through links"
        ),
        Some(Errno::ACCESS | Errno::PERM) => {
            format!("you are not permitted to {verb} {path}")
        }
        Some(Errno::ROFS) => format!("cannot write {path}: it is on a read-only mount"),
        Some(Errno::NOSPC) => {
            format!("cannot write {path}: no space is left there; remove files that you no longer need")
        }
        Some(Errno::DQUOT) => {
            format!("cannot write {path}: the quota there is used up; remove files that you no longer need")
        }
        Some(Errno::NAMETOOLONG) => {
            format!("cannot {verb} {path}: the path, or a name in it, is longer than the file system allows")
        }
        Some(Errno::ISDIR) => format!("{path} is a directory"),
        Some(Errno::NXIO) => format!("{path} is a socket or a device, not a regular file"),
        Some(Errno::BUSY) => format!("cannot write {path}: it is a mount of its own"),
        Some(errno) => format!("cannot {verb} {path}: {}", io::Error::from(errno)),
        None => format!("cannot {verb} {path}: {error}"),
    })
}
