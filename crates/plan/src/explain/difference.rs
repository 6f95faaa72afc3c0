//! What a change adds to what a run may do, and what it takes away.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Explanation;
use super::powers::{Power, Section};

/// What became of one power.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// More or less.
    pub direction: Direction,
    /// The power as it is now, or as it was when it is gone.
    #[serde(flatten)]
    pub power: Power,
    /// The value that it had, when it has another one now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}

/// Whether a change gives or takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// It was not there.
    Added,
    /// It is more than it was.
    Widened,
    /// It is something else, and neither more nor less.
    Other,
    /// It is less than it was.
    Narrowed,
    /// It is not there any more.
    Removed,
}

/// How many powers are what they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Kept(pub usize);

impl Change {
    /// Whether the run may do more by it. What it is made of gives no power by itself.
    pub fn adds(&self) -> bool {
        self.power.section != Section::MadeOf
            && !self.comes_with_another()
            && matches!(self.direction, Direction::Added | Direction::Widened)
    }
}

impl Change {
    /// Whether it is a detail of something that is told as new or gone itself.
    pub fn comes_with_another(&self) -> bool {
        self.power.is_detail && matches!(self.direction, Direction::Added | Direction::Removed)
    }
}

/// Every power that changed, the most dangerous section first, in it what is added first; and how many did not change.
///
/// What was added or changed, with what did not, is all that the new one has.
pub fn compare(old: &Explanation, new: &Explanation) -> (Vec<Change>, Kept) {
    let (old, new) = (old.powers(), new.powers());
    let by_key: BTreeMap<_, &Power> = old.iter().map(|it| (it.key(), it)).collect();
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
            // Another one of its kind may hold less.
            (Some(_), Some(_)) if power.section == Section::Isolation => Direction::Widened,
            // Two ways to write one amount.
            (Some(_), Some(_)) => Direction::Other,
            // A bound that cannot be compared may be more.
            _ if power.section != Section::MadeOf => Direction::Widened,
            _ => Direction::Other,
        };
        changes.push(change(direction, power, before.value.clone()));
    }
    let now: BTreeMap<_, &Power> = new.iter().map(|it| (it.key(), it)).collect();
    let gone = old.iter().filter(|it| !now.contains_key(&it.key()));
    changes.extend(gone.map(|it| change(Direction::Removed, it, None)));
    changes.sort_by(|a, b| {
        let order = |it: &Change| (it.power.section, it.direction, !it.power.is_heavy);
        order(a).cmp(&order(b)).then_with(|| a.power.key().cmp(&b.power.key()))
    });
    (changes, Kept(kept))
}

fn change(direction: Direction, power: &Power, was: Option<String>) -> Change {
    Change { direction, power: power.clone(), was }
}
