use serde_json::{Value, json};

use sympozium_runs::{RunEnd, TimedEvent};

use super::*;
use crate::failure::Failure;

fn records(segments: &[usize]) -> Records {
    let record = |segment: &usize| {
        serde_json::from_value(json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "RunRecord", "metadata": {"name": "x"},
            "spec": {"run": {"name": "nightly", "uid": "uid"}, "kind": "transcript", "segment": segment,
                "firstLine": segment, "lines": [], "head": "sha256:0"},
        }))
        .unwrap()
    };
    let (records, gap) = records::take_contiguous(segments.iter().map(record).collect());
    Records { records, is_truncated: false, gap }
}

#[test]
fn missing_segments_are_reported() {
    let report = |segments: Value| -> RunReport {
        let report = json!({"reportedAt": "2027-01-15T08:00:00Z", "transcriptSegments": segments});
        serde_json::from_value(report).unwrap()
    };
    let of = |segments: &[usize], reported: Value| missing_warning(&records(segments), Some(&report(reported)));
    assert_eq!(of(&[2, 0, 1], json!(3)), None);
    assert_eq!(of(&[0], json!(null)), None);
    // More segments than reported exist while the next report is still to come.
    assert_eq!(of(&[0, 1], json!(1)), None);
    let gap = of(&[0, 1, 3], json!(4)).unwrap();
    assert!(gap.contains("RunRecord t2 of the run is missing"), "{gap}");
    let end = of(&[0, 1], json!(3)).unwrap();
    assert!(end.contains("RunRecord t2 of the run is missing"), "{end}");
    assert!(missing_warning(&records(&[1]), None).unwrap().contains("t0"));
}

#[test]
fn a_part_has_no_log_before_there_is_a_pod() {
    let logs = |status: Value| {
        let run = json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
            "metadata": {"name": "nightly", "namespace": "team", "uid": "uid"},
            "spec": {"agentRef": "worker", "task": "Report."}, "status": status,
        });
        let fake = super::super::fake_api_server::FakeApiServer::new(move |_, _| Some((200, run.clone())));
        let request = LogRequest { part: Some("agent"), follow: false };
        match read(&fake.cluster(), "nightly", request, &mut NoSink) {
            Err(LogError::Store(error)) => Failure::from(error).text(),
            other => panic!("{other:?}"),
        }
    };
    let pending = json!({"phase": "Pending", "conditions": [{"type": "Admitted", "status": "Unknown",
        "reason": "Waiting", "message": "the run waits for SkillPack shell, which does not exist in namespace team",
        "lastTransitionTime": "2027-01-15T08:00:00Z"}]});
    assert_eq!(
        logs(pending),
        "error: part `agent` has no log, because the run has no pod yet: the run waits for SkillPack shell, which does not exist in namespace team\n\
         hint: `sympozium show nightly --context kind -n team` prints the state of the run\n"
    );
    let ended = logs(json!({"phase": "Cancelled"}));
    assert!(ended.starts_with("error: part `agent` has no log: the run has no pod any more, "), "{ended}");
}

/// Expects no output.
struct NoSink;

impl LogSink for NoSink {
    fn transcript_line(&mut self, _: String) -> std::io::Result<()> {
        panic!("there is a transcript")
    }

    fn event(&mut self, _: &TimedEvent) -> std::io::Result<()> {
        panic!("there is an event")
    }

    fn part_output(&mut self, _: &[u8]) -> std::io::Result<()> {
        panic!("there is a log")
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn note(&mut self, _: &str) {}

    fn run_state(&mut self, _: Option<&RunEnd>) {}
}
