//! Whose turn it is.

use serde_json::json;

use super::*;

fn run(name: &str, status: serde_json::Value) -> AgentRun {
    let run = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
        "metadata": { "name": name, "namespace": "team", "uid": format!("uid-{name}") },
        "spec": { "agentRef": "a", "task": "t" },
        "status": status,
    });
    serde_json::from_value(run).expect("a run")
}

/// At most two at a time.
fn reserve(index: &Index, name: &str) -> Result<(), Turn> {
    index.reserve(&run(name, json!({})), |active| (active.len() >= 2).then(|| Turn::OfCluster("full".to_owned())))
}

fn names(references: Vec<ObjectRef<AgentRun>>) -> Vec<String> {
    let mut names: Vec<String> = references.into_iter().map(|it| it.name).collect();
    names.sort();
    names
}

#[test]
fn of_many_that_come_at_once_as_many_begin_as_may() {
    let index = Index::default();
    for name in ["a", "b", "c", "d"] {
        index.see(&run(name, json!({})));
    }
    let full = Err(Turn::OfCluster("full".to_owned()));
    assert_eq!(reserve(&index, "a"), Ok(()));
    assert_eq!(reserve(&index, "b"), Ok(()));
    assert_eq!(reserve(&index, "c"), full);
    // The watch shows the first as it was before it began: it has its turn all the same.
    index.see(&run("a", json!({})));
    assert_eq!(reserve(&index, "d"), full);
    assert_eq!(names(index.active()), ["a", "b"]);
    // It does not need another.
    assert_eq!(reserve(&index, "a"), Ok(()));

    // One ends: the one that waits longest is next.
    let over = index.see(&run("a", json!({ "phase": "Succeeded" })));
    assert!(over.made_room && !over.has_settled);
    assert_eq!(names(index.take_turns()), ["c"]);
    assert_eq!(reserve(&index, "c"), Ok(()));
    assert_eq!(reserve(&index, "d"), full);
    // What is over is nobody's turn, and does not wait for anything.
    assert_eq!(names(index.waiting()), ["d"]);
    // It is not told twice that there is room.
    assert!(!index.see(&run("a", json!({ "phase": "Succeeded" }))).made_room);
}

#[test]
fn a_turn_that_cannot_be_used_is_given_back() {
    let index = Index::default();
    assert_eq!(reserve(&index, "a"), Ok(()));
    assert_eq!(reserve(&index, "b"), Ok(()));
    index.give_back("uid-a");
    assert_eq!(reserve(&index, "c"), Ok(()));
    // One that began for good does not give anything back by seeing it.
    index.see(&run("b", json!({ "planDigest": format!("sha256:{}", "0".repeat(64)) })));
    index.give_back("uid-b");
    index.see(&run("b", json!({ "planDigest": format!("sha256:{}", "0".repeat(64)) })));
    assert_eq!(names(index.active()), ["b", "c"]);
}

#[test]
fn one_that_went_keeps_nobody_from_its_turn() {
    let index = Index::default();
    for name in ["a", "b", "c", "d"] {
        index.see(&run(name, json!({})));
        let _ = reserve(&index, name);
    }
    assert!(!index.forget("uid-c").made_room);
    assert!(index.forget("uid-a").made_room);
    assert_eq!(names(index.take_turns()), ["d"]);
}

#[test]
fn those_of_a_tree_are_all_asked_again() {
    let index = Index::default();
    for name in ["a", "b"] {
        index.see(&run(name, json!({})));
        let held = index.reserve(&run(name, json!({})), |_| Some(Turn::OfTree("full".to_owned())));
        assert!(held.is_err());
    }
    assert_eq!(names(index.take_turns()), ["a", "b"]);
    assert_eq!(names(index.take_turns()), [""; 0]);
}
