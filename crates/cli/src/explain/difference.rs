//! Compares two sets of runs: the powers that a change adds, and those that it removes.

use std::collections::BTreeMap;

use serde::Serialize;
use sympozium_manifests::planning::{PlanResults, PlannedRun, RunResult};
use sympozium_manifests::validate::ObjectName;
use sympozium_plan::explain::{Change, Direction, Explanation, Power, Section, Unchanged, compare};

use crate::page::Page;

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
    before: DiffState,
    after: DiffState,
    changes: Vec<Change>,
    /// How many powers are unchanged.
    kept: Unchanged,
}

/// The decision of admission about a run on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum DiffState {
    Absent,
    Admitted,
    Denied,
    Undecided,
}

impl DiffState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::Undecided => "not decided",
        }
    }
}

impl Differences {
    /// Whether any run can do more.
    pub fn has_additions(&self) -> bool {
        self.added > 0
    }
}

/// Runs by kind, namespace and name. Runs with the same `generateName` are numbered.
type RunIndex<'a> = BTreeMap<(String, String, String, usize), &'a PlannedRun<Explanation>>;

/// Compares run by run, by kind, namespace and name.
pub fn compare_runs(old: &PlanResults<Explanation>, new: &PlanResults<Explanation>) -> Differences {
    let (before, after) = (index_runs(old), index_runs(new));
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let runs: Vec<RunDifference> =
        keys.into_iter().filter_map(|key| compare_run(before.get(key).copied(), after.get(key).copied())).collect();
    let changes = runs.iter().flat_map(|it| &it.changes);
    Differences { added: changes.filter(|it| it.adds_power()).count(), runs }
}

fn index_runs(planning: &PlanResults<Explanation>) -> RunIndex<'_> {
    let mut side = RunIndex::new();
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

fn compare_run(
    before: Option<&PlannedRun<Explanation>>,
    after: Option<&PlannedRun<Explanation>>,
) -> Option<RunDifference> {
    let name = after.or(before)?.name.clone();
    let (changes, kept) = match (explanation(before), explanation(after)) {
        (Some(old), Some(new)) => compare_powers(old, new),
        (None, Some(new)) => (all_powers(new, Direction::Added), Unchanged(0)),
        (Some(old), None) => (all_powers(old, Direction::Removed), Unchanged(0)),
        (None, None) => (Vec::new(), Unchanged(0)),
    };
    Some(RunDifference { run: name, before: diff_state(before), after: diff_state(after), changes, kept })
}

/// Compares power by power. A plan with another digest and no listed change counts as widened, because it may still
/// permit more.
fn compare_powers(old: &Explanation, new: &Explanation) -> (Vec<Change>, Unchanged) {
    let (mut changes, kept) = compare(old, new);
    if changes.is_empty() && old.plan_digest != new.plan_digest {
        changes.push(Change {
            direction: Direction::Widened,
            power: Power {
                section: Section::Limits,
                is_severe: false,
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

fn explanation(run: Option<&PlannedRun<Explanation>>) -> Option<&Explanation> {
    match &run?.result {
        RunResult::Admitted(explanation) => Some(explanation),
        _ => None,
    }
}

fn diff_state(run: Option<&PlannedRun<Explanation>>) -> DiffState {
    match run.map(|it| &it.result) {
        None => DiffState::Absent,
        Some(RunResult::Admitted(_)) => DiffState::Admitted,
        Some(RunResult::Denied(_)) => DiffState::Denied,
        Some(RunResult::Undecided | RunResult::Failed(_)) => DiffState::Undecided,
    }
}

/// All powers of a run that the other side has nothing to compare with.
fn all_powers(explanation: &Explanation, direction: Direction) -> Vec<Change> {
    let powers = explanation.powers().into_iter();
    powers.map(|power| Change { direction, power, was: None }).collect()
}

/// The differences as text.
pub fn render(differences: &Differences) -> String {
    let mut page = Page::default();
    for run in &differences.runs {
        page.blank_line();
        add_run(&mut page, run);
    }
    page.finish()
}

fn add_run(page: &mut Page, run: &RunDifference) {
    let ObjectName { kind, namespace, name } = &run.run;
    let title = format!("{kind} {namespace}/{name}");
    match run.before == run.after {
        true => page.paragraph(0, &format!("{title} ({})", run.after.as_str())),
        false => page.paragraph(0, &format!("{title}: was {}, is {} now", run.before.as_str(), run.after.as_str())),
    }
    // For a run that is new only its powers are listed; `explain` prints limits and lifetime.
    let is_listed = |section| match (run.before, run.after) {
        (DiffState::Admitted, DiffState::Admitted) => true,
        (_, DiffState::Admitted) => section < Section::Approval,
        _ => false,
    };
    for section in Section::ALL.into_iter().filter(|it| is_listed(*it)) {
        let changes = run.changes.iter();
        let changes: Vec<&Change> = changes.filter(|it| it.power.section == section && !it.is_implied()).collect();
        if changes.is_empty() {
            continue;
        }
        page.paragraph(2, section.title());
        for it in changes {
            add_change(page, it);
        }
    }
    page.paragraph(2, &summary_line(run));
}

fn add_change(page: &mut Page, change: &Change) {
    let Power { of, what, value, means, .. } = &change.power;
    let mark = match change.direction {
        Direction::Added => "+ ",
        Direction::Removed => "- ",
        _ => "~ ",
    };
    let owner = match of.is_empty() {
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
    page.list_item(4, mark, &format!("{owner}{what}{values}"));
    if change.direction == Direction::Added {
        for consequence in means {
            page.paragraph(8, consequence);
        }
    }
}

fn summary_line(run: &RunDifference) -> String {
    let count = |which: fn(&Change) -> bool| run.changes.iter().filter(|it| which(it)).count();
    let added = count(Change::adds_power);
    let made_of = |it: &Change| it.power.section == Section::MadeOf;
    let removed = count(|it| {
        it.power.section != Section::MadeOf
            && !it.is_implied()
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
