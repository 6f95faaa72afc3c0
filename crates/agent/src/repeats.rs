//! Calls that are made again and again, and answered the same each time. Small models get stuck that way; being told helps
//! most of them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};

use crate::independent::Touches;
use crate::model::{Arguments, Call};

/// The same call with the same result: from this time on the model is told.
const TOLD_AT: u32 = 3;
/// From this time on it is not made any more, where it only looks at something of ours.
const REFUSED_AT: u32 = 6;
/// Then the run ends.
const ENDED_AT: u32 = 10;
/// As many times as often for what others do: somebody may wait for something to happen.
const OF_OTHERS: u32 = 2;
/// Calls that are remembered. A run has a few hundred.
const MAX_CALLS: usize = 4096;

/// What was called, and how often the result was the same.
#[derive(Debug, Default)]
pub struct Repeats {
    calls: HashMap<u64, Repeated>,
}

#[derive(Debug, Clone, Copy)]
struct Repeated {
    result: u64,
    times: u32,
}

/// Whether a call is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Yes.
    Make,
    /// No: it has been asked for this often, with the same result.
    Refuse(u32),
    /// No, and nothing else either: it was asked for this often, and the model does not get on.
    End(u32),
}

impl Repeats {
    /// Whether to make a call. What is refused counts as made.
    pub fn before(&mut self, call: &Call, touches: &Touches) -> Again {
        let Some(repeated) = self.calls.get_mut(&key(call)) else {
            return Again::Make;
        };
        let patience = match touches.changes() {
            true => OF_OTHERS,
            false => 1,
        };
        if repeated.times + 1 < REFUSED_AT * patience {
            return Again::Make;
        }
        let made = repeated.times;
        repeated.times += 1;
        match repeated.times >= ENDED_AT * patience {
            true => Again::End(made),
            false => Again::Refuse(made),
        }
    }

    /// Forgets everything: the model cannot know any more what it was told.
    pub fn forget(&mut self) {
        self.calls.clear();
    }

    /// What came of a call that was made. Gives a line for the model where it should hear of it.
    pub fn after(&mut self, call: &Call, touches: &Touches, result: &str) -> Option<String> {
        let (key, result) = (key(call), hash(&result));
        if touches.changes() {
            // The same question may have another answer now.
            self.calls.retain(|other, _| *other == key);
        }
        if self.calls.len() >= MAX_CALLS && !self.calls.contains_key(&key) {
            return None;
        }
        let repeated = self.calls.entry(key).or_insert(Repeated { result, times: 0 });
        if repeated.result != result {
            *repeated = Repeated { result, times: 0 };
        }
        repeated.times += 1;
        let times = repeated.times;
        (times >= TOLD_AT).then(|| {
            format!("(You made this call {times} times, with the same result each time. Do something else, or answer with what you know.)")
        })
    }
}

/// What the model is told about a call that is not made.
pub fn refusal(times: u32) -> String {
    format!(
        "you asked for this very call {times} times before, with the same result, so it was not made again; do something else, or answer with what you know"
    )
}

fn key(call: &Call) -> u64 {
    match &call.arguments {
        // A map is in order, so the same arguments are the same text.
        Arguments::Object(arguments) => hash(&(&call.name, serde_json::to_string(arguments).ok())),
        Arguments::Unreadable(why) => hash(&(&call.name, why)),
    }
}

fn hash(of: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
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
            arguments: Arguments::Object(Map::from_iter([("path".to_owned(), json!(path))])),
        }
    }

    #[test]
    fn a_call_with_the_same_result_is_told_then_refused_then_the_end() {
        for (touches, refused, ended) in [(Touches::Files, 6, 10), (Touches::Skill("a".to_owned()), 12, 20)] {
            let mut repeats = Repeats::default();
            for time in 1..refused {
                assert_eq!(repeats.before(&call("a"), &touches), Again::Make, "{time}");
                let told = repeats.after(&call("a"), &touches, "x");
                assert_eq!(told.is_some(), time >= 3, "{time}");
            }
            for time in refused..ended {
                let again = repeats.before(&call("a"), &touches);
                assert_eq!(again, Again::Refuse(time - 1));
            }
            assert_eq!(repeats.before(&call("a"), &touches), Again::End(ended - 1));
            // Others are not affected.
            assert_eq!(repeats.before(&call("b"), &touches), Again::Make);
        }
    }

    #[test]
    fn a_call_whose_result_changes_is_no_repetition() {
        let mut repeats = Repeats::default();
        for time in 0..20 {
            assert_eq!(repeats.before(&call("a"), &Touches::Files), Again::Make);
            let told = repeats.after(&call("a"), &Touches::Files, &time.to_string());
            assert_eq!(told, None);
        }
    }

    #[test]
    fn after_a_change_the_same_question_is_a_new_one() {
        let skill = Touches::Skill("a".to_owned());
        let mut repeats = Repeats::default();
        for time in 0..30 {
            // An edit, and the tests again, which still fail the same way.
            let edit = call(&format!("edit {time}"));
            assert_eq!(repeats.before(&edit, &Touches::Changes), Again::Make);
            assert_eq!(repeats.after(&edit, &Touches::Changes, "done"), None);
            assert_eq!(repeats.before(&call("test"), &skill), Again::Make, "{time}");
            assert_eq!(repeats.after(&call("test"), &skill, "failed"), None);
        }
    }
}
