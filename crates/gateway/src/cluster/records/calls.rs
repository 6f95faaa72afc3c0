//! Tracks open calls by their receipts: their packs, and which of them wait for an approval.

use std::collections::BTreeMap;

use sympozium_api::agent_run::IsolationRecord;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::limits::CONTAINERS;
use sympozium_ipc::receipt::{Event, Receipt, ReportedIsolation};

use crate::plans::RunFacts;

/// Maximum number of open calls that are tracked. A run has far fewer.
const MAX_CALLS: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OpenCalls {
    /// The pack of each open call.
    packs: BTreeMap<u64, Option<String>>,
    /// The question of each call that waits for an approval.
    questions: BTreeMap<u64, String>,
}

impl OpenCalls {
    /// Applies the next receipt, and merges its isolation report.
    pub fn apply(&mut self, facts: &RunFacts, receipt: &Receipt, isolation: &mut Vec<IsolationRecord>) {
        match &receipt.event {
            Event::Called { call, pack, .. } => {
                self.packs.insert(*call, pack.clone());
            }
            Event::Asked { call, approval, .. } => {
                self.questions.insert(*call, approval.clone());
            }
            Event::Answered { call, .. } => {
                self.questions.remove(call);
            }
            Event::Acted { call, by, isolation: seen, .. } => {
                let pack = self.packs.remove(call).flatten();
                self.questions.remove(call);
                if let Some(seen) = seen
                    && let Some(part) = facts.part(*by, pack.as_deref())
                {
                    merge_isolation(isolation, part, seen);
                }
            }
            Event::Started { .. } | Event::Model { .. } | Event::Foreign { .. } | Event::Ended { .. } => {}
        }
        while self.packs.len() > MAX_CALLS {
            self.packs.pop_first();
        }
        while self.questions.len() > MAX_CALLS {
            self.questions.pop_first();
        }
    }

    /// The pending questions, oldest first.
    pub fn pending_questions(&self) -> impl Iterator<Item = &str> {
        self.questions.values().map(String::as_str)
    }
}

/// One record for each part and profile. Only guarantees that every command had are listed.
fn merge_isolation(isolation: &mut Vec<IsolationRecord>, part: &str, seen: &ReportedIsolation) {
    let is_named = |guarantee: &Guarantee| seen.guarantees.iter().any(|name| name == guarantee.as_str());
    let guarantees: Vec<Guarantee> = Guarantee::ALL.into_iter().filter(is_named).collect();
    let same = |record: &IsolationRecord| record.part == part && record.profile == seen.profile;
    let count = isolation.len();
    match isolation.iter().position(same) {
        Some(place) => isolation[place].guarantees.retain(|guarantee| guarantees.contains(guarantee)),
        None if count < CONTAINERS => {
            isolation.push(IsolationRecord { part: part.to_owned(), profile: seen.profile.clone(), guarantees })
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use sympozium_api::names::Digest;
    use sympozium_ipc::receipt::{Actor, CallDecision, Outcome, OutputSize};

    use super::*;

    fn receipt(event: Event) -> Receipt {
        Receipt { number: 0, previous: Digest::default(), at_ms: 0, event }
    }

    fn called(call: u64, pack: Option<&str>) -> Event {
        Event::Called {
            call,
            tool: "t".to_owned(),
            pack: pack.map(str::to_owned),
            arguments: Digest::default(),
            gate: None,
            decided: CallDecision::Waiting,
            reason: None,
        }
    }

    fn acted(call: u64, by: Actor, guarantees: &[&str]) -> Event {
        Event::Acted {
            call,
            by,
            action: Digest::default(),
            outcome: Outcome::Done,
            output: OutputSize::default(),
            duration_ms: 1,
            isolation: Some(ReportedIsolation {
                profile: "container".to_owned(),
                guarantees: guarantees.iter().map(|guarantee| (*guarantee).to_owned()).collect(),
            }),
        }
    }

    #[test]
    fn isolation_is_by_part_and_what_all_of_its_commands_had() {
        let facts = RunFacts::example(|_| {});
        let (mut calls, mut isolation) = (OpenCalls::default(), Vec::new());
        for event in [
            called(1, Some("cluster")),
            called(2, Some("cluster")),
            called(3, Some("unknown")),
            acted(2, Actor::Skill, &["filesystem", "network", "magic"]),
            acted(1, Actor::Skill, &["network", "pids"]),
            acted(3, Actor::Skill, &["network"]),
            called(4, None),
            acted(4, Actor::Agent, &["syscalls"]),
        ] {
            calls.apply(&facts, &receipt(event), &mut isolation);
        }
        let part = |name: &str, guarantees: &[Guarantee]| IsolationRecord {
            part: name.to_owned(),
            profile: "container".to_owned(),
            guarantees: guarantees.to_vec(),
        };
        let expected = [part("skill-cluster", &[Guarantee::Network]), part("agent", &[Guarantee::Syscalls])];
        assert_eq!(isolation, expected);
        assert_eq!(calls, OpenCalls::default());
    }

    #[test]
    fn questions_wait_until_they_are_answered() {
        let facts = RunFacts::example(|_| {});
        let mut calls = OpenCalls::default();
        let asked =
            |call, approval: &str| Event::Asked { call, action: Digest::default(), approval: approval.to_owned() };
        let answered = Event::Answered { call: 1, action: Digest::default(), decided: CallDecision::Allowed, by: None };
        for event in [asked(1, "a"), asked(2, "b"), answered] {
            calls.apply(&facts, &receipt(event), &mut Vec::new());
        }
        assert_eq!(calls.pending_questions().collect::<Vec<_>>(), ["b"]);
    }
}
