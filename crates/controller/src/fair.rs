//! Weighted round robin: what waits is taken from one namespace after the other, so that one that queues thousands does not delay
//! another's single one. A namespace of weight 4 gets four times as much as one of weight 1. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::Hash;

/// The weight of a namespace that has none of its own.
const DEFAULT_WEIGHT: u16 = 1;
/// What one place counts for a namespace of weight 1. Two fractions of places and weights differ by at least one part in
/// [`MAX_WEIGHT`]², so they stay apart when they are rounded to this.
///
/// [`MAX_WEIGHT`]: crate::settings::MAX_WEIGHT
const SCALE: u64 = 1 << 32;

/// What waits, of several namespaces: of each in the order in which it came, and the namespaces in turns.
#[derive(Debug)]
pub struct FairQueue<T> {
    lines: HashMap<String, Line<T>>,
    /// Where each stands: its namespace and its number there.
    places: HashMap<T, (String, u64)>,
    /// Counts what came.
    arrivals: u64,
    /// Counts what was taken.
    turns: u64,
    /// Of namespaces that have another than [`DEFAULT_WEIGHT`].
    weights: BTreeMap<String, u16>,
}

/// What waits of one namespace.
#[derive(Debug)]
struct Line<T> {
    waiting: BTreeMap<u64, T>,
    /// When the namespace had its last turn; one that comes anew has just had it, and waits for the others once.
    served: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { lines: HashMap::new(), places: HashMap::new(), arrivals: 0, turns: 0, weights: BTreeMap::new() }
    }
}

impl<T: Clone + Eq + Hash> FairQueue<T> {
    /// Of nothing, with weights of namespaces.
    pub fn with_weights(weights: BTreeMap<String, u16>) -> Self {
        Self { weights, ..Self::default() }
    }

    /// Has something wait behind what waits of its namespace. What waits already keeps its place. Whether it is new.
    pub fn push(&mut self, namespace: &str, item: T) -> bool {
        if self.places.contains_key(&item) {
            return false;
        }
        self.arrivals += 1;
        let line = self.lines.entry(namespace.to_owned());
        let line = line.or_insert_with(|| Line { waiting: BTreeMap::new(), served: self.turns });
        line.waiting.insert(self.arrivals, item.clone());
        self.places.insert(item, (namespace.to_owned(), self.arrivals));
        true
    }

    /// Takes the first of the namespace that had its turn longest ago.
    pub fn pop(&mut self) -> Option<T> {
        let next = self.turns(1, |_| 0).pop()?;
        self.serve(&next);
        Some(next)
    }

    /// Who would be taken next, if there were room for `count`: always the first of the namespace that has least for its weight, by
    /// what it has now and would have then, and of equals the one whose turn was longest ago.
    pub fn turns(&self, count: usize, has: impl Fn(&str) -> usize) -> Vec<T> {
        let mut heap: BinaryHeap<_> = self
            .lines
            .iter()
            .map(|(name, line)| {
                let has = has(name);
                Reverse((self.load(name, has), line.served, name.as_str(), has))
            })
            .collect();
        let mut rest: HashMap<&str, _> = HashMap::new();
        let mut turns = Vec::new();
        let mut served = self.turns;
        while turns.len() < count
            && let Some(Reverse((_, _, name, has))) = heap.pop()
        {
            let Some(line) = self.lines.get(name) else {
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

    /// What a namespace has, for its weight. Worked out from the whole number each time: rounded steps would add up.
    fn load(&self, namespace: &str, has: usize) -> u64 {
        let weight = self.weights.get(namespace).copied();
        let weight = u64::from(weight.unwrap_or(DEFAULT_WEIGHT).max(1));
        u64::try_from(has).unwrap_or(u64::MAX).saturating_mul(SCALE) / weight
    }

    /// Takes one whose turn it is: its namespace has had one.
    pub fn serve(&mut self, item: &T) {
        self.turns += 1;
        let served = self.turns;
        if let Some((namespace, _)) = self.places.get(item)
            && let Some(line) = self.lines.get_mut(namespace)
        {
            line.served = served;
        }
        self.remove(item);
    }

    /// Forgets one that does not wait any more. Whether it did.
    pub fn remove(&mut self, item: &T) -> bool {
        let Some((namespace, number)) = self.places.remove(item) else {
            return false;
        };
        if let Some(line) = self.lines.get_mut(&namespace) {
            line.waiting.remove(&number);
            if line.waiting.is_empty() {
                self.lines.remove(&namespace);
            }
        }
        true
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests;
