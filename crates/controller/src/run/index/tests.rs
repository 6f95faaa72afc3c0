//! Which runs get a slot.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn run(name: &str, status: serde_json::Value) -> StoredRun {
    run_of("team", name, status)
}

fn run_of(namespace: &str, name: &str, status: serde_json::Value) -> StoredRun {
    let run = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
        "metadata": { "name": name, "namespace": namespace, "uid": format!("uid-{name}") },
        "spec": { "agentRef": "a", "task": "t" },
        "status": status,
    });
    StoredRun::new(Arc::new(serde_json::from_value(run).expect("a run"))).expect("an identity")
}

/// An index with two slots.
fn index() -> RunIndex {
    RunIndex::new(2, BTreeMap::new())
}

fn reserve(index: &RunIndex, name: &str) -> Result<(), WaitReason> {
    index.reserve(&run(name, json!({})), |_| None)
}

fn full() -> Result<(), WaitReason> {
    let why = "the run waits: 2 runs are active, which is the limit; namespaces take turns";
    Err(WaitReason::ClusterFull(why.to_owned()))
}

fn names(references: Vec<ObjectRef<AgentRun>>) -> Vec<String> {
    let mut names: Vec<String> = references.into_iter().map(|reference| reference.name).collect();
    names.sort();
    names
}

#[test]
fn of_many_that_come_at_once_as_many_begin_as_may() {
    let index = index();
    for name in ["a", "b", "c", "d"] {
        index.track(&run(name, json!({})));
    }
    let full = full();
    assert_eq!(reserve(&index, "a"), Ok(()));
    assert_eq!(reserve(&index, "b"), Ok(()));
    assert_eq!(reserve(&index, "c"), full);
    // The watch delivers the first as it was before it started: it keeps its slot.
    index.track(&run("a", json!({})));
    assert_eq!(reserve(&index, "d"), full);
    assert_eq!(names(index.active()), ["a", "b"]);
    // It does not need another.
    assert_eq!(reserve(&index, "a"), Ok(()));

    // One ends: the one that has waited longest is next.
    let over = index.track(&run("a", json!({ "phase": "Succeeded" })));
    assert!(over.freed_slot && !over.torn_down);
    assert_eq!(names(index.take_runnable()), ["c"]);
    assert_eq!(reserve(&index, "c"), Ok(()));
    assert_eq!(reserve(&index, "d"), full);
    // A terminal run has no turn, and waits for nothing.
    assert_eq!(names(index.waiting()), ["d"]);
    // The free slot is reported only once.
    assert!(!index.track(&run("a", json!({ "phase": "Succeeded" }))).freed_slot);
}

#[test]
fn a_turn_that_cannot_be_used_is_given_back() {
    let index = index();
    for name in ["a", "b", "c"] {
        index.track(&run(name, json!({})));
    }
    assert_eq!(reserve(&index, "a"), Ok(()));
    assert_eq!(reserve(&index, "b"), Ok(()));
    index.release_slot("uid-a");
    assert_eq!(reserve(&index, "c"), Ok(()));
    // A run that has started does not release its slot by being seen.
    index.track(&run("b", json!({ "planDigest": format!("sha256:{}", "0".repeat(64)) })));
    index.release_slot("uid-b");
    index.track(&run("b", json!({ "planDigest": format!("sha256:{}", "0".repeat(64)) })));
    assert_eq!(names(index.active()), ["b", "c"]);
}

#[test]
fn a_run_that_is_gone_blocks_no_other() {
    let index = index();
    for name in ["a", "b", "c", "d"] {
        index.track(&run(name, json!({})));
        let _ = reserve(&index, name);
    }
    assert!(!index.forget("uid-c").freed_slot);
    assert!(index.forget("uid-a").freed_slot);
    assert_eq!(names(index.take_runnable()), ["d"]);
}

/// A reconcile of a run that was deleted meanwhile asks for a slot all the same.
#[test]
fn one_that_is_forgotten_takes_no_place_and_no_turn() {
    let index = index();
    for name in ["a", "b", "c", "d"] {
        index.track(&run(name, json!({})));
    }
    assert_eq!(reserve(&index, "a"), Ok(()));
    assert_eq!(reserve(&index, "b"), Ok(()));
    index.forget("uid-c");
    assert_eq!(reserve(&index, "c"), Err(WaitReason::NotCached));
    assert_eq!(reserve(&index, "d"), full());
    index.track(&run("a", json!({ "phase": "Succeeded" })));
    assert_eq!(names(index.take_runnable()), ["d"]);
    assert_eq!(reserve(&index, "d"), Ok(()));
    // Nor if there is a free slot.
    index.forget("uid-b");
    assert_eq!(reserve(&index, "b"), Err(WaitReason::NotCached));
    assert_eq!(names(index.active()), ["d"]);
}

#[test]
fn those_of_a_tree_are_all_asked_again() {
    let index = index();
    for name in ["a", "b"] {
        index.track(&run(name, json!({})));
        let held = index.reserve(&run(name, json!({})), |_| Some("full".to_owned()));
        assert_eq!(held, Err(WaitReason::TreeFull("full".to_owned())));
    }
    assert_eq!(names(index.take_runnable()), ["a", "b"]);
    assert_eq!(names(index.take_runnable()), [""; 0]);
}

#[test]
fn a_namespace_with_thousands_of_runs_does_not_delay_another_s_single_one() {
    let index = index();
    let ask = |namespace: &str, name: &str| {
        let run = run_of(namespace, name, json!({}));
        index.track(&run);
        index.reserve(&run, |_| None)
    };
    for number in 0..3000 {
        let began = ask("greedy", &format!("g{number}"));
        assert_eq!(began.is_ok(), number < 2, "{number}");
    }
    assert_eq!(ask("modest", "m"), full());
    // The next slot belongs to the other namespace, whichever asks first.
    index.track(&run_of("greedy", "g0", json!({ "phase": "Succeeded" })));
    assert_eq!(names(index.take_runnable()), ["m"]);
    assert_eq!(ask("greedy", "g2"), full());
    assert_eq!(ask("greedy", "new"), full());
    assert_eq!(ask("modest", "m"), Ok(()));
    // With one slot each, they take turns again.
    index.track(&run_of("greedy", "g1", json!({ "phase": "Succeeded" })));
    assert_eq!(names(index.take_runnable()), ["g2"]);
    assert_eq!(ask("greedy", "g2"), Ok(()));
}

#[test]
fn one_namespace_may_use_all_slots_while_no_other_waits() {
    let index = RunIndex::new(5, BTreeMap::new());
    for number in 0..5 {
        let name = number.to_string();
        index.track(&run(&name, json!({})));
        assert_eq!(reserve(&index, &name), Ok(()), "{number}");
    }
}

/// The reconciler that deletes a run removes it before the watch event, which then frees no slot any more.
#[test]
fn active_runs_are_shared_by_weight() {
    let weights = BTreeMap::from([("heavy".to_owned(), 4)]);
    let index = RunIndex::new(10, weights);
    // All wait before any may start, so that none is first.
    let ask = |namespace: &str, number: usize| {
        let run = run_of(namespace, &format!("{namespace}-{number}"), json!({}));
        index.track(&run);
        index.reserve(&run, |_| None)
    };
    for number in 0..10 {
        assert_eq!(ask("first", number), Ok(()));
    }
    for number in 0..20 {
        assert!(ask("light", number).is_err() && ask("heavy", number).is_err());
    }
    for number in 0..10 {
        let name = format!("first-{number}");
        index.track(&run_of("first", &name, json!({ "phase": "Succeeded" })));
    }
    for reference in index.take_runnable() {
        let namespace = reference.namespace.expect("a namespace");
        let run = run_of(&namespace, &reference.name, json!({}));
        assert_eq!(index.reserve(&run, |_| None), Ok(()), "{}", reference.name);
    }
    let of = |namespace: &str| {
        let active = index.active().into_iter();
        let is_its = |reference: &ObjectRef<AgentRun>| reference.namespace.as_deref() == Some(namespace);
        active.filter(is_its).count()
    };
    assert_eq!((of("light"), of("heavy")), (2, 8));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_deleted_leaves_its_place_at_once() {
    let index = index();
    for name in ["a", "b", "c"] {
        index.track(&run(name, json!({})));
        let _ = reserve(&index, name);
    }
    let limit = std::time::Duration::from_secs(1);
    let changed = tokio::time::timeout(limit, index.wait_turns_changed()).await;
    assert!(changed.is_err(), "nothing has changed");
    index.forget("uid-a");
    let changed = tokio::time::timeout(limit, index.wait_turns_changed()).await;
    assert!(changed.is_ok());
    assert_eq!(names(index.take_runnable()), ["c"]);
    assert_eq!(reserve(&index, "c"), Ok(()));
    assert!(!index.forget("uid-a").freed_slot);
}

#[tokio::test(start_paused = true)]
async fn whose_turn_it_is_and_cannot_begin_passes_it_on() {
    type Leave = fn(&RunIndex);
    let ways: [(&str, Leave); 5] = [
        ("it is gone", |index| {
            index.forget("uid-c");
        }),
        ("it lacks something", |index| index.release_slot("uid-c")),
        ("its tree has to wait", |index| {
            let held = index.reserve(&run("c", json!({})), |_| Some("full".to_owned()));
            assert!(held.is_err());
        }),
        ("it is cancelled", |index| {
            index.track(&run("c", json!({ "phase": "Failed" })));
        }),
        ("it is being deleted", |index| {
            let run = run("c", json!({}));
            let mut deleted = AgentRun::clone(&run);
            let time = json!("2026-01-01T00:00:00Z");
            deleted.metadata.deletion_timestamp = serde_json::from_value(time).expect("a time");
            index.track(&run.updated(deleted));
        }),
    ];
    for (what, leave) in ways {
        let index = index();
        for name in ["a", "b", "c", "d"] {
            index.track(&run(name, json!({})));
            let _ = reserve(&index, name);
        }
        index.track(&run("a", json!({ "phase": "Succeeded" })));
        assert_eq!(names(index.take_runnable()), ["c"]);
        leave(&index);
        let changed = index.wait_turns_changed();
        let changed = tokio::time::timeout(std::time::Duration::from_secs(1), changed).await;
        assert!(changed.is_ok(), "{what}");
        let turns = names(index.take_runnable());
        assert!(turns.contains(&"d".to_owned()), "{what}: {turns:?}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Act {
    See(u8, &'static str),
    Reserve(u8),
    GiveBack(u8),
    Forget(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let phases = prop_oneof![Just("Pending"), Just("Running"), Just("Succeeded")];
    prop_oneof![
        3 => (0..12_u8, phases).prop_map(|(run, phase)| Act::See(run, phase)),
        3 => (0..12_u8).prop_map(Act::Reserve),
        1 => (0..12_u8).prop_map(Act::GiveBack),
        1 => (0..12_u8).prop_map(Act::Forget),
    ]
}

proptest! {
    /// The counts equal what there is.
    #[test]
    fn active_runs_are_those_that_stand_as_such(acts in proptest::collection::vec(act(), 0..120)) {
        let index = RunIndex::new(4, BTreeMap::new());
        let of = |number: u8, status| {
            run_of(&format!("team-{}", number % 3), &number.to_string(), status)
        };
        for act in acts {
            match act {
                Act::See(number, phase) => {
                    let mut status = json!({ "phase": phase });
                    if phase == "Running" {
                        status["planDigest"] = json!(format!("sha256:{}", "0".repeat(64)));
                    }
                    index.track(&of(number, status));
                }
                Act::Reserve(number) => {
                    let before = index.active().len();
                    let is_new = index.inner.lock().runs.get(&format!("uid-{number}"))
                        .is_some_and(|run| run.state != RunState::Active);
                    let turn = index.reserve(&of(number, json!({})), |_| None);
                    prop_assert!(!(is_new && turn.is_ok()) || before < 4);
                }
                Act::GiveBack(number) => index.release_slot(&format!("uid-{number}")),
                Act::Forget(number) => {
                    index.forget(&format!("uid-{number}"));
                }
            }
            let inner = index.inner.lock();
            let active = inner.runs.iter().filter(|(_, run)| run.state == RunState::Active);
            let mut counts = HashMap::new();
            for (uid, known) in active.clone() {
                let namespace = known.namespace.clone();
                prop_assert_eq!(inner.active.runs.get(uid), Some(&namespace));
                *counts.entry(namespace).or_insert(0) += 1;
            }
            prop_assert_eq!(active.count(), inner.active.runs.len());
            prop_assert_eq!(&counts, &inner.active.counts);
        }
    }
}
