use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn queue(items: &[(&str, u32)]) -> FairQueue<(String, u32)> {
    let mut queue = FairQueue::default();
    for (namespace, number) in items {
        queue.push(namespace, ((*namespace).to_owned(), *number));
    }
    queue
}

fn popped(queue: &mut FairQueue<(String, u32)>) -> Vec<String> {
    std::iter::from_fn(|| queue.pop()).map(|(namespace, number)| format!("{namespace}{number}")).collect()
}

#[test]
fn namespaces_take_turns_and_each_keeps_its_order() {
    let items = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("c", 1), ("c", 2)];
    let mut queue = queue(&items);
    assert_eq!(queue.len(), 7);
    assert_eq!(popped(&mut queue), ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]);
}

#[test]
fn a_namespace_that_always_comes_anew_does_not_always_come_first() {
    let mut queue = queue(&[("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("c", 2)]);
    let mut order = Vec::new();
    let mut number = 1;
    while let Some((namespace, _)) = queue.pop() {
        if namespace == "b" && number < 4 {
            number += 1;
            queue.push("b", ("b".to_owned(), number));
        }
        order.push(namespace);
    }
    assert_eq!(order.concat(), "abcabcabb");
}

#[test]
fn what_waits_is_there_once_and_can_go() {
    let mut queue = queue(&[("a", 1), ("a", 1), ("a", 2), ("a", 3)]);
    assert_eq!(queue.len(), 3);
    assert!(queue.remove(&("a".to_owned(), 2)) && !queue.remove(&("a".to_owned(), 2)));
    assert_eq!(popped(&mut queue), ["a1", "a3"]);
    assert!(queue.queues.is_empty() && queue.positions.is_empty());
}

#[test]
fn turns_go_to_those_that_have_least() {
    let items: Vec<_> = (0..5).flat_map(|n| [("a", n), ("b", n), ("c", n)]).collect();
    let queue = queue(&items);
    let has = |name: &str| match name {
        "a" => 9,
        "b" => 1,
        _ => 0,
    };
    let turns = queue.peek_next(6, has).into_iter();
    let turns: Vec<_> = turns.map(|(namespace, _)| namespace).collect();
    // Up to what the others have, and then in turns.
    assert_eq!(turns.concat(), "cbcbcb");
    assert_eq!(queue.peek_next(100, has).len(), 15);
    assert_eq!(queue.peek_next(0, has), []);
}

#[test]
fn places_are_shared_by_weight() {
    // Weights, the number of slots, and how many of them each namespace gets.
    type Case = (&'static [(&'static str, u16)], usize, [usize; 2]);
    let cases: [Case; 7] = [
        (&[], 10, [5, 5]),
        (&[("a", 1), ("b", 4)], 10, [2, 8]),
        // A namespace without a weight counts as 1.
        (&[("b", 4)], 10, [2, 8]),
        (&[("a", 3), ("b", 3)], 10, [5, 5]),
        (&[("a", 3), ("b", 2)], 100, [60, 40]),
        (&[("a", 1000), ("b", 999)], 1999, [1000, 999]),
        // A small weight still gets a slot.
        (&[("a", 1), ("b", 1000)], 10, [1, 9]),
    ];
    for (weights, places, expected) in cases {
        let weights = weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight));
        let mut queue = FairQueue::with_weights(weights.collect());
        for number in 0..2000 {
            queue.push("a", ("a", number));
            queue.push("b", ("b", number));
        }
        let turns = queue.peek_next(places, |_| 0);
        let of = |name: &str| turns.iter().filter(|turn| turn.0 == name).count();
        assert_eq!([of("a"), of("b")], expected, "{:?}", queue.weights);
        // The same, one slot at a time, with the resulting counts.
        let mut has = HashMap::from([("a", 0), ("b", 0)]);
        for _ in 0..places {
            let next = queue.peek_next(1, |name| has[name]).pop().unwrap();
            queue.take(&next);
            *has.get_mut(next.0).unwrap() += 1;
        }
        assert_eq!([has["a"], has["b"]], expected, "{:?}", queue.weights);
    }
}

/// Slots that runs of some namespaces take and release, as the index of runs does.
#[derive(Default)]
struct Slots {
    queue: FairQueue<(usize, u32)>,
    active: Vec<(usize, u32)>,
    began: Vec<VecDeque<u32>>,
}

impl Slots {
    fn has(&self, namespace: &str) -> usize {
        let is_its = |(of, _): &&(usize, u32)| of.to_string() == namespace;
        self.active.iter().filter(is_its).count()
    }

    fn fill(&mut self, slots: usize) {
        let free = slots - self.active.len();
        for turn in self.queue.peek_next(free, |name| self.has(name)) {
            self.queue.take(&turn);
            self.active.push(turn);
            self.began[turn.0].push_back(turn.1);
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Arrive(usize),
    End(usize),
}

const NAMESPACES: usize = 4;

proptest! {
    #[test]
    fn slots_are_shared_fairly(
        acts in proptest::collection::vec(
            prop_oneof![
                2 => (0..NAMESPACES).prop_map(Act::Arrive),
                1 => any::<usize>().prop_map(Act::End),
            ],
            0..200,
        ),
        slots in 1..12_usize,
    ) {
        let mut state = Slots { began: vec![VecDeque::new(); NAMESPACES], ..Slots::default() };
        let mut arrived = [0; NAMESPACES];
        for act in acts {
            match act {
                Act::Arrive(namespace) => {
                    arrived[namespace] += 1;
                    state.queue.push(&namespace.to_string(), (namespace, arrived[namespace]));
                }
                Act::End(which) if !state.active.is_empty() => {
                    let which = which % state.active.len();
                    state.active.swap_remove(which);
                }
                Act::End(_) => {}
            }
            let before: Vec<_> = (0..NAMESPACES).map(|namespace| state.has(&namespace.to_string())).collect();
            state.fill(slots);
            // Never more than there are, and none is idle while a run waits.
            prop_assert!(state.active.len() <= slots);
            prop_assert!(state.active.len() == slots || state.queue.len() == 0);
            let after: Vec<_> = (0..NAMESPACES).map(|namespace| state.has(&namespace.to_string())).collect();
            for namespace in 0..NAMESPACES {
                let got = after[namespace] > before[namespace];
                // A namespace that got a slot has at most one more than any that still waits: no namespace holds all
                // slots while another waits for its first.
                for other in 0..NAMESPACES {
                    let other_waits = state.queue.queues.contains_key(&other.to_string());
                    prop_assert!(
                        !(got && other_waits) || after[namespace] <= after[other] + 1,
                        "{before:?} {after:?}"
                    );
                }
            }
        }
        // All runs started in their order, and all start when the active ones end.
        while state.active.pop().is_some() {
            state.fill(slots);
        }
        for (namespace, began) in state.began.iter().enumerate() {
            let expected: Vec<u32> = (1..=arrived[namespace]).collect();
            prop_assert_eq!(began.iter().copied().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn an_item_waits_for_at_most_one_turn_of_each_namespace(
        lengths in proptest::collection::vec(1..40_usize, 1..8),
        late in 0..60_usize,
    ) {
        let mut queue = FairQueue::default();
        for (namespace, length) in lengths.iter().enumerate() {
            for number in 0..*length {
                queue.push(&namespace.to_string(), (namespace, number));
            }
        }
        let mut taken = 0;
        while taken < late && queue.pop().is_some() {
            taken += 1;
        }
        queue.push("single", (usize::MAX, 0));
        let waited = std::iter::from_fn(|| queue.pop()).position(|entry| entry.0 == usize::MAX);
        prop_assert!(waited.is_some_and(|waited| waited <= lengths.len()), "{waited:?}");
    }
}
