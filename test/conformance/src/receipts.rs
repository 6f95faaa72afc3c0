//! Receipts in words, call by call.
//!
//! What is written of one call keeps its order; that of two calls does not: the report of a file tool arrives when no caller waits
//! for it any more. So the receipts are listed by call, in the order in which the calls were made.

use std::collections::BTreeMap;

use serde::Deserialize;
use sympozium_ipc::receipt::{Actor, CallDecision, Event, ForeignKind, Outcome, Receipt};

/// How a run ended whose receipts have no end: their writer was killed, or never began.
pub const NEVER: &str = "never";

/// The receipts that are expected.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReceiptsExpected {
    /// Every call, such as `execute_command of tools: allowed, exited 0 by skill`.
    pub calls: Vec<String>,
    /// What each request to the model came to: a status, or `failed`. Nothing where it depends on the moment.
    #[serde(default)]
    pub model: Option<Vec<String>>,
    /// What was found in a skill's `/ipc` that the bridge did not write, such as `start in tools`.
    #[serde(default)]
    pub foreign: Vec<String>,
    /// How the run ended: `done`, `failed`, `timedOut`, `cancelled`; `never` where the writer of receipts was killed.
    pub ended: String,
}

/// What the receipts say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptSummary {
    /// Every call.
    pub calls: Vec<String>,
    /// Every request to the model.
    pub model: Vec<String>,
    /// What was found in a skill's `/ipc`.
    pub foreign: Vec<String>,
    /// How the run ended.
    pub ended: String,
}

/// The receipts in words.
pub fn summarize(receipts: &[Receipt]) -> ReceiptSummary {
    let mut calls: BTreeMap<u64, (String, Vec<String>)> = BTreeMap::new();
    let mut model = Vec::new();
    let mut foreign = Vec::new();
    let mut ended = NEVER.to_owned();
    for receipt in receipts {
        let mut add = |call: u64, word: String| calls.entry(call).or_default().1.push(word);
        match &receipt.event {
            Event::Started { .. } => {}
            Event::Called { call, tool, pack, decided, .. } => {
                add(*call, decided_word(*decided).to_owned());
                let name = match pack {
                    Some(pack) => format!("{tool} of {pack}"),
                    None => tool.clone(),
                };
                calls.entry(*call).or_default().0 = name;
            }
            Event::Asked { call, .. } => add(*call, "asked".to_owned()),
            Event::Answered { call, decided, .. } => add(*call, decided_word(*decided).to_owned()),
            Event::Acted { call, by, outcome, .. } => {
                add(*call, format!("{} by {}", outcome_word(outcome), actor(*by)))
            }
            Event::Model { status, error, .. } => model.push(match (status, error) {
                (Some(status), None) => status.to_string(),
                _ => "failed".to_owned(),
            }),
            Event::Foreign { pack, what, .. } => {
                foreign.push(format!("{} in {pack}", foreign_word(*what)));
            }
            Event::Ended { outcome, .. } => ended = outcome_word(outcome),
        }
    }
    let calls = calls.into_values();
    ReceiptSummary {
        calls: calls.map(|(name, words)| format!("{name}: {}", words.join(", "))).collect(),
        model,
        foreign,
        ended,
    }
}

impl ReceiptsExpected {
    /// What is wrong with what the receipts say.
    pub fn problems(&self, summary: &ReceiptSummary) -> Vec<String> {
        let mut problems = Vec::new();
        if self.calls != summary.calls {
            problems
                .push(format!("the receipts say of the calls {:#?}, and should say {:#?}", summary.calls, self.calls));
        }
        if let Some(model) = &self.model
            && *model != summary.model
        {
            problems.push(format!("the receipts say of the model {:?}, and should say {model:?}", summary.model));
        }
        if self.foreign != summary.foreign {
            problems.push(format!(
                "the receipts say that {:?} was found, and should say {:?}",
                summary.foreign, self.foreign
            ));
        }
        if self.ended != summary.ended {
            problems.push(format!(
                "the receipts say that the run ended {:?}, and should say {:?}",
                summary.ended, self.ended
            ));
        }
        problems
    }
}

const fn foreign_word(what: ForeignKind) -> &'static str {
    match what {
        ForeignKind::Request => "request",
        ForeignKind::Claim => "claim",
        ForeignKind::Result => "result",
        ForeignKind::Done => "done",
        ForeignKind::Start => "start",
    }
}

const fn decided_word(decided: CallDecision) -> &'static str {
    match decided {
        CallDecision::Allowed => "allowed",
        CallDecision::Waiting => "waiting",
        CallDecision::Denied => "denied",
        CallDecision::Refused => "refused",
        CallDecision::Expired => "expired",
    }
}

const fn actor(by: Actor) -> &'static str {
    match by {
        Actor::Agent => "agent",
        Actor::Bridge => "bridge",
        Actor::Skill => "skill",
    }
}

fn outcome_word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".to_owned(),
        Outcome::Exited { code } => format!("exited {code}"),
        Outcome::TimedOut => "timedOut".to_owned(),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Failed { .. } => "failed".to_owned(),
    }
}
