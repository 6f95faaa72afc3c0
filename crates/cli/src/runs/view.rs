//! A run in lists, as text.

use sympozium_runs::RunView;

use super::duration;

/// The fraction of a currency unit that costs are counted in.
const MILLION: u64 = 1_000_000;

/// The duration of the run, or of its time so far.
pub fn format_duration(view: &RunView, now_ms: u64) -> String {
    let end_ms = match (view.ended_ms, view.alive) {
        (Some(ended), _) => ended,
        (None, true) => now_ms,
        // It was killed, and the time is unknown.
        (None, false) => return "-".to_owned(),
    };
    duration::format_duration(end_ms.saturating_sub(view.started_ms))
}

/// The total of tokens; with a mark if some are estimated.
pub fn format_tokens(view: &RunView) -> String {
    let total = (view.usage.input_tokens).saturating_add(view.usage.output_tokens);
    let mark = if view.usage.estimated { "~" } else { "" };
    format!("{mark}{total}")
}

/// The cost and the price it is based on. It is approximate if the tokens are estimated.
pub fn format_cost(view: &RunView) -> Option<String> {
    let cost = view.cost.as_ref()?;
    let about = if view.usage.estimated { "about " } else { "" };
    let sign = if cost.amount_micro < 0 { "-" } else { "" };
    let micro = cost.amount_micro.unsigned_abs();
    let (units, rest) = (micro / MILLION, micro % MILLION);
    let by = cost.price_key.as_ref().map(|it| format!(" by {it}"));
    Some(format!("{about}{sign}{units}.{rest:06} {}{}", cost.currency, by.unwrap_or_default()))
}
