//! A queue in which namespaces take turns, so that a namespace with thousands of items does not delay the single item
//! of another. A namespace of weight 4 gets four times as much as one of weight 1. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::Hash;

const DEFAULT_WEIGHT: u16 = 1;
/// The load of one slot for a namespace of weight 1. Two fractions of slots and weights differ by at least one part in
/// [`MAX_WEIGHT`]², so they stay distinct when they are rounded to this.
///
/// [`MAX_WEIGHT`]: crate::settings::MAX_WEIGHT
const LOAD_SCALE: u64 = 1 << 32;

/// Queued items of several namespaces: FIFO within a namespace; namespaces take turns.
#[derive(Debug)]
pub struct FairQueue<T> {
    queues: HashMap<String, NamespaceQueue<T>>,
    /// The position of each item: its namespace and its number there.
    positions: HashMap<T, (String, u64)>,
    /// Number of items that were ever queued.
    arrivals: u64,
    /// Number of items that were ever taken.
    turn_count: u64,
    /// Weights other than [`DEFAULT_WEIGHT`].
    weights: BTreeMap<String, u16>,
}

/// The queued items of one namespace.
#[derive(Debug)]
struct NamespaceQueue<T> {
    waiting: BTreeMap<u64, T>,
    /// Value of the turn counter at the namespace's last turn. A namespace that is new starts with the current value,
    /// and waits for the others once.
    last_turn: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), positions: HashMap::new(), arrivals: 0, turn_count: 0, weights: BTreeMap::new() }
    }
}

impl<T: Clone + Eq + Hash> FairQueue<T> {
    /// An empty queue.
    pub fn with_weights(weights: BTreeMap<String, u16>) -> Self {
        Self { weights, ..Self::default() }
    }

    /// Queues an item behind those of its namespace. An item that is queued already keeps its position. Returns whether
    /// it is new.
    pub fn push(&mut self, namespace: &str, item: T) -> bool {
        if self.positions.contains_key(&item) {
            return false;
        }
        self.arrivals += 1;
        let line = self.queues.entry(namespace.to_owned());
        let line = line.or_insert_with(|| NamespaceQueue { waiting: BTreeMap::new(), last_turn: self.turn_count });
        line.waiting.insert(self.arrivals, item.clone());
        self.positions.insert(item, (namespace.to_owned(), self.arrivals));
        true
    }

    /// Takes the first item of the namespace whose last turn was longest ago.
    pub fn pop(&mut self) -> Option<T> {
        let next = self.peek_next(1, |_| 0).pop()?;
        self.take(&next);
        Some(next)
    }

    /// The items that would be taken next if there were room for `count`: always the first of the namespace with the
    /// least load for its weight, counting what it has now (`has`) and would have then; of equals, the one whose turn
    /// was longest ago.
    pub fn peek_next(&self, count: usize, has: impl Fn(&str) -> usize) -> Vec<T> {
        let mut heap: BinaryHeap<_> = self
            .queues
            .iter()
            .map(|(name, line)| {
                let has = has(name);
                Reverse((self.load(name, has), line.last_turn, name.as_str(), has))
            })
            .collect();
        let mut rest: HashMap<&str, _> = HashMap::new();
        let mut turns = Vec::new();
        let mut served = self.turn_count;
        while turns.len() < count
            && let Some(Reverse((_, _, name, has))) = heap.pop()
        {
            let Some(line) = self.queues.get(name) else {
                continue;
            };
            let rest = rest.entry(name).or_insert_with(|| line.waiting.values());
            if let Some(item) = rest.next() {
                turns.push(item.clone());
                served += 1;
                heap.push(Reverse((self.load(name, has + 1), served, name, has + 1)));
            }
        }
        turns
    }

    /// The load of a namespace, relative to its weight. Computed from the whole number each time: rounded steps would
    /// add up.
    fn load(&self, namespace: &str, has: usize) -> u64 {
        let weight = self.weights.get(namespace).copied();
        let weight = u64::from(weight.unwrap_or(DEFAULT_WEIGHT).max(1));
        u64::try_from(has).unwrap_or(u64::MAX).saturating_mul(LOAD_SCALE) / weight
    }

    /// Takes an item out of order; that counts as a turn of its namespace.
    pub fn take(&mut self, item: &T) {
        self.turn_count += 1;
        let served = self.turn_count;
        if let Some((namespace, _)) = self.positions.get(item)
            && let Some(line) = self.queues.get_mut(namespace)
        {
            line.last_turn = served;
        }
        self.remove(item);
    }

    /// Removes an item without counting a turn. Returns whether it was queued.
    pub fn remove(&mut self, item: &T) -> bool {
        let Some((namespace, number)) = self.positions.remove(item) else {
            return false;
        };
        if let Some(line) = self.queues.get_mut(&namespace) {
            line.waiting.remove(&number);
            if line.waiting.is_empty() {
                self.queues.remove(&namespace);
            }
        }
        true
    }

    pub fn len(&self) -> usize {
        self.positions.len()
    }
}

#[cfg(test)]
mod tests;
