//! Receipts as text.

use sympozium_api::names::Digest;
use sympozium_api::text::printable;
use sympozium_ipc::receipt::{Actor, CallDecision, Event, ForeignKind, Outcome, Receipt};

use super::super::duration;
use sympozium_runs::time::format_timestamp;

pub fn format_receipt(receipt: &Receipt) -> String {
    let what = describe_event(&receipt.event);
    let Receipt { number, at_ms, .. } = receipt;
    format!("{number:>4}  {}  {}\n", format_timestamp(*at_ms), printable(&what))
}

fn describe_event(event: &Event) -> String {
    match event {
        Event::Started { run, by } => format!("started: run {run}, by {by}"),
        Event::Called { call, tool, pack, arguments, gate: _, decided, reason } => {
            let of = pack.as_ref().map(|pack| format!(" of {pack}"));
            let why = reason.as_ref().map(|reason| format!(": {reason}"));
            format!(
                "call {call}: {tool}{} with arguments {}: {}{}",
                of.unwrap_or_default(),
                short_digest(arguments),
                describe_decision(*decided),
                why.unwrap_or_default()
            )
        }
        Event::Asked { call, action, approval } => {
            format!("call {call}: action {} needs approval ({approval})", short_digest(action))
        }
        Event::Answered { call, action, decided, by } => {
            let by = by.as_ref().map(|by| format!(" by {by}"));
            let by = by.unwrap_or_default();
            format!("call {call}: action {}: {}{by}", short_digest(action), describe_decision(*decided))
        }
        Event::Acted { call, by, action, outcome, output, duration_ms, isolation } => {
            let who = match by {
                Actor::Agent => "the agent",
                Actor::Bridge => "the bridge",
                Actor::Skill => "the skill",
            };
            let truncated = if output.truncated { " (truncated)" } else { "" };
            let enforced = isolation.as_ref().map(|live| {
                let guarantees = match live.guarantees.is_empty() {
                    true => "nothing".to_owned(),
                    false => live.guarantees.join(", "),
                };
                format!("; enforced ({}): {guarantees}", live.profile)
            });
            format!(
                "call {call}: {who} executed action {}: {}, {} bytes of output{truncated} in {}{}",
                short_digest(action),
                describe_outcome(outcome),
                output.bytes,
                duration::format_duration(*duration_ms),
                enforced.unwrap_or_default()
            )
        }
        Event::Model {
            request,
            status,
            sent_bytes,
            received_bytes,
            input_tokens,
            output_tokens,
            duration_ms,
            error,
        } => {
            let status = match status {
                Some(status) => format!("status {status}"),
                None => "no response".to_owned(),
            };
            let tokens = match (input_tokens, output_tokens) {
                (None, None) => String::new(),
                (input, output) => {
                    let count = |tokens: &Option<u64>| match tokens {
                        Some(tokens) => tokens.to_string(),
                        None => "unknown".to_owned(),
                    };
                    format!(", tokens: {} input, {} output", count(input), count(output))
                }
            };
            let error = error.as_ref().map(|error| format!(": {error}"));
            format!(
                "model request {request}: {status}, {sent_bytes} bytes sent, {received_bytes} received{tokens}, in {}{}",
                duration::format_duration(*duration_ms),
                error.unwrap_or_default()
            )
        }
        Event::Foreign { pack, what, name, ends_run } => {
            let what = match what {
                ForeignKind::Request => "a request that the bridge did not write",
                ForeignKind::Claim => "a claim without a request of the bridge",
                ForeignKind::Result => "a result without a request of the bridge, or a second one",
                ForeignKind::Done => "a `done` that the bridge did not write",
                ForeignKind::Start => "another start of the executor",
            };
            let end = if *ends_run { "; the run ends" } else { "" };
            format!("unexpected file in /ipc of {pack}: {what}: {name}{end}")
        }
        Event::Ended { outcome, result } => {
            let result = result.as_ref().map(|it| format!(", with answer {}", short_digest(it)));
            format!("ended: {}{}", describe_outcome(outcome), result.unwrap_or_default())
        }
    }
}

fn describe_decision(decided: CallDecision) -> &'static str {
    match decided {
        CallDecision::Allowed => "allowed",
        CallDecision::Waiting => "waiting for approval",
        CallDecision::Denied => "denied",
        CallDecision::Refused => "refused",
        CallDecision::Expired => "denied, because the question expired",
    }
}

fn describe_outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".to_owned(),
        Outcome::Exited { code } => format!("exit code {code}"),
        Outcome::TimedOut => "timed out".to_owned(),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Failed { why } => format!("failed: {why}"),
    }
}

/// A prefix of a hash that distinguishes it in a list; `-o jsonl` has the whole hash.
fn short_digest(digest: &Digest) -> String {
    digest.to_string().chars().take(19).collect()
}
