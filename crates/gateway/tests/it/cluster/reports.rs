//! What a run reports becomes records and its status, once, on whichever gateway.

use std::time::Instant;

use serde_json::{Value, json};
use sympozium_ipc::receipt::{Actor, CallDecision, Event, Outcome, OutputSize, ReportedIsolation};
use sympozium_ipc::run_api::{BridgePhase, Report, Usage};

use super::{ClusterHarness, Run, probe, reported};
use crate::harness::TIMEOUT;
use crate::run_api::Reporting;

fn records(harness: &ClusterHarness, run: &Run) -> Vec<Value> {
    let uid = run.plan.run.uid.as_str();
    let of_run = |it: &Value| it["metadata"]["labels"]["sympozium.ai/run-uid"] == uid;
    harness.list("runrecords").into_iter().filter(of_run).collect()
}

fn report_of(harness: &ClusterHarness, name: &str) -> Value {
    let mut report = harness.get("agentrun", name)["status"]["report"].clone();
    let fields = report.as_object_mut().expect("a report");
    assert!(fields.remove("reportedAt").is_some());
    let usage = &mut fields["tokenUsage"];
    assert!(usage["durationMs"].as_i64() > Some(0));
    usage["durationMs"] = json!(1);
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_becomes_records_and_the_status_of_its_run() {
    let Some(harness) = ClusterHarness::open("reports") else {
        return;
    };
    let gateway = harness.gateway("gateway");
    let run = harness.run("one", |_| {});
    let bridge = harness.served(&gateway, &run).await;
    let mut reports = run.reports();
    let long = json!({ "text": "\"x<".repeat(50_000) }).to_string();
    let first = Report {
        transcript: vec!["{\"said\":1}".to_owned(), "no JSON".to_owned(), long.clone()],
        progress: Some("thinking".to_owned()),
        usage: Usage { model_requests: 1, input_tokens: 20, output_tokens: 3, estimated: false, tool_calls: 4 },
        ..reports.next(3)
    };
    assert_eq!(reported(&bridge, &first).await, Ok(3));
    let second = reports.next(0);
    assert_eq!(reported(&bridge, &second).await, Ok(3));
    let last = reports.last();
    assert_eq!(reported(&bridge, &last).await, Ok(4));
    // Its answer was lost, and it comes again.
    assert_eq!(reported(&bridge, &last).await, Ok(4));

    let made = records(&harness, &run);
    let names: Vec<&str> = made.iter().filter_map(|it| it["metadata"]["name"].as_str()).collect();
    assert_eq!(names, [run.name("r0"), run.name("r1"), run.name("t0")]);
    let uid = run.plan.run.uid.as_str();
    for record in &made {
        assert_eq!(record["metadata"]["ownerReferences"][0]["uid"], uid);
        assert_eq!(record["spec"]["run"], json!({ "name": "one", "uid": uid }));
    }
    let spec = |place: usize| {
        let mut spec = made[place]["spec"].clone();
        let fields = spec.as_object_mut().expect("a spec");
        assert!(fields.remove("recordedAt").is_some() && fields.remove("run").is_some());
        spec
    };
    let receipts = |segment: i64, first: i64, report: &Report| {
        json!({
            "kind": "receipts", "segment": segment, "firstLine": first,
            "lines": report.receipts, "head": report.head,
        })
    };
    assert_eq!(spec(0), receipts(0, 0, &first));
    let mut after = receipts(1, 3, &last);
    after["previousHead"] = json!(first.head);
    assert_eq!(spec(1), after);
    let said = spec(2)["lines"].as_array().expect("lines").clone();
    assert_eq!((said.len(), &said[0], &said[1]), (3, &json!("{\"said\":1}"), &json!("\"no JSON\"")));
    let cut: Value = serde_json::from_str(said[2].as_str().expect("text")).expect("JSON");
    assert_eq!(cut["bytes"], long.len());
    assert!(long.starts_with(cut["cut"].as_str().expect("text")));

    let bytes: usize = said.iter().filter_map(Value::as_str).map(|it| it.len() + 1).sum();
    let written = report_of(&harness, "one");
    let digest = written["lastReport"].clone();
    assert_eq!(
        written,
        json!({
            "reports": 3, "lastReport": digest, "phase": "ended", "progress": "thinking",
            "finished": true, "ending": "answered", "result": "the answer",
            "tokenUsage": {
                "inputTokens": 0, "outputTokens": 0, "totalTokens": 0, "toolCalls": 0, "durationMs": 1,
                "modelRequests": 0, "estimated": false,
            },
            "receipts": 4, "receiptsHead": last.head, "receiptSegments": 2,
            "transcriptSegments": 1, "transcriptBytes": bytes, "transcriptCut": false,
        })
    );
    // What the controller wrote is as it was, and who wrote what is known.
    let object = harness.get("agentrun", "one");
    assert_eq!(object["status"]["podUID"], run.pod_uid);
    let kubectl = harness.kubectl(&["get", "agentrun", "one", "--show-managed-fields", "-o", "json"]);
    let object: Value = serde_json::from_str(&kubectl).expect("JSON");
    let managers = object["metadata"]["managedFields"].as_array().expect("managers");
    let ours = managers.iter().find(|it| it["manager"] == "sympozium-gateway").expect("ours");
    let fields = ours["fieldsV1"]["f:status"].as_object().expect("fields");
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["f:report"]);
    // Nothing after the end.
    assert_eq!(reported(&bridge, &reports.next(0)).await, Err("chain".to_owned()));
    assert!(probe(&gateway, "/metrics").1.contains("reports_total{outcome=\"kept\"} 3"));
}

/// A report with these events as its receipts.
fn with_events(reports: &mut Reporting, phase: BridgePhase, events: Vec<Event>) -> Report {
    let first_receipt = reports.chain.len();
    let line = |event| reports.chain.add(1, event).expect("it fits").text;
    let receipts = events.into_iter().map(line).collect();
    Report { phase, first_receipt, receipts, ..reports.next(0) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_take_turns_and_each_report_counts_once() {
    let Some(harness) = ClusterHarness::open("turns") else {
        return;
    };
    let run = harness.run("one", |_| {});
    let gateways = [harness.gateway("first"), harness.gateway("second")];
    let bridges = [harness.served(&gateways[0], &run).await, harness.served(&gateways[1], &run).await];
    let mut reports = run.reports();
    for number in 0..6_u64 {
        let report = Report { transcript: vec![format!("{{\"n\":{number}}}")], ..reports.next(1) };
        let (here, there) = (&bridges[number as usize % 2], &bridges[(number as usize + 1) % 2]);
        if number < 3 {
            assert_eq!(reported(here, &report).await, Ok(number + 1), "{number}");
            // The answer was lost, and the bridge has another connection now.
            assert_eq!(reported(there, &report).await, Ok(number + 1), "{number}");
        } else {
            // Both at once: it is taken once, and both say so.
            let both = tokio::join!(reported(here, &report), reported(there, &report));
            assert_eq!(both, (Ok(number + 1), Ok(number + 1)), "{number}");
        }
    }
    let status = report_of(&harness, "one");
    assert_eq!(
        (&status["reports"], &status["receipts"], &status["receiptSegments"]),
        (&json!(6), &json!(6), &json!(6))
    );
    let made = records(&harness, &run);
    assert_eq!(made.len(), 12);
    let heads = |kind: &str| -> Vec<(Value, Value)> {
        let of_kind = made.iter().filter(|it| it["spec"]["kind"] == kind);
        let heads = of_kind.map(|it| (it["spec"]["previousHead"].clone(), it["spec"]["head"].clone()));
        heads.collect()
    };
    for kind in ["receipts", "transcript"] {
        let heads = heads(kind);
        assert_eq!(heads[0].0, Value::Null);
        for pair in heads.windows(2) {
            assert_eq!(pair[0].1, pair[1].0, "{kind}");
        }
    }

    // What one gateway was told of a call the other one knows: whose it was, and that it waited.
    let digest = reports.chain.head().clone();
    let asked = vec![
        Event::Called {
            call: 1,
            tool: "execute_command".to_owned(),
            pack: Some("cluster".to_owned()),
            arguments: digest.clone(),
            gate: None,
            decided: CallDecision::Waiting,
            reason: None,
        },
        Event::Asked { call: 1, action: digest.clone(), approval: "0a1b".to_owned() },
    ];
    let asked = with_events(&mut reports, BridgePhase::Waiting, asked);
    assert_eq!(reported(&bridges[0], &asked).await, Ok(8));
    assert_eq!(report_of(&harness, "one")["waitingFor"], json!([run.name("0a1b")]));
    let acted = vec![Event::Acted {
        call: 1,
        by: Actor::Skill,
        action: digest,
        outcome: Outcome::Done,
        output: OutputSize::default(),
        duration_ms: 1,
        isolation: Some(ReportedIsolation {
            profile: "container".to_owned(),
            guarantees: vec!["filesystem".to_owned(), "pids".to_owned()],
        }),
    }];
    let acted = with_events(&mut reports, BridgePhase::Working, acted);
    assert_eq!(reported(&bridges[1], &acted).await, Ok(9));
    let status = report_of(&harness, "one");
    assert_eq!(status.get("waitingFor"), None);
    let expected = json!([{
        "part": "skill-cluster", "profile": "container", "guarantees": ["filesystem", "pids"],
    }]);
    assert_eq!(status["isolation"], expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_comes_again_after_a_crash_meets_its_own_record_or_is_refused() {
    let Some(harness) = ClusterHarness::open("crash") else {
        return;
    };
    let gateway = harness.gateway("gateway");
    for (name, is_same) in [("same", true), ("other", false)] {
        let run = harness.run(name, |_| {});
        let bridge = harness.served(&gateway, &run).await;
        let mut reports = run.reports();
        let first = reports.next(2);
        let mut lines = first.receipts.clone();
        if !is_same {
            lines.pop();
        }
        // As a gateway left it that was killed before it wrote the status.
        harness.create(&json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "RunRecord",
            "metadata": { "name": run.name("r0") },
            "spec": {
                "run": { "name": name, "uid": run.plan.run.uid },
                "kind": "receipts", "segment": 0, "firstLine": 0, "lines": lines,
                "head": first.head, "recordedAt": "2026-01-01T00:00:00Z",
            },
        }));
        if is_same {
            assert_eq!(reported(&bridge, &first).await, Ok(2));
            assert_eq!(reported(&bridge, &reports.next(1)).await, Ok(3));
            assert_eq!(report_of(&harness, name)["receiptSegments"], 2);
        } else {
            let deadline = Instant::now() + TIMEOUT;
            // Another reason is that the API server did not answer in time.
            loop {
                assert_eq!(bridge.report(&first).await, Err("failed".to_owned()));
                if gateway.log().contains("is there and has other lines") {
                    break;
                }
                assert!(Instant::now() < deadline, "{}", gateway.log());
            }
            assert_eq!(harness.get("agentrun", name)["status"].get("report"), None);
        }
    }
}
