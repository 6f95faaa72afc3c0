//! Detects calls that are repeated with the same result. Small models get stuck that way; a warning helps most of them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};

use crate::concurrency::Effects;
use crate::model::{Call, CallArguments};

/// The same call with the same result: from this count on the model is warned.
const WARN_AT: u32 = 3;
/// From this count on the call is not made any more.
const REFUSE_AT: u32 = 6;
/// At this count the run ends.
const ABORT_AT: u32 = 10;
/// The limits are this much higher for calls that change state: a model may poll for a condition.
const STATE_CHANGE_FACTOR: u32 = 2;
/// Bounds the memory; a run has a few hundred calls.
const MAX_CALLS: usize = 4096;

#[derive(Debug, Default)]
pub struct LoopGuard {
    calls: HashMap<u64, Repetition>,
}

#[derive(Debug, Clone, Copy)]
struct Repetition {
    result: u64,
    times: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Run,
    /// Do not make it: it was requested this often with the same result.
    Refuse(u32),
    /// End the run: it was requested this often without progress.
    Abort(u32),
}

impl LoopGuard {
    /// Decides whether to make a call. A refused call counts as made.
    pub fn check(&mut self, call: &Call, effects: &Effects) -> Verdict {
        let Some(repetition) = self.calls.get_mut(&key(call)) else {
            return Verdict::Run;
        };
        let factor = if effects.changes_state() { STATE_CHANGE_FACTOR } else { 1 };
        if repetition.times + 1 < REFUSE_AT * factor {
            return Verdict::Run;
        }
        let times_made = repetition.times;
        repetition.times += 1;
        if repetition.times >= ABORT_AT * factor { Verdict::Abort(times_made) } else { Verdict::Refuse(times_made) }
    }

    /// To be called when results were elided: the model may have to read them again.
    pub fn reset(&mut self) {
        self.calls.clear();
    }

    /// Records a result. Returns a warning for the model when the call repeats.
    pub fn record(&mut self, call: &Call, effects: &Effects, result: &str) -> Option<String> {
        let (key, result) = (key(call), hash(&result));
        if effects.changes_state() {
            // Any other call may have another result now.
            self.calls.retain(|other, _| *other == key);
        }
        if self.calls.len() >= MAX_CALLS && !self.calls.contains_key(&key) {
            return None;
        }
        let repetition = self.calls.entry(key).or_insert(Repetition { result, times: 0 });
        if repetition.result != result {
            *repetition = Repetition { result, times: 0 };
        }
        repetition.times += 1;
        let times = repetition.times;
        (times >= WARN_AT).then(|| {
            format!("(You made this call {times} times, with the same result each time. Do something else, or answer with what you know.)")
        })
    }
}

pub fn refusal_message(times: u32) -> String {
    format!(
        "you made this call {times} times before, with the same result, so it was not made again; do something else, or answer with what you know"
    )
}

fn key(call: &Call) -> u64 {
    match &call.arguments {
        // The map is sorted, so equal arguments have equal JSON.
        CallArguments::Object(arguments) => hash(&(&call.name, serde_json::to_string(arguments).ok())),
        CallArguments::Invalid(reason) => hash(&(&call.name, reason)),
    }
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn call(path: &str) -> Call {
        Call {
            id: path.to_owned(),
            name: "read_file".to_owned(),
            arguments: CallArguments::Object(Map::from_iter([("path".to_owned(), json!(path))])),
        }
    }

    #[test]
    fn a_repeated_call_is_warned_about_then_refused_then_ends_the_run() {
        for (effects, refused, aborted) in [(Effects::ReadsFiles, 6, 10), (Effects::Sidecar("a".to_owned()), 12, 20)] {
            let mut guard = LoopGuard::default();
            for time in 1..refused {
                assert_eq!(guard.check(&call("a"), &effects), Verdict::Run, "{time}");
                let warning = guard.record(&call("a"), &effects, "x");
                assert_eq!(warning.is_some(), time >= 3, "{time}");
            }
            for time in refused..aborted {
                let verdict = guard.check(&call("a"), &effects);
                assert_eq!(verdict, Verdict::Refuse(time - 1));
            }
            assert_eq!(guard.check(&call("a"), &effects), Verdict::Abort(aborted - 1));
            // Others are not affected.
            assert_eq!(guard.check(&call("b"), &effects), Verdict::Run);
        }
    }

    #[test]
    fn a_call_whose_result_changes_is_no_repetition() {
        let mut guard = LoopGuard::default();
        for time in 0..20 {
            assert_eq!(guard.check(&call("a"), &Effects::ReadsFiles), Verdict::Run);
            let warning = guard.record(&call("a"), &Effects::ReadsFiles, &time.to_string());
            assert_eq!(warning, None);
        }
    }

    #[test]
    fn a_state_change_resets_other_calls() {
        let skill = Effects::Sidecar("a".to_owned());
        let mut guard = LoopGuard::default();
        for time in 0..30 {
            // An edit, and the tests again, which still fail the same way.
            let edit = call(&format!("edit {time}"));
            assert_eq!(guard.check(&edit, &Effects::WritesFiles), Verdict::Run);
            assert_eq!(guard.record(&edit, &Effects::WritesFiles, "done"), None);
            assert_eq!(guard.check(&call("test"), &skill), Verdict::Run, "{time}");
            assert_eq!(guard.record(&call("test"), &skill, "failed"), None);
        }
    }
}
