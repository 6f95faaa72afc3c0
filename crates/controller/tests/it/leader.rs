//! Of several controllers one works.

use rustix::process::Signal;
use sympozium_testkit::cluster::Exclusivity;

use crate::harness::{Harness, wait_until_true};

#[test]
fn a_killed_leader_is_followed_by_another_and_one_that_ends_makes_room_at_once() {
    let Some(harness) = Harness::new("leader", Exclusivity::shared()) else {
        return;
    };
    let first = harness.start_leader();
    let second = harness.start();
    second.wait_for("/readyz", "ok: standby\n");
    first.wait_for_metric("leader", |it| it == 1.0);
    second.wait_for_metric("leader", |it| it == 0.0);
    let holder = harness.holder();

    // Without a chance to say so.
    first.signal(Signal::KILL);
    let (status, _) = first.wait();
    assert_eq!(status.code(), None);
    second.wait_for("/readyz", "ok: leader\n");
    assert!(harness.holder().is_some() && harness.holder() != holder);

    let third = harness.start();
    third.wait_for("/readyz", "ok: standby\n");
    second.signal(Signal::TERM);
    let (status, log) = second.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("the Lease is released"), "{log}");
    third.wait_for("/readyz", "ok: leader\n");

    third.signal(Signal::INT);
    assert_eq!(third.wait().0.code(), Some(0));
    assert_eq!(harness.holder(), None);
}

#[test]
fn a_leader_whose_lease_is_taken_ends_with_an_error() {
    let Some(harness) = Harness::new("lost", Exclusivity::shared()) else {
        return;
    };
    let program = harness.start_leader();
    let patch = r#"{"spec":{"holderIdentity":"somebody"}}"#;
    let kubectl = harness.system.kubectl();
    // Whoever writes last within a renewal wins: one attempt may be overtaken, and then there is another.
    let taken = wait_until_true(|| {
        let _ = kubectl.attempt(&["patch", "lease", "sympozium-controller", "--type=merge", "-p", patch]);
        program.log().contains("must not work any more")
    });
    assert!(taken, "{}", program.log());
    let (status, log) = program.wait();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("error: the Lease is lost: `somebody` holds the Lease now"), "{log}");
}
