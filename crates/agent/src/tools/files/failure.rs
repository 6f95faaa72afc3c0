//! What the kernel says, as sentences that tell the model what to do differently.

use std::io;

use rustix::io::Errno;

use super::roots::Place;
use sympozium_api::builtin_tool::LIST_DIRECTORY;

use crate::tools::ToolError;

/// Why something could not be read.
pub fn reading(place: &Place<'_>, error: &io::Error) -> ToolError {
    sentence(place, error, "read")
}

/// Why something could not be written.
pub fn writing(place: &Place<'_>, error: &io::Error) -> ToolError {
    sentence(place, error, "write")
}

fn sentence(place: &Place<'_>, error: &io::Error, verb: &str) -> ToolError {
    let path = &place.shown;
    let root = place.root_shown();
    ToolError(match Errno::from_io_error(error) {
        Some(Errno::NOENT) => {
            format!("{path} does not exist; {LIST_DIRECTORY} shows what is there")
        }
        Some(Errno::NOTDIR) => {
            format!("cannot {verb} {path}: something on the way to it is a file, not a directory")
        }
        Some(Errno::XDEV) if place.stays() => {
            format!("cannot {verb} {path}: it lies on a mount, or behind a link, that is not a part of {root}")
        }
        Some(Errno::XDEV) => {
            format!("cannot {verb} {path}: a link on the way leads out of {root}, and such links are not followed")
        }
        Some(Errno::LOOP) => format!(
            "cannot {verb} {path}: a link on the way leads nowhere, in a circle, or to a place that is not opened by links"
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
