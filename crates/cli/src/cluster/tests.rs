//! Converting objects of a cluster into the types of our commands, without a cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sympozium_api::names::Digest;
use sympozium_api::{AgentRun, RunRecord, ToolApproval};
use sympozium_ipc::receipt::{self, Chain};
use sympozium_ipc::run_api::{BridgePhase, Decision, Usage};

use super::audit::{self, ClusterReceipts};
use super::fake_api_server::{self, FakeApiServer};
use super::follow::RunProjector;
use super::{list_runs, plan, view};
use crate::runs::audit::verify::{RunSelection, verify_in_store};
use crate::runs::view::format_cost;
use sympozium_runs::Event;
use sympozium_runs::TargetFlags;
use sympozium_runs::{RunEnd, StoredReceipts as _};

const UID: &str = "0b9d4c1e-0000-4000-8000-000000000001";
const NOW: u64 = 1_800_000_000_000;

fn digest() -> Digest {
    Digest::from(format!("sha256:{}", "1".repeat(64)).as_str())
}

fn run(status: Value) -> AgentRun {
    serde_json::from_value(json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
        "metadata": {"name": "nightly", "namespace": "team", "uid": UID, "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"agentRef": "worker", "task": "Report."},
        "status": status,
    }))
    .unwrap()
}

/// A chain of this many model requests, split into records of two lines.
fn receipts(count: usize) -> (Vec<RunRecord>, Digest) {
    let mut chain = Chain::new(digest());
    let event = |number: usize| receipt::Event::Model {
        request: number as u64,
        status: Some(200),
        sent_bytes: 1,
        received_bytes: 1,
        input_tokens: None,
        output_tokens: None,
        duration_ms: 1,
        error: None,
    };
    let mut records = Vec::new();
    let mut number = 0;
    while number < count {
        let previous = (number > 0).then(|| chain.head().clone());
        let first = number;
        let mut lines = Vec::new();
        while lines.len() < 2 && number < count {
            lines.push(chain.add(NOW, event(number)).unwrap().text);
            number += 1;
        }
        let segment = records.len();
        records.push(record("receipts", segment, first, &lines, previous, chain.head()));
    }
    (records, chain.head().clone())
}

fn record(
    kind: &str,
    segment: usize,
    first: usize,
    lines: &[String],
    previous: Option<Digest>,
    head: &Digest,
) -> RunRecord {
    let letter = &kind[..1];
    let name = plan::object_names(&run(json!({}))).with_suffix(&format!("{letter}{segment}"));
    serde_json::from_value(json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "RunRecord", "metadata": {"name": name},
        "spec": {
            "run": {"name": "nightly", "uid": UID}, "kind": kind, "segment": segment, "firstLine": first,
            "lines": lines, "previousHead": previous, "head": head,
        },
    }))
    .unwrap()
}

fn approval(name: &str, status: Value) -> ToolApproval {
    let name = plan::object_names(&run(json!({}))).with_suffix(name);
    serde_json::from_value(json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "ToolApproval", "metadata": {"name": name},
        "spec": {
            "run": {"name": "nightly", "uid": UID}, "tool": "execute_command", "pack": "shell",
            "actionHash": digest(), "summary": "shell: ls", "requestedAt": "2027-01-15T08:00:00Z",
            "expiresAt": "2027-01-15T08:10:00Z",
        },
        "status": status,
    }))
    .unwrap()
}

fn new_projector(run: AgentRun) -> RunProjector {
    let target = TargetFlags::cluster([("--context", Some("kind")), ("-n", Some("team"))]);
    RunProjector::new(run, target, NOW)
}

fn kinds(events: &[Event]) -> Vec<String> {
    let kind = |event: &Event| serde_json::to_value(event).unwrap()["event"].to_string();
    events.iter().map(kind).map(|it| it.trim_matches('"').to_owned()).collect()
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2027-01-15T08:00:00Z"})
}

#[test]
fn every_terminal_status_has_a_run_end() {
    let outcome = |status: Value| view::run_end(&run(status));
    let succeeded = RunEnd::Succeeded { answer: "Done.".to_owned() };
    let denied = |why: &str| RunEnd::Denied { why: why.to_owned() };
    let refused = |why: &str| RunEnd::Refused { why: why.to_owned() };
    let reasons = "denied[tool-gating]: AgentRun team/nightly: spec: no such tool (hint: name another)\n\
                   denied[floor]: AgentRun team/nightly: spec: no (hint: ask)";
    for (status, expected) in [
        (json!(null), None),
        (json!({"phase": "Pending"}), None),
        (json!({"phase": "PostRunning", "result": "Done."}), None),
        (json!({"phase": "Succeeded", "result": "Done."}), Some(succeeded)),
        (json!({"phase": "Cancelled"}), Some(RunEnd::Cancelled)),
        // As the controller writes each of them.
        (
            json!({"phase": "Failed", "error": format!("the run is denied\n{reasons}"),
                "conditions": [condition("Admitted", "False", "Denied", reasons)]}),
            Some(denied(reasons)),
        ),
        (
            json!({"phase": "Failed", "error": "the cluster has no agent-sandbox; install it",
                "conditions": [condition("Admitted", "False", "Impossible", "the cluster has no agent-sandbox; install it")]}),
            Some(refused("the cluster has no agent-sandbox; install it")),
        ),
        (
            json!({"phase": "Failed", "error": "the check of the network failed: the canary answers",
                "conditions": [condition("Admitted", "True", "Admitted", ""),
                    condition("NetworkEnforced", "False", "Unenforced", "the canary answers")],
                "failedContainers": [{"name": "check-network", "reason": "Error", "exitCode": 1}]}),
            Some(refused("the check of the network failed: the canary answers\ncheck-network: Error (exit code 1)")),
        ),
        // The floor permits it, and the run failed for another reason.
        (
            json!({"phase": "Failed", "error": "the agent crashed",
                "conditions": [condition("NetworkEnforced", "False", "Unenforced", "the canary answers")]}),
            Some(RunEnd::Failed { why: "the agent crashed".to_owned() }),
        ),
        (json!({"phase": "Failed", "error": "the run's time is up"}), Some(RunEnd::TimedOut)),
        (
            json!({"phase": "Failed", "report": {"reportedAt": "2027-01-15T08:00:00Z", "ending": "timedOut"}}),
            Some(RunEnd::TimedOut),
        ),
        (
            json!({"phase": "Failed", "error": "the agent crashed", "failedContainers":
                [{"name": "agent", "reason": "OOMKilled", "exitCode": 137, "logTail": "last words\n"}]}),
            Some(RunEnd::Failed {
                why: "the agent crashed\nagent: OOMKilled (exit code 137); the end of its log:\nlast words".to_owned(),
            }),
        ),
    ] {
        assert_eq!(outcome(status.clone()), expected, "{status}");
    }
}

#[test]
fn a_run_of_a_cluster_has_the_view_of_a_local_run() {
    let run = run(json!({
        "phase": "Running", "planDigest": digest(), "podName": "pod",
        "resolved": [{"kind": "SkillPack", "namespace": "team", "name": "shell", "digest": digest()}],
        "report": {"reportedAt": "2027-01-15T08:00:00Z", "phase": "waiting",
            "tokenUsage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7, "toolCalls": 1, "modelRequests": 2,
                "estimated": true, "durationMs": 5}},
    }));
    let (view, outcome) = view::to_view(&run, &TargetFlags::local());
    assert_eq!(outcome, None);
    assert_eq!(
        serde_json::to_value(&view).unwrap(),
        json!({
            "name": "nightly", "uid": UID, "namespace": "team", "agent": "worker", "model": "the agent's",
            "skills": ["shell"], "state": "waiting for approval", "alive": true, "startedMs": NOW, "endedMs": null,
            "usage": {"modelRequests": 2, "inputTokens": 3, "outputTokens": 4, "estimated": true, "toolCalls": 1},
            "workspace": null, "directory": null,
        })
    );
}

#[test]
fn the_cost_of_a_run_is_shown() {
    let cost_text = |amount: i64, estimated: bool| {
        let cost = json!({"amountMicro": amount, "currency": "USD", "source": "defaultTable",
            "priceKey": "openai/gpt-4o-mini"});
        let run = run(json!({
            "phase": "Succeeded", "costEstimate": cost,
            "tokenUsage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7, "toolCalls": 0,
                "estimated": estimated, "durationMs": 5},
        }));
        let (view, _) = view::to_view(&run, &TargetFlags::local());
        assert_eq!(serde_json::to_value(&view).unwrap()["cost"], cost);
        format_cost(&view).unwrap()
    };
    assert_eq!(cost_text(44, false), "0.000044 USD by openai/gpt-4o-mini");
    assert_eq!(cost_text(12_000_001, true), "about 12.000001 USD by openai/gpt-4o-mini");
    assert_eq!(cost_text(0, false), "0.000000 USD by openai/gpt-4o-mini");
    let without = run(json!({"phase": "Succeeded"}));
    assert_eq!(format_cost(&view::to_view(&without, &TargetFlags::local()).0), None);
}

#[test]
fn unmet_conditions_become_messages_and_events() {
    let run = run(json!({"phase": "Pending", "conditions": [
        condition("Admitted", "Unknown", "Waiting", "the run waits for Agent worker, which does not exist in namespace team"),
        condition("Granted", "True", "Granted", ""),
        condition("Started", "False", "ImagePull", ""),
        condition("NetworkEnforced", "Unknown", "Unknown", ""),
    ]}));
    let messages: Vec<String> = view::unmet_conditions(&run).into_iter().map(|(_, text)| text).collect();
    assert_eq!(
        messages,
        [
            "the run waits for Agent worker, which does not exist in namespace team",
            "an image of the pod cannot be pulled"
        ]
    );
    let mut events = new_projector(run.clone());
    let first = events.on_run(run.clone(), NOW);
    assert_eq!(kinds(&first), ["starting", "starting", "phase"]);
    // The same object emits nothing a second time.
    assert_eq!(events.on_run(run, NOW), []);
}

#[test]
fn objects_in_any_order_become_events_in_order() {
    let (records, head) = receipts(3);
    let started = json!({"phase": "Running", "planDigest": digest(), "podName": "pod",
        "report": {"reportedAt": "2027-01-15T08:00:00Z", "phase": "working"}});
    let mut projector = new_projector(run(json!(null)));
    // The plan is the first event, and the second segment waits for the first.
    assert_eq!(projector.on_record(records[1].clone(), NOW), []);
    assert_eq!(projector.on_run(run(started.clone()), NOW), []);
    assert!(projector.needs_plan());
    let events = projector.on_plan(None, NOW);
    assert_eq!(kinds(&events), ["planned", "phase"]);
    assert_eq!(events[1], Event::Phase { phase: BridgePhase::Working });
    let events = projector.on_record(records[0].clone(), NOW);
    assert_eq!(kinds(&events), ["receipt", "receipt", "receipt"]);
    // Nothing is emitted twice.
    assert_eq!(projector.on_record(records[0].clone(), NOW), []);

    let asked = projector.on_approval(&approval("q1", json!(null)), NOW);
    let [Event::Asked { question }] = asked.as_slice() else {
        panic!("no question was emitted: {asked:?}");
    };
    assert_eq!((question.approval.as_str(), question.deadline_ms), ("q1", NOW + 600_000));
    let decided = json!({"decision": "denied", "decidedBy": "bob", "decidedAt": "2027-01-15T08:01:00Z"});
    assert_eq!(
        projector.on_approval(&approval("q1", decided), NOW),
        [Event::Answered { approval: "q1".to_owned(), decision: Some(Decision::Denied), by: Some("bob".to_owned()) }]
    );
    projector.on_approval(&approval("q2", json!(null)), NOW);
    let expired = Event::Answered { approval: "q2".to_owned(), decision: Some(Decision::Expired), by: None };
    assert_eq!(projector.next_deadline_ms(), Some(NOW + 600_000));
    assert_eq!(projector.tick(NOW + 600_000), [expired]);

    // The end is emitted after all reported records, and after the teardown is verified.
    let mut ended = started;
    ended["phase"] = json!("Succeeded");
    ended["result"] = json!("Done.");
    ended["report"]["transcriptSegments"] = json!(1);
    ended["report"]["receiptSegments"] = json!(2);
    ended["report"]["receiptsHead"] = json!(head);
    assert_eq!(projector.on_run(run(ended.clone()), NOW), []);
    let transcript = record("transcript", 0, 0, &["{\"kind\":\"end\"}".to_owned(), "no JSON".to_owned()], None, &head);
    assert_eq!(kinds(&projector.on_record(transcript, NOW)), ["transcript", "transcript"]);
    ended["revocation"] = json!({"checkedAt": "2027-01-15T08:02:00Z",
        "remaining": [{"kind": "Role", "namespace": "team", "name": "x"}]});
    // Leftovers may be removed later, so this is not the end.
    assert_eq!(projector.on_run(run(ended.clone()), NOW), []);
    let ended_event = |leftovers: Vec<String>| {
        [Event::Ended {
            outcome: RunEnd::Succeeded { answer: "Done.".to_owned() },
            usage: Usage { model_requests: 3, ..Usage::default() },
            leftovers,
        }]
    };
    ended["revocation"] = json!({"checkedAt": "2027-01-15T08:02:02Z"});
    assert_eq!(projector.on_run(run(ended), NOW + 1), ended_event(Vec::new()));
    assert!(projector.has_emitted_end());
}

#[test]
fn leftovers_are_in_the_last_event() {
    let ended = run(json!({"phase": "Succeeded", "result": "Done.", "planDigest": digest(), "podName": "pod",
        "tokenUsage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7, "toolCalls": 1, "modelRequests": 2,
            "estimated": true, "durationMs": 5},
        "revocation": {"checkedAt": "2027-01-15T08:02:00Z",
            "remaining": [{"kind": "Role", "namespace": "team", "name": "x"}]}}));
    let mut projector = new_projector(ended.clone());
    projector.on_run(ended, NOW);
    assert_eq!(kinds(&projector.on_plan(None, NOW)), ["planned", "usage"]);
    assert_eq!(projector.tick(NOW + 59_999), []);
    assert_eq!(
        projector.tick(NOW + 60_000),
        [Event::Ended {
            outcome: RunEnd::Succeeded { answer: "Done.".to_owned() },
            usage: Usage { model_requests: 2, input_tokens: 3, output_tokens: 4, estimated: true, tool_calls: 1 },
            leftovers: vec!["Role team/x".to_owned()],
        }]
    );
}

/// All events of this many records, in the order in which the API server lists them.
fn project_records(records: Vec<RunRecord>) -> (RunProjector, Vec<Event>) {
    let started = run(json!({"phase": "Running", "planDigest": digest()}));
    let mut projector = new_projector(started.clone());
    projector.on_run(started, NOW);
    projector.on_plan(None, NOW);
    let mut listed: Vec<(String, RunRecord)> =
        records.into_iter().map(|it| (it.metadata.name.clone().unwrap(), it)).collect();
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    let stored: BTreeMap<String, RunRecord> = listed.iter().cloned().collect();
    let mut events = Vec::new();
    for (_, record) in listed {
        events.extend(projector.on_record(record, NOW));
        // As the watch does it.
        while let Some(name) = projector.needs_record() {
            events.extend(projector.on_record_read(Some(stored[&name].clone()), NOW));
        }
    }
    (projector, events)
}

#[test]
fn every_receipt_of_a_run_with_many_records_is_emitted() {
    for count in [300, 1_000] {
        let (records, _) = receipts(2 * count);
        assert_eq!(records.len(), count);
        let (_, events) = project_records(records);
        let all = kinds(&events);
        assert!(all.iter().all(|it| it == "receipt"), "{count}");
        assert_eq!(all.len(), 2 * count);
    }
}

#[test]
fn records_that_do_not_fit_are_read_again() {
    // Transcript segments of a megabyte: of a hundred, more arrive early than are buffered.
    let line = "x".repeat(1 << 20);
    let piece = |segment: usize| {
        let line = format!("\"{segment} {line}\"");
        record("transcript", segment, segment, &[line], None, &digest())
    };
    let (mut projector, events) = project_records((0..100).map(piece).collect());
    let numbers: Vec<usize> = events
        .iter()
        .map(|event| match event {
            Event::Transcript { line } => {
                let line = line.as_str().unwrap();
                line.split(' ').next().unwrap().parse().unwrap()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    assert_eq!(projector.needs_record(), None);
    // A segment that is deleted by then is missing, and is not requested again.
    for segment in (101..140).chain([100]) {
        projector.on_record(piece(segment), NOW);
    }
    let wanted = projector.needs_record().unwrap();
    assert!(wanted.ends_with("-t132"), "{wanted}");
    // The record belongs to another run.
    let mut foreign = piece(132);
    foreign.spec.run.uid = "other".into();
    assert_eq!(projector.on_record_read(Some(foreign), NOW), []);
    assert_eq!(projector.needs_record(), None);
}

#[test]
fn waits_are_bounded() {
    let mut projector = new_projector(run(json!(null)));
    assert_eq!(kinds(&projector.tick(NOW + 15_000)), ["starting"]);
    assert_eq!(projector.tick(NOW + 16_000), []);
    let ended = json!({"phase": "Failed", "error": "no", "planDigest": digest(), "podName": "pod",
        "report": {"reportedAt": "2027-01-15T08:00:00Z", "receiptSegments": 1}});
    projector.on_run(run(ended), NOW);
    projector.on_plan(None, NOW);
    assert_eq!(projector.tick(NOW + 10_001), []);
    assert_eq!(kinds(&projector.tick(NOW + 60_001)), ["warning", "warning", "ended"]);

    // A deleted run ends at once.
    let mut projector = new_projector(run(json!({"phase": "Running"})));
    let events = projector.on_run_deleted(NOW);
    assert_eq!(kinds(&events), ["warning", "ended"]);
    assert!(matches!(&events[1], Event::Ended { outcome: RunEnd::Cancelled, .. }));
}

#[test]
fn receipts_that_break_the_chain_are_not_emitted() {
    let (mut records, _) = receipts(3);
    let changed = records[0].spec.lines[1].replace("\"request\":1", "\"request\":9");
    records[0].spec.lines[1] = changed;
    let started = run(json!({"phase": "Running", "planDigest": digest()}));
    let mut projector = new_projector(started.clone());
    projector.on_run(started, NOW);
    projector.on_plan(None, NOW);
    // A changed line shows in the next one, which is not chained to it.
    let events = projector.on_record(records[0].clone(), NOW);
    assert_eq!(kinds(&events), ["receipt", "receipt"]);
    let events = projector.on_record(records[1].clone(), NOW);
    assert_eq!(kinds(&events), ["warning"]);
    // A record of another run, by name or by UID, is ignored.
    let mut foreign = receipts(1).0.remove(0);
    foreign.metadata.name = Some("other".to_owned());
    assert_eq!(projector.on_record(foreign, NOW), []);
}

fn cluster_receipts(records: Vec<RunRecord>, report: Value) -> ClusterReceipts {
    let run = run(json!({"phase": "Succeeded", "planDigest": digest(), "report": report}));
    let status = view::status(&run);
    ClusterReceipts {
        name: "nightly".to_owned(),
        uid: UID.to_owned(),
        plan: status.plan_digest,
        plan_check: Ok(()),
        report: status.report,
        is_running: false,
        records,
    }
}

fn verify(receipts: &ClusterReceipts) -> Result<String, String> {
    let verified = receipts.verify(&mut |_, _| true);
    verified.map(|it| it.to_string()).map_err(|error| format!("{error:#}"))
}

#[test]
fn a_chain_is_verified_to_the_head_that_was_reported() {
    let (records, head) = receipts(3);
    let report = |count: u64, head: &Digest| {
        json!({"reportedAt": "2027-01-15T08:00:00Z", "receipts": count, "receiptsHead": head,
            "receiptSegments": 2})
    };
    let complete = cluster_receipts(records.clone(), report(3, &head));
    assert_eq!(verify(&complete), Ok(format!("3 receipts, head {head}")));

    // Truncated at its end.
    let truncated = cluster_receipts(records[..1].to_vec(), report(3, &head));
    assert_eq!(
        verify(&truncated),
        Err("RunRecords: line 3: missing: there are 2 receipts, but 3 were reported".to_owned())
    );
    // A changed line, with everything behind it left as it was.
    let mut forged = records.clone();
    forged[0].spec.lines[1] = forged[0].spec.lines[1].replace("\"request\":1", "\"request\":7");
    let error = verify(&cluster_receipts(forged, report(3, &head))).unwrap_err();
    assert!(error.contains("line 2: the head of its RunRecord is not the hash"), "{error}");
    // The same with a matching head: the next record does not match.
    let mut forged = records.clone();
    let line = forged[0].spec.lines[1].replace("\"request\":1", "\"request\":7");
    forged[0].spec.head = Chain::line_hash(&line);
    forged[0].spec.lines[1] = line;
    let error = verify(&cluster_receipts(forged, report(3, &head))).unwrap_err();
    assert!(error.contains("line 3: its RunRecord does not continue"), "{error}");
    // A completely different chain has another head.
    let (other, other_head) = receipts(2);
    let error = verify(&cluster_receipts(other, report(2, &head))).unwrap_err();
    assert!(error.contains(other_head.as_ref()), "{error}");
    // Lines that were never reported do not count.
    let (more, _) = receipts(4);
    let unreported = verify(&cluster_receipts(more, report(3, &head))).unwrap();
    assert!(unreported.contains("were never reported, and are ignored"), "{unreported}");
    let no_report = cluster_receipts(Vec::new(), json!(null));
    assert!(verify(&no_report).unwrap_err().contains("the run has no report"));
    let replaced =
        ClusterReceipts { plan_check: Err("another digest".to_owned()), ..cluster_receipts(records, report(3, &head)) };
    assert!(verify(&replaced).unwrap_err().contains("the stored plan does not match"));
}

#[test]
fn listing_runs_collects_only_selected_values() {
    let fake = FakeApiServer::new(|_, path| {
        let (from, next) = match path.contains("continue=second") {
            false => (0, "second"),
            true => (50, ""),
        };
        let run = |number: usize| {
            let uid = format!("{:08}-0000-4000-8000-000000000001", number / 2);
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
                "metadata": {"name": format!("run-{number}"), "namespace": "team", "uid": uid},
                "spec": {"agentRef": "worker", "task": "Report."},
                "status": {"phase": "Succeeded", "result": "x".repeat(10_000)},
            })
        };
        Some(match path.contains("agentruns/") {
            // It is not a valid name.
            true => fake_api_server::not_found("run"),
            false => (200, fake_api_server::list_page(&(from..from + 50).map(run).collect::<Vec<_>>(), next)),
        })
    });
    let cluster = fake.cluster();
    let mut most = 0;
    let (names, has_more) = cluster
        .block_on(list_runs(&cluster.connection, |run| {
            most += 1;
            run.metadata.name.filter(|it| it.ends_with('7'))
        }))
        .unwrap();
    assert_eq!((names.len(), most, has_more), (10, 100, false));
    assert_eq!(names[9], "run-97");
    let asked = fake.requests();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|it| it.contains("limit=50")), "{asked:?}");
    // Both runs have this UID prefix, and neither is chosen.
    let several = cluster.find("00000007").unwrap_err();
    assert!(several.summary().contains("several runs"), "{}", several.summary());
}

#[test]
fn a_run_that_is_deleted_meanwhile_does_not_stop_the_verification_of_others() {
    let (records, head) = receipts(2);
    let of_run = move |name: &str| {
        let mut run = serde_json::to_value(run(json!({"phase": "Succeeded", "planDigest": digest(),
            "report": {"reportedAt": "2027-01-15T08:00:00Z", "receipts": 2, "receiptsHead": head, "receiptSegments": 1}})))
        .unwrap();
        run["metadata"]["name"] = json!(name);
        run
    };
    let record = serde_json::to_value(&records[0]).unwrap();
    let fake = FakeApiServer::new(move |_, path| {
        let path = path.split('?').next().unwrap_or_default();
        Some(match path.rsplit('/').next().unwrap_or_default() {
            "agentruns" => (200, fake_api_server::list_page(&[of_run("gone"), of_run("nightly")], "")),
            "nightly" => (200, of_run("nightly")),
            "runrecords" => (200, fake_api_server::list_page(std::slice::from_ref(&record), "")),
            other => fake_api_server::not_found(other),
        })
    });
    let cluster = fake.cluster();
    let names = audit::reported_runs(&cluster).unwrap();
    assert_eq!(names, ["gone", "nightly"]);
    let verdicts: Vec<Result<String, String>> =
        names.iter().map(|it| verify_in_store(&cluster, RunSelection::All, it).unwrap()).collect();
    let [Err(gone), Ok(whole)] = verdicts.as_slice() else {
        panic!("{verdicts:?}");
    };
    assert!(gone.starts_with("not verified: gone: there is no run `gone` in namespace `team`"), "{gone}");
    assert!(whole.starts_with("ok: nightly ("), "{whole}");
    // One of the named runs does not exist: no other request was sent.
    assert!(verify_in_store(&cluster, RunSelection::Named, "gone").is_err());
}
