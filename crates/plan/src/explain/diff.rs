//! What a change adds to the powers of a run, and what it removes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Explanation;
use super::powers::{Power, Section};

/// The change of one power.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Whether it is more or less than before.
    pub direction: Direction,
    /// The new power, or the old one when it was removed.
    #[serde(flatten)]
    pub power: Power,
    /// The old value, when the power has another one now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}

/// Whether a change adds or removes power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// The power is new.
    Added,
    /// The power is larger than before.
    Widened,
    /// The power is different, and neither larger nor smaller.
    Other,
    /// The power is smaller than before.
    Narrowed,
    /// The power is gone.
    Removed,
}

/// The number of powers that did not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Unchanged(pub usize);

impl Change {
    /// Whether the run may do more after this change. Code and texts of the run give no power by themselves.
    pub fn adds_power(&self) -> bool {
        self.power.section != Section::MadeOf
            && !self.is_implied()
            && matches!(self.direction, Direction::Added | Direction::Widened)
    }
}

impl Change {
    /// Whether it is a detail of something that is itself reported as added or removed.
    pub fn is_implied(&self) -> bool {
        self.power.is_detail && matches!(self.direction, Direction::Added | Direction::Removed)
    }
}

/// Every power that changed, ordered by section, the most dangerous first, and in it the added ones first; and the
/// number of those that did not change.
///
/// The added, changed and unchanged ones together are all powers of the new explanation.
pub fn compare(old: &Explanation, new: &Explanation) -> (Vec<Change>, Unchanged) {
    let (old, new) = (old.powers(), new.powers());
    let by_key: BTreeMap<_, &Power> = old.iter().map(|power| (power.key(), power)).collect();
    let mut changes = Vec::new();
    let mut kept = 0;
    for power in &new {
        let Some(before) = by_key.get(&power.key()) else {
            changes.push(change(Direction::Added, power, None));
            continue;
        };
        if before.value == power.value {
            kept += 1;
            continue;
        }
        let direction = match (before.rank, power.rank) {
            (Some(before), Some(now)) if now > before => Direction::Widened,
            (Some(before), Some(now)) if now < before => Direction::Narrowed,
            // Another value of the same rank may isolate less.
            (Some(_), Some(_)) if power.section == Section::Isolation => Direction::Widened,
            // Two notations of one quantity.
            (Some(_), Some(_)) => Direction::Other,
            // A bound that cannot be compared may be wider.
            _ if power.section != Section::MadeOf => Direction::Widened,
            _ => Direction::Other,
        };
        changes.push(change(direction, power, before.value.clone()));
    }
    let now: BTreeMap<_, &Power> = new.iter().map(|power| (power.key(), power)).collect();
    let gone = old.iter().filter(|power| !now.contains_key(&power.key()));
    changes.extend(gone.map(|power| change(Direction::Removed, power, None)));
    changes.sort_by(|a, b| {
        let order = |change: &Change| (change.power.section, change.direction, !change.power.is_severe);
        order(a).cmp(&order(b)).then_with(|| a.power.key().cmp(&b.power.key()))
    });
    (changes, Unchanged(kept))
}

fn change(direction: Direction, power: &Power, was: Option<String>) -> Change {
    Change { direction, power: power.clone(), was }
}
