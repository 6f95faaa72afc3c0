//! Would the runs be allowed? The same function decides as in the cluster; here it is given what the files hold.
//!
//! What is not among the files cannot deny anything: a policy or a pack that is not there is left out, and of a run
//! without its agent only what it says itself is judged. What a policy that is not there could allow is a warning and no
//! denial ([`openings`]). So a denial is certain, for these objects as they are: the cluster denies the run too. A run
//! that something is missing for is counted as undecided.

mod openings;
mod place;
mod store;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_api::names::{ModelRef, SkillPackName};
use sympozium_api::{AgentRun, AgentRunSpec, SympoziumPolicy};
use sympozium_plan::admit::{
    Agents, Candidates, Decision, Denied, Facts, Input, PackCandidates, PackObject, Reason,
    Settings, Subject, admit, admit_agent, admit_pack, admit_policy, wanted_packs, wanted_policy,
};

use super::finding::{Finding, Findings, Stage, Verdict};
use super::object::Object;
use super::references::Completeness;
use crate::built_in;
use crate::kinds::Kind;
use crate::manifests::limits::MAX_RUNS;
use crate::manifests::problem::Problem;
use openings::{KnownFloor, Unknown};
use place::Places;
use store::Store;

/// Which policy is the cluster's floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// The policy `floor` of the system's namespace, if it is among the files; the one that we ship if the files are
    /// everything.
    AmongTheFiles,
    /// The policy in this file.
    InFile(usize),
}

/// Judges every object of ours that can be read, and counts the runs that something is missing for.
pub fn check(
    objects: &[Object],
    files: &[String],
    floor: Floor,
    completeness: Completeness,
    findings: &mut Findings,
) -> usize {
    let store = Store::of(objects, files, findings);
    // Files that are everything there is are an installation as it comes, with the floor that it brings.
    let shipped = match (floor, completeness) {
        (Floor::AmongTheFiles, Completeness::Complete) => built_in::floor(),
        _ => None,
    };
    let mut judge = Judge {
        objects,
        files,
        floor: find_floor(objects, &store, floor, shipped.as_ref()),
        settings: Settings::default(),
        by_name: place::by_name(objects),
        told: HashSet::new(),
        runs_left: MAX_RUNS,
        undecided: 0,
        findings,
    };
    judge.judge_alone(&store);
    // Agents only when every run was judged: there is one bound for both.
    if judge.judge_runs(&store) {
        judge.judge_agents(&store);
    }
    judge.undecided
}

fn find_floor<'s>(
    objects: &[Object],
    store: &'s Store,
    floor: Floor,
    shipped: Option<&'s SympoziumPolicy>,
) -> KnownFloor<'s> {
    let is_floor = |object: &Object| match floor {
        Floor::InFile(file) => object.file == file,
        Floor::AmongTheFiles => {
            let name = &object.name;
            object.is(Kind::SympoziumPolicy)
                && name.name == FLOOR_POLICY
                && name.namespace == SYSTEM_NAMESPACE
        }
    };
    let mut policies = store.policies.values();
    if let Some((_, policy)) = policies.find(|(index, _)| is_floor(&objects[*index])) {
        return KnownFloor::Is(&policy.spec);
    }
    // One that is there and could not be read is not the one that is shipped.
    let is_among_them = objects.iter().any(is_floor);
    shipped
        .filter(|_| !is_among_them)
        .map_or(KnownFloor::Unknown, |policy| KnownFloor::Is(&policy.spec))
}

struct Judge<'a> {
    objects: &'a [Object],
    files: &'a [String],
    floor: KnownFloor<'a>,
    settings: Settings,
    by_name: HashMap<place::Name<'a>, usize>,
    /// What was said already: two runs of one pack have the same to say about it.
    told: HashSet<(usize, String, &'static str, String)>,
    runs_left: usize,
    undecided: usize,
    findings: &'a mut Findings,
}

impl Judge<'_> {
    /// What can be said about packs, policies and agents by themselves.
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
        let agents = store
            .agents
            .values()
            .map(|(index, it)| (*index, "Agent", &it.spec));
        let instances = store
            .instances
            .values()
            .map(|(index, it)| (*index, "SympoziumInstance", &it.spec));
        let mut all: Vec<_> = agents.chain(instances).collect();
        all.sort_by_key(|(index, _, _)| *index);
        for (index, kind, spec) in all {
            // Whether a name is taken twice was asked when references were looked up.
            let denied = admit_agent(&self.subject(index, kind), spec, false);
            self.tell_certain(&denied.reasons, &denied.warnings, &Places::of(index));
        }
    }

    fn subject(&self, index: usize, kind: &'static str) -> Subject {
        let name = &self.objects[index].name;
        Subject::new(kind, Some(&name.namespace), &name.name)
    }

    /// Whether all of them were judged.
    fn judge_runs(&mut self, store: &Store) -> bool {
        for (index, run) in &store.runs {
            let namespace = self.objects[*index].name.namespace.as_str();
            if !self.may_judge(*index) {
                return false;
            }
            let agents = store.agents_called(namespace, run.spec.agent().map(AsRef::as_ref));
            let places = Places::of(*index).with_agent(store.agent_index(namespace, run));
            let is_undecided = self.judge_run(store, run, namespace, agents, &places);
            self.undecided += usize::from(is_undecided);
        }
        true
    }

    /// Counts a run; says no, and why, when there are too many.
    fn may_judge(&mut self, index: usize) -> bool {
        if let Some(left) = self.runs_left.checked_sub(1) {
            self.runs_left = left;
            return true;
        }
        let object = &self.objects[index];
        let message = format!("more than {MAX_RUNS} runs and agents; from here on none is judged");
        let problem = Problem::error("too-large", object.node.at, message)
            .hint("check the files in several calls");
        self.findings.add(Finding {
            stage: Stage::Admission,
            object: Some(object.name.clone()),
            ..Finding::of_file(&self.files[object.file], problem)
        });
        false
    }

    /// An agent without a run among the files is judged by the plainest run that it can have.
    fn judge_agents(&mut self, store: &Store) {
        for (index, name) in store.agents_without_runs(self.objects) {
            let namespace = self.objects[index].name.namespace.as_str();
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
            let agents = store.agents_called(namespace, Some(name));
            self.judge_run(store, &run, namespace, agents, &Places::of_agent(index));
        }
    }

    /// Tells what there is to tell about one run, and says whether something was missing.
    fn judge_run(
        &mut self,
        store: &Store,
        run: &AgentRun,
        namespace: &str,
        agents: Agents<'_>,
        places: &Places,
    ) -> bool {
        let packs: BTreeMap<SkillPackName, PackCandidates<'_>> = wanted_packs(run, agents)
            .into_iter()
            .map(|name| {
                let candidates = store.packs_called(namespace, name.as_str());
                (name, pack_candidates(candidates))
            })
            .collect();
        let policies = match wanted_policy(agents) {
            Some(name) => store.policies_called(namespace, name.as_str()),
            None => Candidates::default(),
        };
        let model_ref = run.spec.model.as_ref().and_then(|it| it.model_ref.as_ref());
        let decision = admit(&Input {
            run,
            namespace,
            agents,
            packs: &packs,
            policies,
            floor: self.floor.spec(),
            models: model_ref.map_or_else(Candidates::default, |reference| {
                models(store, namespace, reference)
            }),
            author: None,
            facts: Facts::default(),
            settings: &self.settings,
        });
        let (reasons, warnings) = match decision {
            Decision::Admitted(admitted) => (Vec::new(), admitted.warnings),
            Decision::Denied(Denied { reasons, warnings }) => (reasons, warnings),
        };
        let unknown = Unknown::of(run, agents, policies, self.floor);
        let is_doubtful = self.tell(&reasons, &warnings, places, &unknown);
        is_doubtful || reasons.iter().any(|reason| reason.missing.is_some())
    }

    /// Tells what holds whatever the policies are.
    fn tell_certain(&mut self, reasons: &[Reason], warnings: &[Reason], places: &Places) {
        self.tell(reasons, warnings, places, &Unknown::nothing());
    }

    /// Tells reasons and warnings, and says whether one of the reasons is none for want of knowing.
    fn tell(
        &mut self,
        reasons: &[Reason],
        warnings: &[Reason],
        places: &Places,
        unknown: &Unknown,
    ) -> bool {
        let mut is_doubtful = false;
        for (severity, reasons) in [(Verdict::Denied, reasons), (Verdict::Warning, warnings)] {
            for reason in reasons {
                // What is missing was reported when references were looked up.
                if reason.missing.is_some() || !places.can_tell(reason, self.objects) {
                    continue;
                }
                let doubt = unknown
                    .doubt(reason)
                    .filter(|_| severity == Verdict::Denied);
                let Some(doubt) = doubt else {
                    self.tell_one(severity, reason, places);
                    continue;
                };
                is_doubtful = true;
                let doubtful = Reason {
                    message: doubt.message,
                    remedy: doubt.hint,
                    ..reason.clone()
                };
                self.tell_one(Verdict::Warning, &doubtful, places);
            }
        }
        is_doubtful
    }

    fn tell_one(&mut self, severity: Verdict, reason: &Reason, places: &Places) {
        let place = places.find(reason, self.objects, &self.by_name);
        let object = &self.objects[place.object];
        // What an object with an error leaves out may be what is misspelt in it.
        if !object.is_sound && object.node.find(&place.field).is_none() {
            return;
        }
        let key = (
            place.object,
            place.field.clone(),
            reason.rule,
            reason.message.clone(),
        );
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

fn pack_candidates<'a>(candidates: Candidates<'a, sympozium_api::SkillPack>) -> PackCandidates<'a> {
    let object = |pack: Option<&'a sympozium_api::SkillPack>| {
        pack.map(|pack| PackObject { pack, author: None })
    };
    PackCandidates {
        own: object(candidates.own),
        system: object(candidates.system),
    }
}

fn models<'s>(
    store: &'s Store,
    namespace: &str,
    reference: &ModelRef,
) -> Candidates<'s, sympozium_api::Model> {
    match reference.as_str().split_once('/') {
        Some((named, name)) => Candidates {
            own: store
                .models
                .get(&(named.to_owned(), name.to_owned()))
                .map(|(_, it)| it),
            system: None,
        },
        None => store.candidates(&store.models, namespace, reference.as_str()),
    }
}

/// In the order of the files.
fn sorted<'a, K: 'a>(found: impl Iterator<Item = &'a (usize, K)>) -> Vec<&'a (usize, K)> {
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|(index, _)| *index);
    found
}
