//! Builds `status.report` from its previous value and the next report. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sympozium_api::agent_run::{ReportedPhase, RunReport, TokenUsage};
use sympozium_api::limits::{LONG_TEXT, NAMES, VALUE};
use sympozium_api::names::ObjectName;
use sympozium_api::run_plan::RunIdentity;
use sympozium_ipc::run_api::{AgentEnd, BridgePhase, Report};

use super::calls::OpenCalls;
use super::segments::{TranscriptSegments, stored_char_bytes};
use crate::cluster::objects::approval_name;
use crate::run_api::ReportCursor;

/// Maximum number of bytes of the longest text in a status, as it is stored: the controller writes the answer a second
/// time, and the run's manifest is in the same object, for which etcd has 1.5 MiB.
pub const MAX_STORED_TEXT: usize = 400 << 10;
/// The suffix of a truncated text.
const TRUNCATED_SUFFIX: &str = "… (cut)";

/// What is needed besides the report.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReportContext<'a> {
    pub run: &'a RunIdentity,
    /// The current report in the status.
    pub before: Option<&'a RunReport>,
    /// The cursor after this report.
    pub cursor: &'a ReportCursor,
    pub calls: &'a OpenCalls,
    /// Number of receipt records, including those of this report.
    pub receipt_segments: i64,
    pub transcript: &'a TranscriptSegments,
    pub started_at: Option<&'a Time>,
    pub now: &'a Time,
}

/// The next report in the status, without isolation.
pub(super) fn build_report(report: &Report, around: ReportContext<'_>) -> RunReport {
    let ReportContext { before, cursor, .. } = around;
    let before_or = |read: fn(&RunReport) -> Option<i64>| before.and_then(read).unwrap_or(0);
    let end = report.ending.as_ref();
    let (result, error) = end.map_or((None, None), end_texts);
    let usage = &report.usage;
    let duration =
        around.started_at.map_or(0, |started| (around.now.0.as_millisecond() - started.0.as_millisecond()).max(0));
    let waiting = around.calls.pending_questions().take(NAMES);
    let waiting_for = match report.phase {
        BridgePhase::Waiting => waiting.map(|waiting| ObjectName::new(approval_name(around.run, waiting))).collect(),
        BridgePhase::Starting | BridgePhase::Working | BridgePhase::Ended => Vec::new(),
    };
    let new_segments = i64::try_from(around.transcript.segments.len()).unwrap_or(i64::MAX);
    RunReport {
        reported_at: around.now.clone(),
        reports: to_i64(cursor.reports),
        last_report: cursor.last.clone(),
        phase: Some(reported_phase(report.phase)),
        progress: match &report.progress {
            Some(progress) => Some(to_stored_text(progress, VALUE)),
            None => before.and_then(|before| before.progress.clone()),
        },
        finished: report.ending.is_some(),
        ending: end.map(AgentEnd::kind),
        result,
        error,
        token_usage: Some(TokenUsage {
            input_tokens: to_i64(usage.input_tokens),
            output_tokens: to_i64(usage.output_tokens),
            total_tokens: to_i64(usage.input_tokens.saturating_add(usage.output_tokens)),
            tool_calls: to_i64(usage.tool_calls),
            model_requests: to_i64(usage.model_requests),
            estimated: usage.estimated,
            duration_ms: duration,
        }),
        isolation: Vec::new(),
        waiting_for,
        receipts: Some(to_i64(cursor.receipts)),
        receipts_head: Some(cursor.head.clone()),
        receipt_segments: Some(around.receipt_segments),
        transcript_segments: Some(before_or(|report| report.transcript_segments) + new_segments),
        transcript_bytes: Some(before_or(|report| report.transcript_bytes) + around.transcript.bytes),
        transcript_cut: before.is_some_and(|before| before.transcript_cut) || around.transcript.truncated,
    }
}

/// The cursor of a report in a status.
pub(super) fn read_cursor(report: &RunReport, plan: &sympozium_api::names::Digest) -> ReportCursor {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    ReportCursor {
        reports: count(report.reports),
        last: report.last_report.clone(),
        receipts: count(report.receipts.unwrap_or(0)),
        head: report.receipts_head.clone().unwrap_or_else(|| plan.clone()),
        phase: report.phase.map(|phase| match phase {
            ReportedPhase::Starting => BridgePhase::Starting,
            ReportedPhase::Working => BridgePhase::Working,
            ReportedPhase::Waiting => BridgePhase::Waiting,
            ReportedPhase::Ended => BridgePhase::Ended,
        }),
    }
}

/// The answer or the error of an end, in its stored form.
fn end_texts(end: &AgentEnd) -> (Option<String>, Option<String>) {
    match end {
        AgentEnd::Answered { text } => (Some(to_stored_text(text, LONG_TEXT)), None),
        AgentEnd::Failed { error: why } | AgentEnd::Crashed { known: why } => (None, Some(to_stored_text(why, VALUE))),
        AgentEnd::NeverCame | AgentEnd::TimedOut | AgentEnd::Stopped => (None, None),
    }
}

fn reported_phase(phase: BridgePhase) -> ReportedPhase {
    match phase {
        BridgePhase::Starting => ReportedPhase::Starting,
        BridgePhase::Working => ReportedPhase::Working,
        BridgePhase::Waiting => ReportedPhase::Waiting,
        BridgePhase::Ended => ReportedPhase::Ended,
    }
}

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A text in its stored form: truncated to this many characters, and to the bytes that can be stored, with a suffix.
fn to_stored_text(text: &str, most: usize) -> String {
    let (mut characters, mut bytes) = (0, 0);
    // The end of the text if it is truncated.
    let mut end = 0;
    for (place, letter) in text.char_indices() {
        characters += 1;
        bytes += stored_char_bytes(letter);
        if characters <= most - TRUNCATED_SUFFIX.chars().count() && bytes <= MAX_STORED_TEXT - TRUNCATED_SUFFIX.len() {
            end = place + letter.len_utf8();
        }
        if characters > most || bytes > MAX_STORED_TEXT {
            return format!("{}{TRUNCATED_SUFFIX}", &text[..end]);
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_where_they_must_be_and_say_so() {
        assert_eq!(to_stored_text("abc", 100), "abc");
        assert_eq!(to_stored_text(&"é".repeat(100), 100), "é".repeat(100));
        assert_eq!(to_stored_text(&"é".repeat(101), 100), format!("{}{TRUNCATED_SUFFIX}", "é".repeat(93)));
        let long = to_stored_text(&"\u{1}".repeat(LONG_TEXT), LONG_TEXT);
        let bytes: usize = long.chars().map(stored_char_bytes).sum();
        assert!(bytes <= MAX_STORED_TEXT && bytes > MAX_STORED_TEXT - 32, "{bytes}");
        assert!(long.ends_with(TRUNCATED_SUFFIX));
        let whole = "x".repeat(LONG_TEXT);
        assert_eq!(to_stored_text(&whole, LONG_TEXT), whole);
    }
}
