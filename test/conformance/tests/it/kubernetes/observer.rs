//! A run from its creation to the proof that nothing of it is left, and what the case has done to it meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sympozium_conformance::Case;
use sympozium_conformance::case::{DecisionToGive, Intervention, Meanwhile, Moment, PersonSays};
use sympozium_testkit::cluster::api::Change;
use sympozium_testkit::cluster::runs::is_over;

use super::namespace::CaseNamespace;
use super::node::{Files, files};
use super::objects::RUN;
use super::turn::Turn;

/// How long a run may take before it counts as stuck, once its pod is on the node.
const DEADLINE: Duration = Duration::from_secs(240);
/// How long it may take for that: other suites may have the node.
const PLACE_DEADLINE: Duration = Duration::from_secs(280);
/// Between two looks at the workspace.
const LOOK: Duration = Duration::from_millis(15);
/// The person who decides. They have the role that is shipped for it, in the namespace of the case, and nothing else.
pub const PERSON: &str = "person@example.test";

/// A run that goes on, as far as it was seen.
pub struct RunObserver<'c> {
    case: &'c Case,
    namespace: &'c CaseNamespace,
    /// Held until its pod is bound to the node; nothing for a run that is to have none.
    turn: Option<Turn>,
    decisions: VecDeque<DecisionToGive>,
    /// Whether what is to be done meanwhile is still to be done.
    waits: bool,
    /// Whether the receipt of a call has left the run; looked at only where the bridge is killed.
    called: bool,
    /// Questions that were seen, by name.
    asked: Vec<String>,
    /// The run, as it was seen last.
    pub run: Value,
    /// A claim's directory where that is the workspace.
    pub claim: Option<PathBuf>,
    /// Whether the files of a pod are on the node, and not in a kernel of its own.
    pub sees_files: bool,
    files: Option<Files>,
    pub surprises: Vec<String>,
}

/// What a watch reports.
enum WatchEvent {
    Run(Change),
    Pod(Change),
    Question(Change),
    Record(Change),
}

impl<'c> RunObserver<'c> {
    pub fn new(case: &'c Case, namespace: &'c CaseNamespace, turn: Option<Turn>, run: Value) -> Self {
        Self {
            case,
            namespace,
            turn,
            decisions: case.spec.decisions.iter().cloned().collect(),
            waits: case.spec.meanwhile.is_some(),
            called: false,
            asked: Vec::new(),
            run,
            claim: None,
            sees_files: true,
            files: None,
            surprises: Vec::new(),
        }
    }

    /// Follows the run until it is over and its rights are taken back, and does to it what the case says.
    pub fn follow(&mut self) -> anyhow::Result<()> {
        let watched = self.watched();
        self.turn = None;
        watched?;
        if self.waits {
            self.surprises.push("the moment to do something never came".to_owned());
        }
        for left in &self.decisions {
            self.surprises.push(format!("no question was asked about {}", left.tool));
        }
        Ok(())
    }

    fn watched(&mut self) -> anyhow::Result<()> {
        let (report, events) = channel();
        let namespace = self.namespace;
        let watch = |path: String, what: fn(Change) -> WatchEvent| {
            let report = report.clone();
            // Nobody listens any more once the run is over.
            namespace.api.watch(&path, move |change| drop(report.send(what(change))))
        };
        let mut watches = vec![
            watch(namespace.runs(), WatchEvent::Run)?,
            watch(namespace.pods(), WatchEvent::Pod)?,
            watch(namespace.questions(), WatchEvent::Question)?,
        ];
        if self.awaits_call() {
            watches.push(watch(namespace.records(), WatchEvent::Record)?);
        }
        let mut deadline = Instant::now() + PLACE_DEADLINE;
        loop {
            match events.recv_timeout(LOOK) {
                Ok(WatchEvent::Run(Change::Current(run))) => self.see(run)?,
                Ok(WatchEvent::Pod(Change::Current(pod))) => {
                    if !pod["spec"]["nodeName"].is_null() && self.turn.take().is_some() {
                        deadline = Instant::now() + DEADLINE;
                    }
                }
                Ok(WatchEvent::Question(Change::Current(question))) => self.hear(&question)?,
                Ok(WatchEvent::Run(Change::Deleted(_))) => bail!("the run was deleted"),
                Ok(WatchEvent::Record(Change::Current(record))) => self.called |= has_call(&record),
                Ok(
                    WatchEvent::Pod(Change::Deleted(_))
                    | WatchEvent::Question(Change::Deleted(_))
                    | WatchEvent::Record(Change::Deleted(_)),
                ) => {}
                // The API server ends watches now and then. A new one begins with what is there.
                Ok(WatchEvent::Run(Change::Ended(_))) => watches.push(watch(namespace.runs(), WatchEvent::Run)?),
                Ok(WatchEvent::Pod(Change::Ended(_))) => watches.push(watch(namespace.pods(), WatchEvent::Pod)?),
                Ok(WatchEvent::Question(Change::Ended(_))) => {
                    watches.push(watch(namespace.questions(), WatchEvent::Question)?)
                }
                Ok(WatchEvent::Record(Change::Ended(_))) => {
                    watches.push(watch(namespace.records(), WatchEvent::Record)?)
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all watches have ended"),
            }
            if is_over(&self.run) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let (what, limit) = match self.turn {
                    Some(_) => ("its pod is not on the node", PLACE_DEADLINE),
                    None => ("it is not over", DEADLINE),
                };
                bail!("{what} after {} s: {}", limit.as_secs(), self.run["status"]);
            }
            self.look()?;
        }
    }

    /// Looks into the workspace. What it has last before the pod is gone is what the run leaves.
    fn look(&mut self) -> anyhow::Result<()> {
        let directory = match (&self.claim, self.run["status"]["podUID"].as_str()) {
            (Some(claim), _) => claim.clone(),
            (None, Some(pod)) if self.sees_files => self.namespace.node.workspace(pod),
            (None, _) => return Ok(()),
        };
        let Some(found) = files(&directory) else {
            return Ok(());
        };
        // A directory that is being taken away loses its files one by one. Nothing in any case removes one.
        let shrinks = self.files.as_ref().is_some_and(|before| {
            let is_gone = |name: &String| !found.contains_key(name);
            is_ending(&self.run) && before.keys().any(is_gone)
        });
        if shrinks {
            return Ok(());
        }
        // One that is empty was made, and not written yet.
        let is_written = |name: &String| found.get(name).is_some_and(|it| !it.is_empty());
        let made = matches!(self.moment(), Some(Moment::File(name)) if is_written(name));
        self.files = Some(found);
        if made && (self.called || !self.awaits_call()) {
            self.interfere()?;
        }
        Ok(())
    }

    fn see(&mut self, run: Value) -> anyhow::Result<()> {
        self.run = run;
        let works = self.run["status"]["report"]["phase"] == "working";
        if works && self.moment() == Some(&Moment::Working) {
            self.interfere()?;
        }
        Ok(())
    }

    /// A question that is there, or has changed.
    fn hear(&mut self, question: &Value) -> anyhow::Result<()> {
        let name = question["metadata"]["name"].as_str().unwrap_or_default();
        let is_known = self.asked.iter().any(|it| it == name);
        if is_known || question["spec"]["run"]["uid"] != self.run["metadata"]["uid"] {
            return Ok(());
        }
        self.asked.push(name.to_owned());
        if self.moment() == Some(&Moment::Asked) {
            return self.interfere();
        }
        self.decide(question)
    }

    /// Whether the receipt of a call must have left the run before anything is done to it.
    fn awaits_call(&self) -> bool {
        let meanwhile = self.case.spec.meanwhile.as_ref();
        meanwhile.is_some_and(Meanwhile::kills_bridge_in_call)
    }

    fn moment(&self) -> Option<&'c Moment> {
        let meanwhile = self.case.spec.meanwhile.as_ref().filter(|_| self.waits);
        meanwhile.map(|it| &it.when)
    }

    /// Says what the case has the person say.
    fn decide(&mut self, question: &Value) -> anyhow::Result<()> {
        let Some(decision) = self.decisions.pop_front() else {
            self.surprises.push(format!("a question that the case has no answer for: {question}"));
            return self.cancel();
        };
        let spec = &question["spec"];
        if spec["tool"] != decision.tool.as_str() {
            let text = format!("asked about {}, and not {}", spec["tool"], decision.tool);
            self.surprises.push(text);
        }
        if let Some(shown) = &decision.shown {
            let wrong = shown.problems(spec["summary"].as_str().unwrap_or_default());
            let wrong = wrong.iter().map(|it| format!("what the person is shown {it}"));
            self.surprises.extend(wrong);
        }
        let (word, scope) = match decision.says {
            PersonSays::Nothing => return Ok(()),
            PersonSays::Approve => ("approved", "once"),
            PersonSays::ApproveForRun => ("approved", "run"),
            PersonSays::Deny => ("denied", "once"),
        };
        let mut status = json!({
            "decision": word, "decidedBy": PERSON, "decidedAt": jiff::Timestamp::now().to_string(),
            "scope": scope,
        });
        if let Some(reason) = &decision.reason {
            status["reason"] = json!(reason);
        }
        let name = question["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}/status", self.namespace.questions());
        let answered = (self.namespace.person).merge(&path, &json!({ "status": status }));
        if let Err(error) = answered {
            self.surprises.push(format!("the answer was not taken: {error:#}"));
            // Nobody else would answer.
            self.cancel()?;
        }
        Ok(())
    }

    /// Does to the run what the case says, at the moment that it says.
    fn interfere(&mut self) -> anyhow::Result<()> {
        self.waits = false;
        match self.case.spec.meanwhile.as_ref().map(|it| &it.act) {
            Some(Intervention::Cancel) => self.cancel(),
            Some(Intervention::Kill(part)) => {
                let pod = self.run["status"]["podName"].as_str();
                let pod = pod.context("the run has no pod")?;
                self.namespace.kill(pod, part)
            }
            None => Ok(()),
        }
    }

    fn cancel(&self) -> anyhow::Result<()> {
        let path = format!("{}/{RUN}", self.namespace.runs());
        let cancel = json!({ "spec": { "cancel": true } });
        self.namespace.api.merge(&path, &cancel).map(drop)
    }

    /// The files of the workspace; nothing where there never was one to look into.
    pub fn files(&self) -> Option<BTreeMap<String, Vec<u8>>> {
        match &self.claim {
            Some(claim) => files(claim),
            None => self.files.clone(),
        }
    }
}

/// Whether a RunRecord has the receipt of a call.
fn has_call(record: &Value) -> bool {
    let lines = record["spec"]["lines"].as_array().into_iter().flatten();
    let mut receipts = lines.filter_map(|it| serde_json::from_str::<Value>(it.as_str()?).ok());
    record["spec"]["kind"] == "receipts" && receipts.any(|it| it["event"]["kind"] == "called")
}

/// Whether the run has ended, by its own report or by another.
fn is_ending(run: &Value) -> bool {
    let status = &run["status"];
    let phase = status["phase"].as_str().unwrap_or_default();
    let going = ["", "Pending", "Running"].contains(&phase);
    status["report"]["finished"] == true || !going || run["spec"]["cancel"] == true
}
