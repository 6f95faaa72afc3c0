//! Checks whether the runs would be admitted, with the same function as in a cluster and the objects that the files
//! have.
//!
//! Objects that are not among the files cannot deny anything: a missing policy or pack is left out, and for a run
//! without its agent only its own fields are checked. What a missing policy could allow is a warning and not a denial.
//! So a denial is certain for these objects as they are: the cluster denies the run too. A run with a missing object is
//! counted as undecided.

mod case;
mod openings;
mod place;
mod shipped;
mod store;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_api::{AgentRun, AgentRunSpec, SympoziumPolicy};
use sympozium_plan::admit::{
    Admitted, Decision, Denied, Input, Reason, Rights, Settings, Subject, admit, admit_agent, admit_model, admit_pack,
    admit_policy, admit_schedule,
};

use super::Beyond;
use super::finding::{Finding, Findings, ObjectName, Stage, Verdict};
use super::object::Object;
use super::references::Completeness;
use crate::built_in;
use crate::kinds::Kind;
use crate::manifests::limits::MAX_RUNS;
use crate::manifests::problem::Problem;
use crate::origin::ResolvedFrom;
use case::Case;
use openings::{KnownFloor, Unknown};
use place::Places;
use shipped::Among;
use store::Store;

/// Which policy is the policy floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// The policy `floor` of the system namespace, if it is among the files; the shipped one if the files are complete.
    AmongTheFiles,
    /// The policy in this file, by its index.
    InFile(usize),
    /// There is none.
    Absent,
}

/// Stands for the suffix that the API server generates for a name.
const GENERATED: &str = "xxxxx";

/// Which runs are checked, and for which purpose.
pub struct Demand<'d> {
    /// Only runs of this name; all runs, and agents without any, when absent.
    pub run: Option<&'d str>,
    /// The UID of runs that have none of their own.
    pub uid: Option<&'d str>,
    pub purpose: Purpose<'d>,
}

pub enum Purpose<'d> {
    /// To report findings. Missing objects were reported when references were resolved.
    Check,
    /// To use the admitted runs. A missing object is an error, because the run cannot be planned without it.
    Use(&'d mut dyn FnMut(&Judged<'_>)),
}

/// A run with the decision about it.
pub struct Judged<'c> {
    /// The run's name, or that of the agent that it was made up for.
    pub name: &'c ObjectName,
    /// Whether the files have no such run.
    pub is_imagined: bool,
    /// Where its policy and its packs came from.
    pub origins: Vec<ResolvedFrom>,
    pub outcome: Outcome<'c>,
}

pub enum Outcome<'c> {
    Admitted(&'c Input<'c>, &'c Admitted<'c>),
    Denied(&'c [Reason]),
    /// An object that decides about it is missing.
    Undecided,
}

impl Demand<'_> {
    /// Every run, to report findings.
    pub const EVERYTHING: Self = Self { run: None, uid: None, purpose: Purpose::Check };
}

/// Checks every object of our kinds that can be parsed, and returns the number of undecided runs.
pub fn check(
    objects: &[Object],
    files: &[String],
    floor: Floor,
    beyond: Beyond,
    completeness: Completeness,
    demand: Demand<'_>,
    findings: &mut Findings,
) -> usize {
    let store = Store::of(objects, files, beyond, findings);
    // Complete files are an installation with the floor that it ships. The same holds for callers that use the runs.
    let is_whole = completeness == Completeness::Complete || demand.is_for_use();
    let shipped = match floor {
        Floor::AmongTheFiles if is_whole && beyond != Beyond::Cluster => built_in::floor(),
        _ => None,
    };
    let mut judge = Judge {
        objects,
        files,
        beyond,
        floor: find_floor(objects, &store, floor, shipped.as_ref()),
        settings: Settings::default(),
        by_name: place::by_name(objects),
        told: HashSet::new(),
        runs_left: MAX_RUNS,
        undecided: 0,
        demand,
        findings,
    };
    judge.judge_alone(&store);
    // Agents only if every run was checked: both share one bound.
    if judge.judge_runs(&store) && judge.demand.run.is_none() {
        judge.judge_agents(&store);
    }
    judge.undecided
}

impl Demand<'_> {
    fn is_for_use(&self) -> bool {
        matches!(self.purpose, Purpose::Use(_))
    }

    /// The run as a cluster would have stored it, if a UID was given.
    fn stored<'r>(&self, run: &'r AgentRun) -> Cow<'r, AgentRun> {
        let Some(uid) = self.uid else {
            return Cow::Borrowed(run);
        };
        let mut run = run.clone();
        let metadata = &mut run.metadata;
        metadata.uid.get_or_insert_with(|| uid.to_owned());
        if let (None, Some(start)) = (&metadata.name, &metadata.generate_name) {
            metadata.name = Some(format!("{start}{GENERATED}"));
        }
        Cow::Owned(run)
    }
}

fn find_floor<'s>(
    objects: &[Object],
    store: &'s Store,
    floor: Floor,
    shipped: Option<&'s SympoziumPolicy>,
) -> KnownFloor<'s> {
    if floor == Floor::Absent {
        return KnownFloor::Absent;
    }
    let is_floor = |object: &Object| match floor {
        Floor::Absent => false,
        Floor::InFile(file) => object.file == file,
        Floor::AmongTheFiles => {
            let name = &object.name;
            object.is(Kind::SympoziumPolicy) && name.name == FLOOR_POLICY && name.namespace == SYSTEM_NAMESPACE
        }
    };
    let mut policies = store.policies.values();
    if let Some((_, policy)) = policies.find(|(index, _)| is_floor(&objects[*index])) {
        return KnownFloor::Is(&policy.spec);
    }
    // A floor that is among the files and cannot be parsed is not replaced by the shipped one.
    let is_among_them = objects.iter().any(is_floor);
    shipped.filter(|_| !is_among_them).map_or(KnownFloor::Unknown, |policy| KnownFloor::Is(&policy.spec))
}

struct Judge<'a, 'd> {
    objects: &'a [Object],
    files: &'a [String],
    beyond: Beyond,
    floor: KnownFloor<'a>,
    settings: Settings,
    by_name: HashMap<place::Name<'a>, usize>,
    /// Findings that were added already: two runs with one pack have the same findings about it.
    told: HashSet<(usize, String, &'static str, String)>,
    runs_left: usize,
    undecided: usize,
    demand: Demand<'d>,
    findings: &'a mut Findings,
}

impl Judge<'_, '_> {
    /// Checks packs, policies and agents by themselves.
    fn judge_alone(&mut self, store: &Store) {
        for (index, pack) in sorted(store.packs.values()) {
            let namespace = &self.objects[*index].name.namespace;
            let denied = admit_pack(pack, Some(namespace), None);
            self.tell_certain(&denied.reasons, &denied.warnings, &Places::of(*index));
        }
        for (index, policy) in sorted(store.policies.values()) {
            let denied = admit_policy(&self.subject(*index, "SympoziumPolicy"), &policy.spec);
            self.tell_certain(&denied.reasons, &denied.warnings, &Places::of(*index));
        }
        for (index, model) in sorted(store.models.values()) {
            let denied = admit_model(&self.subject(*index, "Model"), &model.spec);
            self.tell_certain(&denied.reasons, &denied.warnings, &Places::of(*index));
        }
        for (index, schedule) in sorted(store.schedules.values()) {
            let subject = self.subject(*index, "SympoziumSchedule");
            let denied = admit_schedule(&subject, &schedule.spec);
            self.tell_certain(&denied.reasons, &denied.warnings, &Places::of(*index));
        }
        let agents = store.agents.values().map(|(index, it)| (*index, "Agent", &it.spec));
        let instances = store.instances.values().map(|(index, it)| (*index, "SympoziumInstance", &it.spec));
        let mut all: Vec<_> = agents.chain(instances).collect();
        all.sort_by_key(|(index, _, _)| *index);
        for (index, kind, spec) in all {
            // Duplicate names were reported when references were resolved.
            let denied = admit_agent(&self.subject(index, kind), spec, false);
            self.tell_certain(&denied.reasons, &denied.warnings, &Places::of(index));
        }
    }

    fn subject(&self, index: usize, kind: &'static str) -> Subject {
        let name = &self.objects[index].name;
        Subject::new(kind, Some(&name.namespace), &name.name)
    }

    /// Returns whether all runs were checked.
    fn judge_runs(&mut self, store: &Store) -> bool {
        for (index, run) in &store.runs {
            let name = &self.objects[*index].name;
            if self.demand.run.is_some_and(|wanted| wanted != name.name) {
                continue;
            }
            if !self.may_judge(*index) {
                return false;
            }
            let run = self.demand.stored(run);
            let places = Places::of(*index).with_agent(store.agent_index(&name.namespace, &run));
            let is_undecided = self.judge_run(store, &run, *index, &places);
            self.undecided += usize::from(is_undecided);
        }
        true
    }

    /// Counts a run against the bound; reports a finding and returns false when there are too many.
    fn may_judge(&mut self, index: usize) -> bool {
        if let Some(left) = self.runs_left.checked_sub(1) {
            self.runs_left = left;
            return true;
        }
        let object = &self.objects[index];
        let message = format!("more than {MAX_RUNS} runs and agents; from here on none is judged");
        let problem = Problem::error("too-large", object.node.at, message).hint("check the files in several calls");
        self.findings.add(Finding {
            stage: Stage::Admission,
            object: Some(object.name.clone()),
            ..Finding::of_file(&self.files[object.file], problem)
        });
        false
    }

    /// Checks each agent without a run among the files by the simplest run that it can have.
    fn judge_agents(&mut self, store: &Store) {
        for (index, name) in store.agents_without_runs(self.objects) {
            if !self.may_judge(index) {
                return;
            }
            let run = AgentRun::new(
                name,
                AgentRunSpec {
                    agent_ref: Some(name.into()),
                    task: Some(sympozium_api::agent_run::Task::Text(String::from("Check."))),
                    ..AgentRunSpec::default()
                },
            );
            let run = self.demand.stored(&run);
            self.judge_run(store, &run, index, &Places::of_agent(index));
        }
    }

    /// Reports the findings about one run, and returns whether it is undecided.
    fn judge_run(&mut self, store: &Store, run: &AgentRun, index: usize, places: &Places) -> bool {
        let name = &self.objects[index].name;
        let settings = self.settings.clone();
        // Authors are not recorded. On this machine no rights are granted, and a run that asks for some is refused for that.
        let unknown = Rights::of_unknown_author(self.floor.spec(), &name.namespace);
        let author = Some(&unknown).filter(|_| self.beyond != Beyond::Machine);
        let case = Case::of(store, run, &name.namespace, author);
        let input = case.input(self.floor.spec(), &settings);
        let decision = admit(&input);
        let (reasons, warnings) = match &decision {
            Decision::Admitted(admitted) => (&[][..], admitted.warnings.as_slice()),
            Decision::Denied(Denied { reasons, warnings }) => (reasons.as_slice(), warnings.as_slice()),
        };
        let among = Among { objects: self.objects, files: self.files };
        let reasons = shipped::reasons(&case, run, &name.namespace, reasons, among);
        let policies = case.found_policy.candidates;
        let unknown = Unknown::of(run, case.agents, policies, self.floor);
        let is_doubtful = self.tell(&reasons, warnings, places, &unknown);
        let is_undecided = is_doubtful || reasons.iter().any(|reason| reason.missing.is_some());
        if let Purpose::Use(look) = &mut self.demand.purpose {
            let outcome = match &decision {
                Decision::Admitted(admitted) if reasons.is_empty() => Outcome::Admitted(&input, admitted),
                _ if is_undecided => Outcome::Undecided,
                _ => Outcome::Denied(&reasons),
            };
            look(&Judged { name, is_imagined: places.is_imagined(), origins: shipped::origins(&case, among), outcome });
        }
        is_undecided
    }

    /// Reports violations that no unknown policy could lift.
    fn tell_certain(&mut self, reasons: &[Reason], warnings: &[Reason], places: &Places) {
        self.tell(reasons, warnings, places, &Unknown::nothing());
    }

    /// Reports violations and warnings, and returns whether a violation is uncertain because of an unknown object.
    fn tell(&mut self, reasons: &[Reason], warnings: &[Reason], places: &Places, unknown: &Unknown) -> bool {
        let mut is_doubtful = false;
        for (severity, reasons) in [(Verdict::Denied, reasons), (Verdict::Warning, warnings)] {
            for reason in reasons {
                if reason.missing.is_some() {
                    // Otherwise it was reported when references were resolved.
                    if self.demand.is_for_use() {
                        let remedy = format!("name the file with it too; or {}", reason.remedy);
                        let missing = Reason { remedy, ..reason.clone() };
                        self.tell_one(Verdict::Error, &missing, places);
                    }
                    continue;
                }
                if !places.can_tell(reason, self.objects) {
                    continue;
                }
                let doubt = unknown.doubt(reason).filter(|_| severity == Verdict::Denied);
                let Some(doubt) = doubt else {
                    self.tell_one(severity, reason, places);
                    continue;
                };
                is_doubtful = true;
                let doubtful = Reason { message: doubt.message, remedy: doubt.hint, ..reason.clone() };
                let severity = match self.demand.is_for_use() {
                    true => Verdict::Error,
                    false => Verdict::Warning,
                };
                self.tell_one(severity, &doubtful, places);
            }
        }
        is_doubtful
    }

    fn tell_one(&mut self, severity: Verdict, reason: &Reason, places: &Places) {
        let place = places.find(reason, self.objects, &self.by_name);
        let object = &self.objects[place.object];
        // A field that an invalid object lacks may be one that is misspelt in it.
        if !object.is_sound && object.node.find(&place.field).is_none() {
            return;
        }
        let key = (place.object, place.field.clone(), reason.rule, reason.message.clone());
        if !self.told.insert(key) {
            return;
        }
        self.findings.add(Finding {
            severity,
            stage: Stage::Admission,
            rule: reason.rule.to_owned(),
            file: self.files[object.file].clone(),
            line: place.at.line,
            column: place.at.column,
            object: Some(object.name.clone()),
            field: place.field,
            message: reason.message.clone(),
            hint: Some(reason.remedy.clone()).filter(|remedy| !remedy.is_empty()),
        });
    }
}

/// In the order of the files.
fn sorted<'a, K: 'a>(found: impl Iterator<Item = &'a (usize, K)>) -> Vec<&'a (usize, K)> {
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|(index, _)| *index);
    found
}
