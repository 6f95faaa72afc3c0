//! Opening, reading and writing, with things planted by the other side.

use std::error::Error as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MountFlags, mount, mount_bind};
use sympozium_ipc::volume::DoneState;
use sympozium_ipc::{DoneCheck, DoneWatch, FileKind, Volume, VolumeError, WatchMode};
use sympozium_testkit::wait_until;

use crate::fixture::{Fixture, TIMEOUT};
use crate::separate_process;

type Open = fn(&Path) -> Result<Volume, VolumeError>;

/// Both ways of opening must say the same.
const WAYS: [Open; 2] = [Volume::open, Volume::open_without_openat2];

pub fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from(0o666), 0).expect("no privilege is needed");
}

fn kind_of_tools(path: &Path) -> [FileKind; 2] {
    WAYS.map(|open| match open(path) {
        Err(VolumeError::ToolsKind { kind, .. }) => kind,
        other => panic!("{other:?}"),
    })
}

#[test]
fn tools_is_made_for_both_sides() {
    for open in WAYS {
        let directory = tempfile::tempdir().expect("there is room");
        open(directory.path()).expect("it can be opened");
        let mode = fs::metadata(directory.path().join("tools")).expect("it was made").permissions().mode();
        assert_eq!(mode & 0o7777, 0o770);
        open(directory.path()).expect("a second time too");
    }
}

#[test]
fn tools_must_be_a_directory_of_the_volume() {
    let directory = tempfile::tempdir().expect("there is room");
    let tools = directory.path().join("tools");
    symlink("/tmp", &tools).expect("it is free");
    assert_eq!(kind_of_tools(directory.path()), [FileKind::Link; 2]);
    fs::remove_file(&tools).expect("it is there");
    symlink("nowhere", &tools).expect("it is free");
    assert_eq!(kind_of_tools(directory.path()), [FileKind::Link; 2]);
    fs::remove_file(&tools).expect("it is there");
    fs::write(&tools, "").expect("there is room");
    assert_eq!(kind_of_tools(directory.path()), [FileKind::File; 2]);
    fs::remove_file(&tools).expect("it is there");
    make_fifo(&tools);
    assert_eq!(kind_of_tools(directory.path()), [FileKind::Fifo; 2]);
    let error = Volume::open(directory.path()).expect_err("it is a FIFO").to_string();
    assert!(error.ends_with("/tools must be a directory of the volume itself, and is a FIFO"), "{error}");
}

#[test]
fn mount_points_do_not_count_as_the_volume() {
    separate_process::with_mounts(|| {
        let directory = tempfile::tempdir().expect("there is room");
        let (tools, done) = (directory.path().join("tools"), directory.path().join("done"));
        let volumes = WAYS.map(|open| open(directory.path()).expect("nothing is mounted yet"));
        fs::write(&done, "").expect("there is room");
        assert!(volumes.iter().all(|volume| volume.done_state().expect("it can be seen") == DoneState::Present));
        // Of the same file system, so that the device does not tell.
        fs::write(directory.path().join("other"), "").expect("there is room");
        mount_bind(directory.path().join("other"), &done).expect("root may");
        for volume in &volumes {
            assert_eq!(volume.done_state().expect("it can be seen"), DoneState::Foreign(FileKind::MountPoint));
        }
        mount("tmpfs", &tools, "tmpfs", MountFlags::empty(), None).expect("root may");
        assert_eq!(kind_of_tools(directory.path()), [FileKind::MountPoint; 2]);
    });
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let error = Volume::open(Path::new("/nonexistent/ipc")).expect_err("there is none");
    assert_eq!(error.to_string(), "cannot open the IPC directory /nonexistent/ipc");
    assert!(error.source().is_some());
}

#[test]
fn only_a_regular_file_is_done() {
    let fixture = Fixture::new();
    let done = fixture.path("done");
    let look = || {
        let other = Volume::open_without_openat2(&fixture.path("")).expect("it can be opened");
        [&fixture.volume, &other].map(|volume| volume.done_state().expect("it can be seen"))
    };
    assert_eq!(look(), [DoneState::Absent; 2]);
    symlink(fixture.path("tools"), &done).expect("it is free");
    assert_eq!(look(), [DoneState::Foreign(FileKind::Link); 2]);
    fs::remove_file(&done).expect("it is there");
    symlink("/etc/hostname", &done).expect("it is free");
    assert_eq!(look(), [DoneState::Foreign(FileKind::Link); 2]);
    fs::remove_file(&done).expect("it is there");
    make_fifo(&done);
    assert_eq!(look(), [DoneState::Foreign(FileKind::Fifo); 2]);
    fs::remove_file(&done).expect("it is there");
    fs::create_dir(&done).expect("it is free");
    assert_eq!(look(), [DoneState::Foreign(FileKind::Directory); 2]);
    fixture.volume.write_done().expect_err("a directory is in the way");
    fs::remove_dir(&done).expect("it is there");
    fixture.volume.write_done().expect("the way is free");
    assert_eq!(look(), [DoneState::Present; 2]);
    assert_eq!(fs::read_to_string(done).expect("it is there"), "done\n");
    assert_eq!(fs::read_dir(fixture.path("")).expect("it is there").count(), 2, "nothing else is left");
}

#[test]
fn done_replaces_a_link_and_leaves_what_it_points_at() {
    let fixture = Fixture::new();
    fs::write(fixture.path("precious"), "kept").expect("there is room");
    symlink(fixture.path("precious"), fixture.path("done")).expect("it is free");
    fixture.volume.write_done().expect("there is room");
    assert_eq!(fs::read_to_string(fixture.path("precious")).expect("it is there"), "kept");
    assert_eq!(fixture.volume.done_state().expect("it can be seen"), DoneState::Present);
}

#[test]
fn done_is_noticed_by_event_and_by_polling() {
    for mode in [WatchMode::Automatic, WatchMode::Polling] {
        let fixture = Fixture::new();
        let mut watch = DoneWatch::new(&fixture.volume, mode);
        assert_eq!(watch.descriptor().is_some(), mode == WatchMode::Automatic);
        fs::create_dir(fixture.path("done")).expect("it is free");
        assert_eq!(watch.check().expect("it can be seen"), DoneCheck::Foreign(FileKind::Directory));
        assert_eq!(watch.check().expect("it can be seen"), DoneCheck::Running, "said once");
        fs::remove_dir(fixture.path("done")).expect("it is there");
        let first = watch.wake_at();
        fixture.volume.write_done().expect("there is room");
        assert!(wait_until(TIMEOUT, || match watch.descriptor() {
            Some(descriptor) => readable(descriptor),
            None => std::time::Instant::now() >= first,
        }));
        assert_eq!(watch.check().expect("it can be seen"), DoneCheck::Done);
    }
}

pub fn readable(descriptor: rustix::fd::BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut descriptors, Some(&now)).expect("it can be asked") == 1
}
