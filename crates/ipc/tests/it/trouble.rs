//! A volume that is full, or becomes read-only, and a process that has no descriptors left.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_remount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sympozium_ipc::inbox::{AnswerError, Ignored};
use sympozium_ipc::{Arrival, ExecRequest, ExecResult, PollReason, Requester, Volume, VolumeError, WatchMode};
use sympozium_testkit::wait_until;

use crate::fixture::{Fixture, TIMEOUT, describe, id, ok, pull};
use crate::separate_process;

fn errno(error: &VolumeError) -> Option<i32> {
    match error {
        VolumeError::Write { source, .. } => source.raw_os_error(),
        other => panic!("{other}"),
    }
}

/// A volume on a file system of its own, of 64 KiB.
fn small_volume(directory: &std::path::Path) -> Volume {
    mount("tmpfs", directory, "tmpfs", MountFlags::empty(), Some(c"size=64k")).expect("root may");
    Volume::open(directory).expect("it can be opened")
}

#[test]
fn a_full_volume_gives_an_error_and_no_partial_file_and_works_again_when_there_is_room() {
    separate_process::with_mounts(|| {
        let directory = tempfile::tempdir().expect("there is room");
        let volume = small_volume(directory.path());
        let tools = directory.path().join("tools");
        let requester = Requester::open(&volume, WatchMode::Automatic);
        requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
        let mut inbox = sympozium_ipc::Inbox::new(&volume, Default::default());
        let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it lay there") };

        // Writing until nothing goes in any more leaves a file that fills the volume.
        let filler = directory.path().join("filler");
        fs::write(&filler, vec![b'x'; 1 << 20]).expect_err("it has 64 KiB");
        let result = ok(1, &"y".repeat(20_000));
        let AnswerError::Volume(error) = claimed.answer(&result).expect_err("it is full") else {
            panic!("it is the volume");
        };
        assert_eq!(errno(&error), Some(Errno::NOSPC.raw_os_error()));
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&tools)
                .expect("it is there")
                .map(|entry| entry.expect("it is readable").file_name().into_string().expect("text"))
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(), [".claim-1", "exec-request-1.json"]);
        fs::remove_file(filler).expect("it is there");
        claimed.answer(&result).expect("there is room again");
        assert_eq!(requester.take(&id(1)), Ok(Some(result)));
    });
}

#[test]
fn a_volume_that_becomes_read_only_is_reported_once_and_tried_again() {
    separate_process::with_mounts(|| {
        let directory = tempfile::tempdir().expect("there is room");
        let volume = small_volume(directory.path());
        let requester = Requester::open(&volume, WatchMode::Automatic);
        for number in [1, 2] {
            requester.submit(&ExecRequest::new(id(number), "x")).expect("there is room");
        }
        let mut inbox = sympozium_ipc::Inbox::new(&volume, Default::default());
        let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it lay there") };
        let result = ExecResult::failed(claimed.id().clone(), "refused", "");
        mount_remount(directory.path(), MountFlags::RDONLY, c"").expect("root may");

        let AnswerError::Volume(error) = claimed.answer(&result).expect_err("it is read-only") else {
            panic!("it is the volume");
        };
        assert_eq!(errno(&error), Some(Errno::ROFS.raw_os_error()));
        let Some(Arrival::Ignored { reason, .. }) = pull(&mut inbox) else { panic!("it cannot be claimed") };
        assert_eq!(reason, Ignored::NotClaimed(Errno::ROFS));
        assert_eq!(reason.to_string(), "it cannot be claimed: the volume is read-only");
        let before = std::time::Instant::now();
        assert!(pull(&mut inbox).is_none(), "said once");
        assert!(inbox.wake_at().expect("it goes on") > before + Duration::from_millis(10), "no busy loop");
        requester.submit(&ExecRequest::new(id(3), "x")).expect_err("it is read-only");

        mount_remount(directory.path(), MountFlags::empty(), c"").expect("root may");
        let mut second = None;
        assert!(wait_until(TIMEOUT, || {
            second = pull(&mut inbox);
            second.is_some()
        }));
        assert!(describe(&second.expect("it came")).starts_with("run "));
    });
}

#[test]
fn without_descriptors_the_directory_is_polled_and_nothing_is_lost() {
    separate_process::in_a_process(|| {
        let fixture = Fixture::new();
        let whole = getrlimit(Resource::Nofile);
        let file = fs::File::open("/dev/null").expect("it is there");
        let next = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&file)).expect("it is positive");
        drop(file);
        fixture.ask(1, "x");
        // The lowest free number is the first that is forbidden.
        setrlimit(Resource::Nofile, Rlimit { current: Some(next), maximum: whole.maximum }).expect("lower");
        let mut inbox = fixture.inbox();
        assert_eq!(inbox.take_poll_notice(), Some(PollReason::Unavailable(Errno::MFILE)));
        assert!(inbox.descriptor().is_none());
        assert!(pull(&mut inbox).is_none(), "it cannot even be listed");
        setrlimit(Resource::Nofile, whole).expect("back");
        let mut arrival = None;
        assert!(wait_until(TIMEOUT, || {
            arrival = pull(&mut inbox);
            arrival.is_some()
        }));
        assert_eq!(describe(&arrival.expect("it came")), "run 1: x");
        assert_eq!(inbox.take_poll_notice(), None);
    });
}
