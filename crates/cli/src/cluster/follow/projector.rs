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
use sympozium_ipc::run_api::{BridgePhase, Decision, Usage};
use sympozium_plan::render::names::ObjectNames;

use super::super::{plan, question, records, view};
use sympozium_api::origin;
use sympozium_runs::RunEnd;
use sympozium_runs::TargetFlags;
use sympozium_runs::{Event, Question};

/// Bytes of segments of one kind that are buffered until the segments before them have arrived. The API server lists by
/// name, so that r10 and r100 come before r2: most segments of a long run arrive early. Those that do not fit are read
/// again when it is their turn.
const MAX_OUT_OF_ORDER_BYTES: usize = 32 << 20;
/// The maximum number of questions of one run.
const MAX_QUESTIONS: usize = 1_024;
/// How long a run may stay without a status before a warning says so.
const NO_STATUS_TIMEOUT_MS: u64 = 15_000;
/// How long to wait for the records of a run once it is terminal.
const RECORDS_TIMEOUT_MS: u64 = 10_000;
/// How long to wait for the record that the run is torn down.
const TEARDOWN_TIMEOUT_MS: u64 = 60_000;

/// The state of the projection: the objects as last seen, and what was emitted.
#[derive(Debug)]
pub struct RunProjector {
    run: AgentRun,
    target: TargetFlags,
    names: ObjectNames,
    plan: Option<Box<RunPlan>>,
    created_ms: u64,
    is_planned: bool,
    warned_no_status: bool,
    unmet_conditions: BTreeMap<String, String>,
    isolation: BTreeMap<String, IsolationReport>,
    phase: Option<BridgePhase>,
    progress: Option<String>,
    usage: Usage,
    model_requests: u64,
    transcript: SegmentQueue,
    receipts: SegmentQueue,
    /// `None` before the plan is known, and after the chain has broken.
    verifier: Option<Verifier>,
    open_questions: BTreeMap<String, Question>,
    /// Questions that an event was emitted for.
    asked_questions: BTreeSet<String>,
    /// When the run was first seen to be terminal.
    finished_ms: Option<u64>,
    is_deleted: bool,
    has_emitted_end: bool,
}

impl RunProjector {
    /// For a run that was just created or found; `target` has the flags that select its cluster.
    pub fn new(run: AgentRun, target: TargetFlags, now_ms: u64) -> Self {
        Self {
            target,
            names: plan::object_names(&run),
            run,
            plan: None,
            created_ms: now_ms,
            is_planned: false,
            warned_no_status: false,
            unmet_conditions: BTreeMap::new(),
            isolation: BTreeMap::new(),
            phase: None,
            progress: None,
            usage: Usage::default(),
            model_requests: 0,
            transcript: SegmentQueue::new(RecordKind::Transcript),
            receipts: SegmentQueue::new(RecordKind::Receipts),
            verifier: None,
            open_questions: BTreeMap::new(),
            asked_questions: BTreeSet::new(),
            finished_ms: None,
            is_deleted: false,
            has_emitted_end: false,
        }
    }

    /// The run as it was last seen.
    pub fn run(&self) -> &AgentRun {
        &self.run
    }

    /// Whether the caller should read the plan now.
    pub fn needs_plan(&self) -> bool {
        let digest = self.run.status.as_ref().and_then(|it| it.plan_digest.as_ref());
        digest.is_some() && !self.is_planned
    }

    /// The name of the next record if it arrived early and was dropped: the caller should read it now.
    pub fn needs_record(&self) -> Option<String> {
        let pieces = [&self.receipts, &self.transcript];
        let wanted = pieces.into_iter().find_map(SegmentQueue::dropped_name)?;
        Some(self.names.with_suffix(&wanted)).filter(|_| self.is_planned && !self.has_emitted_end)
    }

    /// Handles the result of reading the record that `needs_record` named. A record that does not exist or belongs to
    /// another run is not requested again.
    pub fn on_record_read(&mut self, read: Option<RunRecord>, now_ms: u64) -> Vec<Event> {
        let wanted = self.needs_record();
        let events = read.map(|it| self.on_record(it, now_ms));
        if wanted.is_some() && self.needs_record() == wanted {
            let pieces = [&mut self.receipts, &mut self.transcript];
            let pieces = pieces.into_iter().find(|it| it.dropped_name().is_some());
            if let Some(pieces) = pieces {
                pieces.dropped.remove(&pieces.next);
            }
        }
        events.unwrap_or_default()
    }

    /// Whether the end was emitted.
    pub fn has_emitted_end(&self) -> bool {
        self.has_emitted_end
    }

    /// Handles the plan; `None` when it cannot be read.
    pub fn on_plan(&mut self, plan: Option<Box<RunPlan>>, now_ms: u64) -> Vec<Event> {
        let status = view::status(&self.run);
        let Some(digest) = status.plan_digest.filter(|_| !self.is_planned) else {
            return Vec::new();
        };
        self.is_planned = true;
        let (view, _) = view::to_view(&self.run, &self.target);
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
            origins: origin::from_resolved(&status.resolved),
            plan: digest,
            directory: None,
            workspace: None,
        }];
        // What arrived before the plan is emitted after it.
        events.extend(self.project_status(now_ms));
        events.extend(self.project_lines());
        events
    }

    pub fn on_run(&mut self, run: AgentRun, now_ms: u64) -> Vec<Event> {
        if run.metadata.uid != self.run.metadata.uid {
            // Another run of the same name: ours is deleted.
            return self.on_run_deleted(now_ms);
        }
        self.run = run;
        if self.needs_plan() {
            return self.project_conditions();
        }
        self.project_status(now_ms)
    }

    pub fn on_run_deleted(&mut self, now_ms: u64) -> Vec<Event> {
        self.is_deleted = true;
        self.tick(now_ms)
    }

    pub fn on_record(&mut self, record: RunRecord, now_ms: u64) -> Vec<Event> {
        if !records::belongs_to(&record, &self.run, &self.names) {
            return Vec::new();
        }
        let pieces = match record.spec.kind {
            RecordKind::Receipts => &mut self.receipts,
            RecordKind::Transcript => &mut self.transcript,
        };
        pieces.add(record);
        let mut events = self.project_lines();
        events.extend(self.project_end(now_ms));
        events
    }

    pub fn on_approval(&mut self, approval: &ToolApproval, now_ms: u64) -> Vec<Event> {
        let uid = self.run.metadata.uid.as_deref();
        if uid != Some(approval.spec.run.uid.as_str()) || self.has_emitted_end {
            return Vec::new();
        }
        let name = question::name(approval, &self.names);
        if let Some((decision, by)) = question::decision(approval) {
            return match self.open_questions.remove(&name) {
                Some(_) => vec![Event::Answered { approval: name, decision: Some(decision), by }],
                // It was decided before its question was emitted.
                None => Vec::new(),
            };
        }
        let is_new = self.asked_questions.len() < MAX_QUESTIONS && !self.asked_questions.contains(&name);
        if !is_new || !question::is_open(approval, now_ms) || self.finished_ms.is_some() {
            return Vec::new();
        }
        let question = question::to_question(approval, &self.names, self.plan.as_deref());
        self.asked_questions.insert(name.clone());
        self.open_questions.insert(name, question.clone());
        vec![Event::Asked { question }]
    }

    /// Handles deadlines that have passed.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let expired: Vec<String> = (self.open_questions.iter())
            .filter(|(_, question)| question.deadline_ms <= now_ms)
            .map(|(name, _)| name.clone())
            .collect();
        for approval in expired {
            self.open_questions.remove(&approval);
            events.push(Event::Answered { approval, decision: Some(Decision::Expired), by: None });
        }
        let has_no_status = self.run.status.is_none() && !self.is_deleted;
        if has_no_status && !self.warned_no_status && now_ms.saturating_sub(self.created_ms) >= NO_STATUS_TIMEOUT_MS {
            self.warned_no_status = true;
            let text = "the run has no status yet; check that the controller is running: \
                        kubectl get pods -n sympozium-system";
            events.push(Event::Starting { text: text.to_owned() });
        }
        events.extend(self.project_end(now_ms));
        events
    }

    /// When [`Self::tick`] may have something to emit although no object changes.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let questions = self.open_questions.values().map(|it| it.deadline_ms);
        let no_status = self.created_ms + NO_STATUS_TIMEOUT_MS;
        let no_status = Some(no_status).filter(|_| self.run.status.is_none() && !self.warned_no_status);
        let records = self.finished_ms.map(|it| it + RECORDS_TIMEOUT_MS);
        let teardown = self.finished_ms.map(|it| it + TEARDOWN_TIMEOUT_MS);
        let all = questions.chain(no_status).chain(records).chain(teardown);
        all.min().filter(|_| !self.has_emitted_end)
    }

    /// Emits the conditions that keep the run from starting, unless they were emitted already.
    fn project_conditions(&mut self) -> Vec<Event> {
        let now: BTreeMap<String, String> = match view::run_end(&self.run) {
            Some(_) => BTreeMap::new(),
            None => view::unmet_conditions(&self.run).into_iter().collect(),
        };
        let is_new = |(name, text): &(&String, &String)| self.unmet_conditions.get(*name) != Some(*text);
        let events = now.iter().filter(is_new).map(|(name, text)| {
            let text = text.clone();
            match name.as_str() {
                condition::NETWORK_ENFORCED => Event::Warning { text },
                _ => Event::Starting { text },
            }
        });
        let events = events.collect();
        self.unmet_conditions = now;
        events
    }

    /// Emits what has changed in the run itself.
    fn project_status(&mut self, now_ms: u64) -> Vec<Event> {
        let mut events = self.project_conditions();
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
            events.extend(self.project_usage(view::to_usage(tokens)));
        }
        let phase = view::phase(&self.run);
        if self.phase != Some(phase) && view::run_end(&self.run).is_none() {
            self.phase = Some(phase);
            events.push(Event::Phase { phase });
        }
        events.extend(self.project_end(now_ms));
        events
    }

    fn project_usage(&mut self, usage: Usage) -> Option<Event> {
        // The receipts may be ahead of the report, or the report of the receipts.
        let usage = Usage { model_requests: usage.model_requests.max(self.model_requests), ..usage };
        let is_new = self.usage != usage;
        self.usage = usage;
        is_new.then_some(Event::Usage { usage })
    }

    /// Emits the lines that are next.
    fn project_lines(&mut self) -> Vec<Event> {
        // The plan is the first event.
        if !self.is_planned {
            return Vec::new();
        }
        let mut events = Vec::new();
        for line in self.transcript.take_ready() {
            // The agent writes these lines: one that is not JSON is a text.
            let line = serde_json::from_str(&line).unwrap_or(serde_json::Value::String(line));
            events.push(Event::Transcript { line });
        }
        for line in self.receipts.take_ready() {
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
                        "receipt {number} does not continue the hash chain ({problem}); \
                         it and all later receipts are not shown"
                    );
                    events.push(Event::Warning { text });
                }
            }
        }
        events
    }

    /// Emits the end, once everything that should come before it has arrived or has taken too long.
    fn project_end(&mut self, now_ms: u64) -> Vec<Event> {
        if self.has_emitted_end {
            return Vec::new();
        }
        let outcome = match view::run_end(&self.run) {
            Some(outcome) => outcome,
            None if self.is_deleted => RunEnd::Cancelled,
            None => return Vec::new(),
        };
        let finished_ms = *self.finished_ms.get_or_insert(now_ms);
        let waited = now_ms.saturating_sub(finished_ms);
        let mut events = self.project_lines();
        let is_complete = self.has_all_segments();
        let leftovers = view::leftovers(&self.run);
        let had_objects = self
            .run
            .status
            .as_ref()
            .is_some_and(|it| it.plan_digest.is_some() && (it.granted_at.is_some() || it.pod_name.is_some()));
        let is_revoked = leftovers.as_ref().is_some_and(Vec::is_empty) || !had_objects;
        if !self.is_deleted
            && ((!is_complete && waited < RECORDS_TIMEOUT_MS) || (!is_revoked && waited < TEARDOWN_TIMEOUT_MS))
        {
            return events;
        }
        let (name, target) = (self.run.name_any(), self.target.as_str());
        let mut warn = |text: String| events.push(Event::Warning { text });
        if self.is_deleted && view::run_end(&self.run).is_none() {
            warn("the AgentRun was deleted".to_owned());
        } else if !is_complete {
            warn(format!(
                "some records of the run have not arrived; read them later with `sympozium logs {name}{target}` and \
                 `sympozium audit {name}{target}`"
            ));
        }
        if leftovers.is_none() && !is_revoked && !self.is_deleted {
            warn(format!(
                "the teardown of the run is not verified yet; check it later with `sympozium show {name}{target}`"
            ));
        }
        if view::status(&self.run).phase == Some(RunPhase::Skipped) {
            warn("a pre-run hook reported that there is nothing to do".to_owned());
        }
        for approval in std::mem::take(&mut self.open_questions).into_keys() {
            events.push(Event::Answered { approval, decision: None, by: None });
        }
        self.has_emitted_end = true;
        events.push(Event::Ended { outcome, usage: self.usage, leftovers: leftovers.unwrap_or_default() });
        events
    }

    /// Whether all segments that the run reported have arrived.
    fn has_all_segments(&self) -> bool {
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
struct SegmentQueue {
    kind: RecordKind,
    next: i32,
    out_of_order: BTreeMap<i32, Vec<String>>,
    out_of_order_bytes: usize,
    /// Segments that arrived early and did not fit into the buffer.
    dropped: BTreeSet<i32>,
    ready: Vec<String>,
}

impl SegmentQueue {
    fn new(kind: RecordKind) -> Self {
        Self {
            kind,
            next: 0,
            out_of_order: BTreeMap::new(),
            out_of_order_bytes: 0,
            dropped: BTreeSet::new(),
            ready: Vec::new(),
        }
    }

    fn add(&mut self, record: RunRecord) {
        let segment = record.spec.segment;
        if segment < self.next || self.out_of_order.contains_key(&segment) {
            return;
        }
        let bytes = total_bytes(&record.spec.lines);
        if segment != self.next && self.out_of_order_bytes + bytes > MAX_OUT_OF_ORDER_BYTES {
            self.dropped.insert(segment);
            return;
        }
        self.dropped.remove(&segment);
        self.out_of_order_bytes += bytes;
        self.out_of_order.insert(segment, record.spec.lines);
        while let Some(lines) = self.out_of_order.remove(&self.next) {
            self.out_of_order_bytes -= total_bytes(&lines);
            self.ready.extend(lines);
            self.next += 1;
        }
    }

    /// The name of the next segment in its run, if that segment was dropped.
    fn dropped_name(&self) -> Option<String> {
        let is_wanted = self.dropped.contains(&self.next);
        is_wanted.then(|| records::segment_name(self.kind, self.next))
    }

    fn take_ready(&mut self) -> Vec<String> {
        std::mem::take(&mut self.ready)
    }
}

fn total_bytes(lines: &[String]) -> usize {
    lines.iter().map(String::len).sum()
}
