//! Projects the objects of a run in a cluster into the events that a run of this machine emits.
//!
//! Objects go in, events come out, without a clock and without a client: objects arrive in any order and more than
//! once, events are in order and emitted once.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use sympozium_api::agent_run::{Phase as RunPhase, condition};
use sympozium_api::run_record::RecordKind;
use sympozium_api::{AgentRun, RunPlan, RunRecord, ToolApproval};
use sympozium_exec::IsolationReport;
use sympozium_ipc::receipt::{self, Verifier};
use sympozium_ipc::run_api::{Decision, Phase, Usage};
use sympozium_plan::render::names::Names;

use super::super::{plan, question, records, view};
use crate::local::event::{Event, Question};
use crate::local::record::Outcome;
use crate::origin;
use crate::place::Place;

/// Bytes of segments of one kind that are buffered until the segments before them have arrived. The API server lists by
/// name, so that r10 and r100 come before r2: most segments of a long run arrive early. Those that do not fit are read
/// again when it is their turn.
const MAX_AHEAD_BYTES: usize = 32 << 20;
/// The maximum number of questions of one run.
const MAX_QUESTIONS: usize = 1_024;
/// How long a run may stay without a status before a warning says so.
const UNSEEN_MS: u64 = 15_000;
/// How long to wait for the records of a run once it is terminal.
const RECORDS_MS: u64 = 10_000;
/// How long to wait for the record that the run is torn down.
const REVOKED_MS: u64 = 60_000;

/// The state of the projection: the objects as last seen, and what was emitted.
#[derive(Debug)]
pub struct Told {
    run: AgentRun,
    place: Place,
    names: Names,
    plan: Option<Box<RunPlan>>,
    created_ms: u64,
    is_planned: bool,
    has_said_unseen: bool,
    waits: BTreeMap<String, String>,
    isolation: BTreeMap<String, IsolationReport>,
    phase: Option<Phase>,
    progress: Option<String>,
    usage: Usage,
    model_requests: u64,
    transcript: Pieces,
    receipts: Pieces,
    /// `None` before the plan is known, and after the chain has broken.
    verifier: Option<Verifier>,
    open: BTreeMap<String, Question>,
    /// Questions that an event was emitted for.
    asked: BTreeSet<String>,
    /// When the run was first seen to be terminal.
    over_ms: Option<u64>,
    is_gone: bool,
    has_ended: bool,
}

impl Told {
    /// For a run that was just created or found; `place` has the flags that select its cluster.
    pub fn new(run: AgentRun, place: Place, now_ms: u64) -> Self {
        Self {
            place,
            names: plan::names(&run),
            run,
            plan: None,
            created_ms: now_ms,
            is_planned: false,
            has_said_unseen: false,
            waits: BTreeMap::new(),
            isolation: BTreeMap::new(),
            phase: None,
            progress: None,
            usage: Usage::default(),
            model_requests: 0,
            transcript: Pieces::new(RecordKind::Transcript),
            receipts: Pieces::new(RecordKind::Receipts),
            verifier: None,
            open: BTreeMap::new(),
            asked: BTreeSet::new(),
            over_ms: None,
            is_gone: false,
            has_ended: false,
        }
    }

    /// The run as it was last seen.
    pub fn run(&self) -> &AgentRun {
        &self.run
    }

    /// Whether the caller should read the plan now.
    pub fn wants_plan(&self) -> bool {
        let digest = self.run.status.as_ref().and_then(|it| it.plan_digest.as_ref());
        digest.is_some() && !self.is_planned
    }

    /// The name of the next record if it arrived early and was dropped: the caller should read it now.
    pub fn wants_record(&self) -> Option<String> {
        let pieces = [&self.receipts, &self.transcript];
        let wanted = pieces.into_iter().find_map(Pieces::wanted)?;
        Some(self.names.of(&wanted)).filter(|_| self.is_planned && !self.has_ended)
    }

    /// Handles the result of reading the record that `needs_record` named. A record that does not exist or belongs to
    /// another run is not requested again.
    pub fn read_record(&mut self, read: Option<RunRecord>, now_ms: u64) -> Vec<Event> {
        let wanted = self.wants_record();
        let events = read.map(|it| self.saw_record(it, now_ms));
        if wanted.is_some() && self.wants_record() == wanted {
            let pieces = [&mut self.receipts, &mut self.transcript];
            let pieces = pieces.into_iter().find(|it| it.wanted().is_some());
            if let Some(pieces) = pieces {
                pieces.left_out.remove(&pieces.next);
            }
        }
        events.unwrap_or_default()
    }

    /// Whether the end was emitted.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Handles the plan; `None` when it cannot be read.
    pub fn plan(&mut self, plan: Option<Box<RunPlan>>, now_ms: u64) -> Vec<Event> {
        let status = view::status(&self.run);
        let Some(digest) = status.plan_digest.filter(|_| !self.is_planned) else {
            return Vec::new();
        };
        self.is_planned = true;
        let (view, _) = view::view(&self.run, &self.place);
        let model = match &plan {
            Some(plan) => format!("{}/{}", plan.model.provider, plan.model.model),
            None => view.model,
        };
        self.plan = plan;
        self.verifier = Some(Verifier::new(digest.clone()));
        let mut events = vec![Event::Planned {
            run: view.name,
            uid: view.uid,
            agent: view.agent,
            model,
            skills: view.skills,
            origins: origin::in_cluster(&status.resolved),
            plan: digest,
            directory: None,
            workspace: None,
        }];
        // What was seen before belongs after the plan.
        events.extend(self.changes(now_ms));
        events.extend(self.lines());
        events
    }

    pub fn saw_run(&mut self, run: AgentRun, now_ms: u64) -> Vec<Event> {
        if run.metadata.uid != self.run.metadata.uid {
            // Another run of the same name: ours is deleted.
            return self.saw_no_run(now_ms);
        }
        self.run = run;
        if self.wants_plan() {
            return self.hindrances();
        }
        self.changes(now_ms)
    }

    pub fn saw_no_run(&mut self, now_ms: u64) -> Vec<Event> {
        self.is_gone = true;
        self.tick(now_ms)
    }

    pub fn saw_record(&mut self, record: RunRecord, now_ms: u64) -> Vec<Event> {
        if !records::is_of(&record, &self.run, &self.names) {
            return Vec::new();
        }
        let pieces = match record.spec.kind {
            RecordKind::Receipts => &mut self.receipts,
            RecordKind::Transcript => &mut self.transcript,
        };
        pieces.add(record);
        let mut events = self.lines();
        events.extend(self.end(now_ms));
        events
    }

    pub fn saw_approval(&mut self, approval: &ToolApproval, now_ms: u64) -> Vec<Event> {
        let uid = self.run.metadata.uid.as_deref();
        if uid != Some(approval.spec.run.uid.as_str()) || self.has_ended {
            return Vec::new();
        }
        let name = question::name(approval, &self.names);
        if let Some((decision, by)) = question::decision(approval) {
            return match self.open.remove(&name) {
                Some(_) => vec![Event::Answered { approval: name, decision: Some(decision), by }],
                // It was decided before its question was emitted.
                None => Vec::new(),
            };
        }
        let is_new = self.asked.len() < MAX_QUESTIONS && !self.asked.contains(&name);
        if !is_new || !question::is_open(approval, now_ms) || self.over_ms.is_some() {
            return Vec::new();
        }
        let question = question::question(approval, &self.names, self.plan.as_deref());
        self.asked.insert(name.clone());
        self.open.insert(name, question.clone());
        vec![Event::Asked { question }]
    }

    /// Handles deadlines that have passed.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let expired: Vec<String> = (self.open.iter())
            .filter(|(_, question)| question.deadline_ms <= now_ms)
            .map(|(name, _)| name.clone())
            .collect();
        for approval in expired {
            self.open.remove(&approval);
            events.push(Event::Answered { approval, decision: Some(Decision::Expired), by: None });
        }
        let is_unseen = self.run.status.is_none() && !self.is_gone;
        if is_unseen && !self.has_said_unseen && now_ms.saturating_sub(self.created_ms) >= UNSEEN_MS {
            self.has_said_unseen = true;
            let text = "nobody has looked at the run yet; is the controller there? \
                        kubectl get pods -n sympozium-system";
            events.push(Event::Starting { text: text.to_owned() });
        }
        events.extend(self.end(now_ms));
        events
    }

    /// When [`Self::tick`] may have something to emit although no object changes.
    pub fn due_ms(&self) -> Option<u64> {
        let questions = self.open.values().map(|it| it.deadline_ms);
        let unseen = self.created_ms + UNSEEN_MS;
        let unseen = Some(unseen).filter(|_| self.run.status.is_none() && !self.has_said_unseen);
        let over = self.over_ms.map(|it| it + RECORDS_MS);
        let revoked = self.over_ms.map(|it| it + REVOKED_MS);
        let all = questions.chain(unseen).chain(over).chain(revoked);
        all.min().filter(|_| !self.has_ended)
    }

    /// Emits the conditions that keep the run from starting, unless they were emitted already.
    fn hindrances(&mut self) -> Vec<Event> {
        let now: BTreeMap<String, String> = match view::outcome(&self.run) {
            Some(_) => BTreeMap::new(),
            None => view::waits_for(&self.run).into_iter().collect(),
        };
        let is_new = |(name, text): &(&String, &String)| self.waits.get(*name) != Some(*text);
        let events = now.iter().filter(is_new).map(|(name, text)| {
            let text = text.clone();
            match name.as_str() {
                condition::NETWORK_ENFORCED => Event::Warning { text },
                _ => Event::Starting { text },
            }
        });
        let events = events.collect();
        self.waits = now;
        events
    }

    /// Emits what has changed in the run itself.
    fn changes(&mut self, now_ms: u64) -> Vec<Event> {
        let mut events = self.hindrances();
        for (part, report) in view::isolation(&self.run, None) {
            if self.isolation.get(&part) != Some(&report) {
                self.isolation.insert(part.clone(), report.clone());
                let report = Box::new(report);
                events.push(Event::Isolated { part, report });
            }
        }
        let status = view::status(&self.run);
        let report = status.report.as_ref();
        if let Some(text) = report.and_then(|it| it.progress.clone())
            && self.progress.as_ref() != Some(&text)
        {
            self.progress = Some(text.clone());
            events.push(Event::Progress { text });
        }
        let tokens = status.token_usage.as_ref();
        if let Some(tokens) = tokens.or(report.and_then(|it| it.token_usage.as_ref())) {
            events.extend(self.used(view::usage(tokens)));
        }
        let phase = view::phase(&self.run);
        if self.phase != Some(phase) && view::outcome(&self.run).is_none() {
            self.phase = Some(phase);
            events.push(Event::Phase { phase });
        }
        events.extend(self.end(now_ms));
        events
    }

    fn used(&mut self, usage: Usage) -> Option<Event> {
        // The receipts may be ahead of the report, or the report of the receipts.
        let usage = Usage { model_requests: usage.model_requests.max(self.model_requests), ..usage };
        let is_new = self.usage != usage;
        self.usage = usage;
        is_new.then_some(Event::Usage { usage })
    }

    /// Emits the lines that are next.
    fn lines(&mut self) -> Vec<Event> {
        // The plan is the first event.
        if !self.is_planned {
            return Vec::new();
        }
        let mut events = Vec::new();
        for line in self.transcript.take() {
            // The agent writes these lines: one that is not JSON is a text.
            let line = serde_json::from_str(&line).unwrap_or(serde_json::Value::String(line));
            events.push(Event::Transcript { line });
        }
        for line in self.receipts.take() {
            let Some(verifier) = &mut self.verifier else {
                continue;
            };
            let number = verifier.lines() + 1;
            match verifier.read(&line) {
                Ok(receipt) => {
                    if matches!(receipt.event, receipt::Event::Model { .. }) {
                        self.model_requests += 1;
                        let known = self.usage.model_requests;
                        self.usage.model_requests = known.max(self.model_requests);
                    }
                    let receipt = Box::new(receipt);
                    events.push(Event::Receipt { receipt });
                }
                Err(problem) => {
                    self.verifier = None;
                    let text = format!(
                        "receipt {number} does not follow from those before it ({problem}); \
                         none behind it is shown"
                    );
                    events.push(Event::Warning { text });
                }
            }
        }
        events
    }

    /// Emits the end, once everything that should come before it has arrived or has taken too long.
    fn end(&mut self, now_ms: u64) -> Vec<Event> {
        if self.has_ended {
            return Vec::new();
        }
        let outcome = match view::outcome(&self.run) {
            Some(outcome) => outcome,
            None if self.is_gone => Outcome::Cancelled,
            None => return Vec::new(),
        };
        let over_ms = *self.over_ms.get_or_insert(now_ms);
        let waited = now_ms.saturating_sub(over_ms);
        let mut events = self.lines();
        let is_complete = self.is_complete();
        let leftovers = view::leftovers(&self.run);
        let had_something = self
            .run
            .status
            .as_ref()
            .is_some_and(|it| it.plan_digest.is_some() && (it.granted_at.is_some() || it.pod_name.is_some()));
        let is_revoked = leftovers.as_ref().is_some_and(Vec::is_empty) || !had_something;
        if !self.is_gone && ((!is_complete && waited < RECORDS_MS) || (!is_revoked && waited < REVOKED_MS)) {
            return events;
        }
        let (name, place) = (self.run.name_any(), self.place.flags());
        let mut warn = |text: String| events.push(Event::Warning { text });
        if self.is_gone && view::outcome(&self.run).is_none() {
            warn("the run was deleted in the cluster".to_owned());
        } else if !is_complete {
            warn(format!(
                "not everything that the run left has come; `sympozium logs {name}{place}` and \
                 `sympozium audit {name}{place}` read it later"
            ));
        }
        if leftovers.is_none() && !is_revoked && !self.is_gone {
            warn(format!(
                "it is not recorded yet that nothing of the run is left; `sympozium show {name}{place}` tells later"
            ));
        }
        if view::status(&self.run).phase == Some(RunPhase::Skipped) {
            warn("a hook before the run said that there is nothing to do".to_owned());
        }
        for approval in std::mem::take(&mut self.open).into_keys() {
            events.push(Event::Answered { approval, decision: None, by: None });
        }
        self.has_ended = true;
        events.push(Event::Ended { outcome, usage: self.usage, leftovers: leftovers.unwrap_or_default() });
        events
    }

    /// Whether all segments that the run reported have arrived.
    fn is_complete(&self) -> bool {
        let Some(report) = self.run.status.as_ref().and_then(|it| it.report.as_ref()) else {
            return true;
        };
        let wanted = |segments: Option<i64>| segments.unwrap_or(0);
        i64::from(self.receipts.next) >= wanted(report.receipt_segments)
            && i64::from(self.transcript.next) >= wanted(report.transcript_segments)
    }
}

/// The segments of one kind: lines that are ready, and segments that arrived early.
#[derive(Debug)]
struct Pieces {
    kind: RecordKind,
    next: i32,
    ahead: BTreeMap<i32, Vec<String>>,
    ahead_bytes: usize,
    /// Segments that arrived early and did not fit.
    left_out: BTreeSet<i32>,
    ready: Vec<String>,
}

impl Pieces {
    fn new(kind: RecordKind) -> Self {
        Self { kind, next: 0, ahead: BTreeMap::new(), ahead_bytes: 0, left_out: BTreeSet::new(), ready: Vec::new() }
    }

    fn add(&mut self, record: RunRecord) {
        let segment = record.spec.segment;
        if segment < self.next || self.ahead.contains_key(&segment) {
            return;
        }
        let bytes = length(&record.spec.lines);
        if segment != self.next && self.ahead_bytes + bytes > MAX_AHEAD_BYTES {
            self.left_out.insert(segment);
            return;
        }
        self.left_out.remove(&segment);
        self.ahead_bytes += bytes;
        self.ahead.insert(segment, record.spec.lines);
        while let Some(lines) = self.ahead.remove(&self.next) {
            self.ahead_bytes -= length(&lines);
            self.ready.extend(lines);
            self.next += 1;
        }
    }

    /// The name of the next segment in its run, if that segment was dropped.
    fn wanted(&self) -> Option<String> {
        let is_wanted = self.left_out.contains(&self.next);
        is_wanted.then(|| records::piece(self.kind, self.next))
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.ready)
    }
}

fn length(lines: &[String]) -> usize {
    lines.iter().map(String::len).sum()
}
