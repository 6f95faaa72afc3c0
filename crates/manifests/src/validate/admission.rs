//! Checks whether the runs would be admitted, with the same function as in a cluster and the objects that the files
//! have.
//!
//! Objects that are not among the files cannot deny anything: a missing policy or pack is left out, and for a run
//! without its agent only its own fields are checked. What a missing policy could allow is a warning and not a denial.
//! So a denial is certain for these objects as they are: the cluster denies the run too. A run with a missing object is
//! counted as undecided.

mod location;
mod object_index;
mod resolve;
mod shipped;
mod uncertainty;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_api::origin::ObjectOrigin;
use sympozium_api::{AgentRun, AgentRunSpec, SympoziumPolicy};
use sympozium_plan::admit::{
    Admitted, Decision, Denial, Input, Settings, Subject, Violation, admit, admit_agent, admit_model, admit_pack,
    admit_policy, admit_schedule,
};
use sympozium_plan::resolve::Authors;

use super::ExternalObjects;
use super::finding::{Finding, FindingSeverity, Findings, ObjectName, ValidationStage};
use super::object::Object;
use super::references::Completeness;
use crate::built_in;
use crate::kinds::Kind;
use crate::limits::MAX_RUNS;
use crate::problem::Problem;
use location::FieldLocator;
use object_index::ObjectIndex;
use resolve::{FileObjects, ResolvedRun};
use shipped::LoadedObjects;
use uncertainty::{KnownFloor, UnknownObjects};

/// Which policy is the policy floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorSource {
    /// The policy `floor` of the system namespace, if it is among the files; the shipped one if the files are complete.
    InFiles,
    /// The policy in this file, by its index.
    InFile(usize),
    /// There is none.
    Absent,
}

/// Stands for the suffix that the API server generates for a name.
const GENERATED_SUFFIX: &str = "xxxxx";

/// Which runs are checked, and for which purpose.
pub struct CheckOptions<'d> {
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
    Use(&'d mut dyn FnMut(&CheckedRun<'_>)),
}

/// A run with the decision about it.
pub struct CheckedRun<'c> {
    /// The run's name, or that of the agent that it was made up for.
    pub name: &'c ObjectName,
    /// Whether the files have no such run.
    pub is_assumed: bool,
    /// Where its policy and its packs came from.
    pub origins: Vec<ObjectOrigin>,
    pub decision: RunDecision<'c>,
}

pub enum RunDecision<'c> {
    Admitted(&'c Input<'c>, &'c Admitted<'c>),
    Denied(&'c [Violation]),
    /// An object that decides about it is missing.
    Undecided,
}

impl CheckOptions<'_> {
    /// Every run, to report findings.
    pub const ALL_RUNS: Self = Self { run: None, uid: None, purpose: Purpose::Check };
}

/// Checks every object of our kinds that can be parsed, and returns the number of undecided runs.
pub fn check(
    objects: &[Object],
    files: &[String],
    floor: FloorSource,
    beyond: ExternalObjects,
    completeness: Completeness,
    demand: CheckOptions<'_>,
    findings: &mut Findings,
) -> usize {
    let store = ObjectIndex::build(objects, files, beyond, findings);
    // Complete files are an installation with the floor that it ships. The same holds for callers that use the runs.
    let is_whole = completeness == Completeness::Complete || demand.is_for_use();
    let shipped = match floor {
        FloorSource::InFiles if is_whole && beyond != ExternalObjects::Cluster => built_in::floor(),
        _ => None,
    };
    let mut judge = AdmissionChecker {
        objects,
        files,
        beyond,
        floor: find_floor(objects, &store, floor, shipped.as_ref()),
        settings: Settings::default(),
        by_name: location::index_by_name(objects),
        reported: HashSet::new(),
        runs_left: MAX_RUNS,
        undecided: 0,
        options: demand,
        findings,
    };
    judge.check_objects(&store);
    // Agents only if every run was checked: both share one bound.
    if judge.check_runs(&store) && judge.options.run.is_none() {
        judge.check_agents(&store);
    }
    judge.undecided
}

impl CheckOptions<'_> {
    fn is_for_use(&self) -> bool {
        matches!(self.purpose, Purpose::Use(_))
    }

    /// The run as a cluster would have stored it, if a UID was given.
    fn as_stored<'r>(&self, run: &'r AgentRun) -> Cow<'r, AgentRun> {
        let Some(uid) = self.uid else {
            return Cow::Borrowed(run);
        };
        let mut run = run.clone();
        let metadata = &mut run.metadata;
        metadata.uid.get_or_insert_with(|| uid.to_owned());
        if let (None, Some(start)) = (&metadata.name, &metadata.generate_name) {
            metadata.name = Some(format!("{start}{GENERATED_SUFFIX}"));
        }
        Cow::Owned(run)
    }
}

fn find_floor<'s>(
    objects: &[Object],
    store: &'s ObjectIndex,
    floor: FloorSource,
    shipped: Option<&'s SympoziumPolicy>,
) -> KnownFloor<'s> {
    if floor == FloorSource::Absent {
        return KnownFloor::Absent;
    }
    let is_floor = |object: &Object| match floor {
        FloorSource::Absent => false,
        FloorSource::InFile(file) => object.file == file,
        FloorSource::InFiles => {
            let name = &object.name;
            object.is_kind(Kind::SympoziumPolicy) && name.name == FLOOR_POLICY && name.namespace == SYSTEM_NAMESPACE
        }
    };
    let policies = store.policies.sorted();
    if let Some((_, policy)) = policies.into_iter().find(|(index, _)| is_floor(&objects[*index])) {
        return KnownFloor::Known(policy);
    }
    // A floor that is among the files and cannot be parsed is not replaced by the shipped one.
    let is_among_them = objects.iter().any(is_floor);
    shipped.filter(|_| !is_among_them).map_or(KnownFloor::Unknown, KnownFloor::Known)
}

struct AdmissionChecker<'a, 'd> {
    objects: &'a [Object],
    files: &'a [String],
    beyond: ExternalObjects,
    floor: KnownFloor<'a>,
    settings: Settings,
    by_name: HashMap<location::ObjectKey<'a>, usize>,
    /// Findings that were added already: two runs with one pack have the same findings about it.
    reported: HashSet<(usize, String, &'static str, String)>,
    runs_left: usize,
    undecided: usize,
    options: CheckOptions<'d>,
    findings: &'a mut Findings,
}

impl AdmissionChecker<'_, '_> {
    /// Checks packs, policies and agents by themselves.
    fn check_objects(&mut self, store: &ObjectIndex) {
        for (index, pack) in store.packs.sorted() {
            let namespace = &self.objects[*index].name.namespace;
            let denied = admit_pack(pack, Some(namespace), None);
            self.report_certain(&denied.violations, &denied.warnings, &FieldLocator::new(*index));
        }
        for (index, policy) in store.policies.sorted() {
            let denied = admit_policy(&self.subject(*index, "SympoziumPolicy"), &policy.spec);
            self.report_certain(&denied.violations, &denied.warnings, &FieldLocator::new(*index));
        }
        for (index, model) in store.models.sorted() {
            let denied = admit_model(&self.subject(*index, "Model"), &model.spec);
            self.report_certain(&denied.violations, &denied.warnings, &FieldLocator::new(*index));
        }
        for (index, schedule) in store.schedules.sorted() {
            let subject = self.subject(*index, "SympoziumSchedule");
            let denied = admit_schedule(&subject, &schedule.spec);
            self.report_certain(&denied.violations, &denied.warnings, &FieldLocator::new(*index));
        }
        let agents = store.agents.sorted().into_iter().map(|(index, agent)| (*index, "Agent", &agent.spec));
        let instances =
            store.instances.sorted().into_iter().map(|(index, instance)| (*index, "SympoziumInstance", &instance.spec));
        let mut all: Vec<_> = agents.chain(instances).collect();
        all.sort_by_key(|(index, _, _)| *index);
        for (index, kind, spec) in all {
            // Duplicate names were reported when references were resolved.
            let denied = admit_agent(&self.subject(index, kind), spec, false);
            self.report_certain(&denied.violations, &denied.warnings, &FieldLocator::new(index));
        }
    }

    fn subject(&self, index: usize, kind: &'static str) -> Subject {
        let name = &self.objects[index].name;
        Subject::new(kind, Some(&name.namespace), &name.name)
    }

    /// Returns whether all runs were checked.
    fn check_runs(&mut self, store: &ObjectIndex) -> bool {
        for (index, run) in &store.runs {
            let name = &self.objects[*index].name;
            if self.options.run.is_some_and(|wanted| wanted != name.name) {
                continue;
            }
            if !self.take_run_slot(*index) {
                return false;
            }
            let run = self.options.as_stored(run);
            let places = FieldLocator::new(*index).with_agent(store.agent_index(&name.namespace, &run));
            let is_undecided = self.check_run(store, &run, *index, &places);
            self.undecided += usize::from(is_undecided);
        }
        true
    }

    /// Counts a run against the bound; reports a finding and returns false when there are too many.
    fn take_run_slot(&mut self, index: usize) -> bool {
        if let Some(left) = self.runs_left.checked_sub(1) {
            self.runs_left = left;
            return true;
        }
        let object = &self.objects[index];
        let message = format!("more than {MAX_RUNS} runs and agents; this one and all others are not checked");
        let problem = Problem::error("too-large", object.node.at, message).with_hint("check fewer files at a time");
        self.findings.add(Finding {
            stage: ValidationStage::Admission,
            object: Some(object.name.clone()),
            ..Finding::from_problem(&self.files[object.file], problem)
        });
        false
    }

    /// Checks each agent without a run among the files by the simplest run that it can have.
    fn check_agents(&mut self, store: &ObjectIndex) {
        for (index, name) in store.agents_without_runs(self.objects) {
            if !self.take_run_slot(index) {
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
            let run = self.options.as_stored(&run);
            self.check_run(store, &run, index, &FieldLocator::for_agent(index));
        }
    }

    /// Reports the findings about one run, and returns whether it is undecided.
    fn check_run(&mut self, store: &ObjectIndex, run: &AgentRun, index: usize, places: &FieldLocator) -> bool {
        let name = &self.objects[index].name;
        let settings = self.settings.clone();
        // On this machine no permissions are granted, and a run that asks for some is refused for that.
        let is_machine = self.beyond == ExternalObjects::Machine;
        let authors = if is_machine { Authors::NotCompared } else { Authors::Unknown };
        let objects = FileObjects { index: store, floor: self.floor.policy(), authors };
        let case = ResolvedRun::new(&objects, run, &name.namespace, &settings);
        let packs = case.resolved.packs();
        let input = case.resolved.input(&packs);
        let decision = admit(&input);
        let (reasons, warnings) = match &decision {
            Decision::Admitted(admitted) => (&[][..], admitted.warnings.as_slice()),
            Decision::Denied(Denial { violations: reasons, warnings }) => (reasons.as_slice(), warnings.as_slice()),
        };
        let among = LoadedObjects { objects: self.objects, files: self.files };
        let reasons = shipped::add_name_clashes(&case, run, &name.namespace, reasons, among);
        let unknown = UnknownObjects::new(run, input.agents, input.policies, self.floor);
        let is_uncertain = self.report(&reasons, warnings, places, &unknown);
        let is_undecided = is_uncertain || reasons.iter().any(|reason| reason.missing.is_some());
        if let Purpose::Use(look) = &mut self.options.purpose {
            let outcome = match &decision {
                Decision::Admitted(admitted) if reasons.is_empty() => RunDecision::Admitted(&input, admitted),
                _ if is_undecided => RunDecision::Undecided,
                _ => RunDecision::Denied(&reasons),
            };
            look(&CheckedRun {
                name,
                is_assumed: places.is_assumed(),
                origins: shipped::origins(&case, among),
                decision: outcome,
            });
        }
        is_undecided
    }

    /// Reports violations that no unknown policy could lift.
    fn report_certain(&mut self, reasons: &[Violation], warnings: &[Violation], places: &FieldLocator) {
        self.report(reasons, warnings, places, &UnknownObjects::none());
    }

    /// Reports violations and warnings, and returns whether a violation is uncertain because of an unknown object.
    fn report(
        &mut self,
        reasons: &[Violation],
        warnings: &[Violation],
        places: &FieldLocator,
        unknown: &UnknownObjects,
    ) -> bool {
        let mut is_uncertain = false;
        for (severity, reasons) in [(FindingSeverity::Denied, reasons), (FindingSeverity::Warning, warnings)] {
            for reason in reasons {
                if reason.missing.is_some() {
                    // Otherwise it was reported when references were resolved.
                    if self.options.is_for_use() {
                        let remedy = format!("add the file that contains it; or {}", reason.hint);
                        let missing = Violation { hint: remedy, ..reason.clone() };
                        self.report_one(FindingSeverity::Error, &missing, places);
                    }
                    continue;
                }
                if !places.is_certain(reason, self.objects) {
                    continue;
                }
                let uncertain = unknown.uncertain_denial(reason).filter(|_| severity == FindingSeverity::Denied);
                let Some(uncertain) = uncertain else {
                    self.report_one(severity, reason, places);
                    continue;
                };
                is_uncertain = true;
                let violation = Violation { message: uncertain.message, hint: uncertain.hint, ..reason.clone() };
                let is_for_use = self.options.is_for_use();
                let severity = if is_for_use { FindingSeverity::Error } else { FindingSeverity::Warning };
                self.report_one(severity, &violation, places);
            }
        }
        is_uncertain
    }

    fn report_one(&mut self, severity: FindingSeverity, reason: &Violation, places: &FieldLocator) {
        let location = places.locate(reason, self.objects, &self.by_name);
        let object = &self.objects[location.object];
        // A field that an invalid object lacks may be one that is misspelt in it.
        if !object.is_valid && object.node.find(&location.field).is_none() {
            return;
        }
        let key = (location.object, location.field.clone(), reason.rule, reason.message.clone());
        if !self.reported.insert(key) {
            return;
        }
        self.findings.add(Finding {
            severity,
            stage: ValidationStage::Admission,
            rule: reason.rule.to_owned(),
            file: self.files[object.file].clone(),
            line: location.at.line,
            column: location.at.column,
            object: Some(object.name.clone()),
            field: location.field,
            message: reason.message.clone(),
            hint: Some(reason.hint.clone()).filter(|remedy| !remedy.is_empty()),
        });
    }
}
