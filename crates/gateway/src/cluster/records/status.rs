//! Builds `status.report` from its previous value and the next report. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sympozium_api::agent_run::{ReportedEnding, ReportedPhase, RunReport, TokenUsage};
use sympozium_api::limits::{LONG_TEXT, NAMES, VALUE};
use sympozium_api::names::ObjectName;
use sympozium_api::run_plan::RunIdentity;
use sympozium_ipc::run_api::{Ending, Phase, Report};

use super::calls::Calls;
use super::segments::{Transcript, stored_character};
use crate::cluster::objects::approval_name;
use crate::run_api::Kept;

/// Maximum number of bytes of the longest text in a status, as it is stored: the controller writes the answer a second
/// time, and the run's manifest is in the same object, for which etcd has 1.5 MiB.
pub const MAX_STORED_TEXT: usize = 400 << 10;
/// The suffix of a truncated text.
const CUT: &str = "… (cut)";

/// What is needed besides the report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around<'a> {
    pub run: &'a RunIdentity,
    /// The current report in the status.
    pub before: Option<&'a RunReport>,
    /// The cursor after this report.
    pub kept: &'a Kept,
    pub calls: &'a Calls,
    /// Number of receipt records, including those of this report.
    pub receipt_segments: i64,
    pub transcript: &'a Transcript,
    pub started_at: Option<&'a Time>,
    pub now: &'a Time,
}

/// The next report in the status, without isolation.
pub(super) fn report(report: &Report, around: Around<'_>) -> RunReport {
    let Around { before, kept, .. } = around;
    let before_or = |read: fn(&RunReport) -> Option<i64>| before.and_then(read).unwrap_or(0);
    let (ending, result, error) = report.ending.as_ref().map_or((None, None, None), ended);
    let usage = &report.usage;
    let duration =
        around.started_at.map_or(0, |started| (around.now.0.as_millisecond() - started.0.as_millisecond()).max(0));
    let waiting = around.calls.waiting().take(NAMES);
    let waiting_for = match report.phase {
        Phase::Waiting => waiting.map(|it| ObjectName::new(approval_name(around.run, it))).collect(),
        Phase::Starting | Phase::Working | Phase::Ended => Vec::new(),
    };
    let new_segments = i64::try_from(around.transcript.segments.len()).unwrap_or(i64::MAX);
    RunReport {
        reported_at: around.now.clone(),
        reports: number(kept.reports),
        last_report: kept.last.clone(),
        phase: Some(phase(report.phase)),
        progress: match &report.progress {
            Some(progress) => Some(shortened(progress, VALUE)),
            None => before.and_then(|it| it.progress.clone()),
        },
        finished: report.ending.is_some(),
        ending,
        result,
        error,
        token_usage: Some(TokenUsage {
            input_tokens: number(usage.input_tokens),
            output_tokens: number(usage.output_tokens),
            total_tokens: number(usage.input_tokens.saturating_add(usage.output_tokens)),
            tool_calls: number(usage.tool_calls),
            model_requests: number(usage.model_requests),
            estimated: usage.estimated,
            duration_ms: duration,
        }),
        isolation: Vec::new(),
        waiting_for,
        receipts: Some(number(kept.receipts)),
        receipts_head: Some(kept.head.clone()),
        receipt_segments: Some(around.receipt_segments),
        transcript_segments: Some(before_or(|it| it.transcript_segments) + new_segments),
        transcript_bytes: Some(before_or(|it| it.transcript_bytes) + around.transcript.bytes),
        transcript_cut: before.is_some_and(|it| it.transcript_cut) || around.transcript.cut,
    }
}

/// The cursor of a report in a status.
pub(super) fn kept(report: &RunReport, plan: &sympozium_api::names::Digest) -> Kept {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Kept {
        reports: count(report.reports),
        last: report.last_report.clone(),
        receipts: count(report.receipts.unwrap_or(0)),
        head: report.receipts_head.clone().unwrap_or_else(|| plan.clone()),
        phase: report.phase.map(|phase| match phase {
            ReportedPhase::Starting => Phase::Starting,
            ReportedPhase::Working => Phase::Working,
            ReportedPhase::Waiting => Phase::Waiting,
            ReportedPhase::Ended => Phase::Ended,
        }),
    }
}

fn ended(ending: &Ending) -> (Option<ReportedEnding>, Option<String>, Option<String>) {
    let text = |text: &str, most| Some(shortened(text, most));
    match ending {
        Ending::Answered { text: it } => (Some(ReportedEnding::Answered), text(it, LONG_TEXT), None),
        Ending::Failed { error } => (Some(ReportedEnding::Failed), None, text(error, VALUE)),
        Ending::Crashed { known } => (Some(ReportedEnding::Crashed), None, text(known, VALUE)),
        Ending::NeverCame => (Some(ReportedEnding::NeverCame), None, None),
        Ending::TimedOut => (Some(ReportedEnding::TimedOut), None, None),
        Ending::Stopped => (Some(ReportedEnding::Stopped), None, None),
    }
}

fn phase(phase: Phase) -> ReportedPhase {
    match phase {
        Phase::Starting => ReportedPhase::Starting,
        Phase::Working => ReportedPhase::Working,
        Phase::Waiting => ReportedPhase::Waiting,
        Phase::Ended => ReportedPhase::Ended,
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Truncates a text to this many characters, and to the bytes that can be stored. A truncated text has a suffix.
fn shortened(text: &str, most: usize) -> String {
    let (mut characters, mut bytes) = (0, 0);
    // The end of the text if it is truncated.
    let mut end = 0;
    for (place, letter) in text.char_indices() {
        characters += 1;
        bytes += stored_character(letter);
        if characters <= most - CUT.chars().count() && bytes <= MAX_STORED_TEXT - CUT.len() {
            end = place + letter.len_utf8();
        }
        if characters > most || bytes > MAX_STORED_TEXT {
            return format!("{}{CUT}", &text[..end]);
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_where_they_must_be_and_say_so() {
        assert_eq!(shortened("abc", 100), "abc");
        assert_eq!(shortened(&"é".repeat(100), 100), "é".repeat(100));
        assert_eq!(shortened(&"é".repeat(101), 100), format!("{}{CUT}", "é".repeat(93)));
        let long = shortened(&"\u{1}".repeat(LONG_TEXT), LONG_TEXT);
        let bytes: usize = long.chars().map(stored_character).sum();
        assert!(bytes <= MAX_STORED_TEXT && bytes > MAX_STORED_TEXT - 32, "{bytes}");
        assert!(long.ends_with(CUT));
        let whole = "x".repeat(LONG_TEXT);
        assert_eq!(shortened(&whole, LONG_TEXT), whole);
    }
}
