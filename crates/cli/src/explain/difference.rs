//! Compares two sets of runs: the powers that a change adds, and those that it removes.

use std::collections::BTreeMap;

use serde::Serialize;
use sympozium_plan::explain::{Change, Direction, Explanation, Kept, Power, Section, compare};

use crate::page::Page;
use crate::planning::{Planning, Run, RunOutcome};
use crate::validate::ObjectName;

/// The JSON and YAML output. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Differences {
    /// How many powers are added or widened, in all runs.
    added: usize,
    /// Every run that either side has.
    runs: Vec<RunDifference>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunDifference {
    run: ObjectName,
    before: Standing,
    after: Standing,
    changes: Vec<Change>,
    /// How many powers are unchanged.
    kept: Kept,
}

/// What admission says about a run on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Standing {
    Absent,
    Admitted,
    Denied,
    Undecided,
}

impl Standing {
    fn words(self) -> &'static str {
        match self {
            Self::Absent => "not there",
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::Undecided => "not decided",
        }
    }
}

impl Differences {
    /// Whether any run can do more.
    pub fn adds(&self) -> bool {
        self.added > 0
    }
}

/// Runs by kind, namespace and name. Runs with the same `generateName` are numbered.
type Side<'a> = BTreeMap<(String, String, String, usize), &'a Run<Explanation>>;

/// Compares run by run, by kind, namespace and name.
pub fn of(old: &Planning<Explanation>, new: &Planning<Explanation>) -> Differences {
    let (before, after) = (side(old), side(new));
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let runs: Vec<RunDifference> =
        keys.into_iter().filter_map(|key| of_run(before.get(key).copied(), after.get(key).copied())).collect();
    let changes = runs.iter().flat_map(|it| &it.changes);
    Differences { added: changes.filter(|it| it.adds()).count(), runs }
}

fn side(planning: &Planning<Explanation>) -> Side<'_> {
    let mut side = Side::new();
    for run in &planning.runs {
        let ObjectName { kind, namespace, name } = run.name.clone();
        let mut key = (kind, namespace, name, 0);
        while side.contains_key(&key) {
            key.3 += 1;
        }
        side.insert(key, run);
    }
    side
}

fn of_run(before: Option<&Run<Explanation>>, after: Option<&Run<Explanation>>) -> Option<RunDifference> {
    let name = after.or(before)?.name.clone();
    let (changes, kept) = match (explanation(before), explanation(after)) {
        (Some(old), Some(new)) => compared(old, new),
        (None, Some(new)) => (all(new, Direction::Added), Kept(0)),
        (Some(old), None) => (all(old, Direction::Removed), Kept(0)),
        (None, None) => (Vec::new(), Kept(0)),
    };
    Some(RunDifference { run: name, before: standing(before), after: standing(after), changes, kept })
}

/// Compares power by power. A plan with another digest and no listed change counts as widened, because it may still
/// permit more.
fn compared(old: &Explanation, new: &Explanation) -> (Vec<Change>, Kept) {
    let (mut changes, kept) = compare(old, new);
    if changes.is_empty() && old.plan_digest != new.plan_digest {
        changes.push(Change {
            direction: Direction::Widened,
            power: Power {
                section: Section::Limits,
                is_heavy: false,
                of: String::new(),
                what: "something else of the plan".to_owned(),
                value: Some(new.plan_digest.clone()),
                means: Vec::new(),
                rank: None,
                is_detail: false,
            },
            was: Some(old.plan_digest.clone()),
        });
    }
    (changes, kept)
}

fn explanation(run: Option<&Run<Explanation>>) -> Option<&Explanation> {
    match &run?.outcome {
        RunOutcome::Made(explanation) => Some(explanation),
        _ => None,
    }
}

fn standing(run: Option<&Run<Explanation>>) -> Standing {
    match run.map(|it| &it.outcome) {
        None => Standing::Absent,
        Some(RunOutcome::Made(_)) => Standing::Admitted,
        Some(RunOutcome::Denied(_)) => Standing::Denied,
        Some(RunOutcome::Undecided | RunOutcome::Failed(_)) => Standing::Undecided,
    }
}

/// All powers of a run that the other side has nothing to compare with.
fn all(explanation: &Explanation, direction: Direction) -> Vec<Change> {
    let powers = explanation.powers().into_iter();
    powers.map(|power| Change { direction, power, was: None }).collect()
}

/// The differences as text.
pub fn render(differences: &Differences) -> String {
    let mut page = Page::default();
    for run in &differences.runs {
        page.blank();
        of_one(&mut page, run);
    }
    page.finish()
}

fn of_one(page: &mut Page, run: &RunDifference) {
    let ObjectName { kind, namespace, name } = &run.run;
    let title = format!("{kind} {namespace}/{name}");
    match run.before == run.after {
        true => page.line(0, &format!("{title} ({})", run.after.words())),
        false => page.line(0, &format!("{title}: was {}, is {} now", run.before.words(), run.after.words())),
    }
    // For a run that is new only its powers are listed; `explain` prints limits and lifetime.
    let is_told = |section| match (run.before, run.after) {
        (Standing::Admitted, Standing::Admitted) => true,
        (_, Standing::Admitted) => section < Section::Approval,
        _ => false,
    };
    for section in Section::ALL.into_iter().filter(|it| is_told(*it)) {
        let changes = run.changes.iter();
        let changes: Vec<&Change> =
            changes.filter(|it| it.power.section == section && !it.comes_with_another()).collect();
        if changes.is_empty() {
            continue;
        }
        page.line(2, section.title());
        for it in changes {
            change(page, it);
        }
    }
    page.line(2, &counted(run));
}

fn change(page: &mut Page, change: &Change) {
    let Power { of, what, value, means, .. } = &change.power;
    let mark = match change.direction {
        Direction::Added => "+ ",
        Direction::Removed => "- ",
        _ => "~ ",
    };
    let whose = match of.is_empty() {
        true => String::new(),
        false => format!("{of}: "),
    };
    let value = value.as_deref().unwrap_or_default();
    let values = match (&change.was, value) {
        (Some(was), now) => {
            let direction = match change.direction {
                Direction::Widened => " (more)",
                Direction::Narrowed => " (less)",
                _ => "",
            };
            format!(": was {was}, now {now}{direction}")
        }
        (None, "") => String::new(),
        (None, value) => format!(": {value}"),
    };
    page.hanging(4, mark, &format!("{whose}{what}{values}"));
    if change.direction == Direction::Added {
        for consequence in means {
            page.line(8, consequence);
        }
    }
}

fn counted(run: &RunDifference) -> String {
    let count = |which: fn(&Change) -> bool| run.changes.iter().filter(|it| which(it)).count();
    let added = count(Change::adds);
    let made_of = |it: &Change| it.power.section == Section::MadeOf;
    let removed = count(|it| {
        it.power.section != Section::MadeOf
            && !it.comes_with_another()
            && matches!(it.direction, Direction::Removed | Direction::Narrowed)
    });
    let other = run.changes.iter().filter(|it| made_of(it) || it.direction == Direction::Other).count();
    let powers = |count: usize| match count {
        1 => "1 power".to_owned(),
        count => format!("{count} powers"),
    };
    let changes = match other {
        1 => "1 other change".to_owned(),
        count => format!("{count} other changes"),
    };
    format!("{} added or widened, {removed} removed or narrowed, {changes}, {} as before", powers(added), run.kept.0)
}
