//! What is printed to stdout: the answer of the run as text, or its events as JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sympozium_api::digest::to_canonical_json;
use sympozium_api::names::Digest;
use sympozium_api::origin::ObjectOrigin;
use sympozium_api::text::{is_prose, is_visible};
use sympozium_exec::IsolationReport;
use sympozium_gateway::run_api::local::{StoredReport, files};
use sympozium_ipc::receipt::{Chain, Receipt};
use sympozium_ipc::run_api::{BridgePhase, MAX_REQUEST, Usage};

use crate::output;
use sympozium_local::state::read_bounded;
use sympozium_runs::RunEnd;
use sympozium_runs::{Event, TimedEvent};

/// Bytes of a `report.json`.
const MAX_REPORT_BYTES: u64 = 2 * MAX_REQUEST as u64;

/// The object of `-o json`, collected from the events of a run.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    run: String,
    uid: String,
    agent: String,
    model: String,
    skills: Vec<String>,
    origins: Vec<ObjectOrigin>,
    plan: Option<Digest>,
    outcome: Option<RunEnd>,
    exit_code: u8,
    answer: Option<String>,
    usage: Usage,
    durations: Durations,
    directory: Option<PathBuf>,
    workspace: Option<PathBuf>,
    isolation: BTreeMap<String, IsolationReport>,
    receipts: Option<Receipts>,
    warnings: Vec<String>,
    leftovers: Vec<String>,
    #[serde(skip)]
    started_ms: u64,
    /// The pending questions, with the time of each in milliseconds since 1970.
    #[serde(skip)]
    asked_at: BTreeMap<String, u64>,
}

/// In milliseconds.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Durations {
    total_ms: u64,
    /// Until the agent began to work.
    starting_ms: Option<u64>,
    /// While questions were pending.
    waiting_ms: u64,
}

/// What the receipts can be verified against.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Receipts {
    count: u64,
    head: Digest,
}

impl Summary {
    pub fn add_event(&mut self, timed: &TimedEvent) {
        let TimedEvent { at_ms, event } = timed;
        match event {
            Event::Planned { run, uid, agent, model, skills, origins, plan, directory, workspace } => {
                self.run.clone_from(run);
                self.uid.clone_from(uid);
                self.agent.clone_from(agent);
                self.model.clone_from(model);
                self.skills.clone_from(skills);
                self.origins.clone_from(origins);
                self.plan = Some(plan.clone());
                self.directory.clone_from(directory);
                self.workspace.clone_from(workspace);
                self.started_ms = *at_ms;
            }
            Event::Isolated { part, report } => {
                self.isolation.insert(part.clone(), (**report).clone());
            }
            Event::Phase { phase: BridgePhase::Working } => {
                let took = at_ms.saturating_sub(self.started_ms);
                self.durations.starting_ms.get_or_insert(took);
            }
            Event::Usage { usage } => self.usage = *usage,
            Event::Asked { question } => {
                self.asked_at.insert(question.approval.clone(), *at_ms);
            }
            Event::Answered { approval, .. } => {
                if let Some(since) = self.asked_at.remove(approval) {
                    self.durations.waiting_ms += at_ms.saturating_sub(since);
                }
            }
            Event::Warning { text } => self.warnings.push(text.clone()),
            Event::Ended { outcome, usage, leftovers } => {
                self.durations.total_ms = at_ms.saturating_sub(self.started_ms);
                self.exit_code = outcome.exit_code();
                if let RunEnd::Succeeded { answer } = outcome {
                    self.answer = Some(answer.clone());
                }
                self.outcome = Some(outcome.clone());
                self.usage = *usage;
                self.leftovers.clone_from(leftovers);
            }
            Event::Phase { .. } | Event::Starting { .. } | Event::Progress { .. } | Event::Transcript { .. } => {}
            // If the run has a directory, the last report of the bridge is read from it at the end.
            Event::Receipt { receipt } if self.directory.is_none() => {
                self.receipts = receipts_up_to(receipt);
            }
            Event::Receipt { .. } => {}
        }
    }

    /// Formats the summary of a run that has ended.
    pub fn into_json(mut self) -> anyhow::Result<String> {
        if let Some(directory) = &self.directory {
            self.receipts = read_receipts(directory);
        }
        let text = serde_json::to_string_pretty(&self)?;
        Ok(output::escape_json(text) + "\n")
    }
}

/// The chain up to and including a receipt.
fn receipts_up_to(last: &Receipt) -> Option<Receipts> {
    let line = String::from_utf8(to_canonical_json(last).ok()?).ok()?;
    Some(Receipts { count: last.number + 1, head: Chain::line_hash(&line) })
}

/// The receipts according to the last report of the bridge; `None` if there is none.
fn read_receipts(directory: &Path) -> Option<Receipts> {
    let bytes = read_bounded(&directory.join(files::REPORT), MAX_REPORT_BYTES).ok()?;
    let report: StoredReport = serde_json::from_slice(&bytes).ok()?;
    Some(Receipts { count: report.receipts, head: report.head })
}

/// Formats an event as a line of `-o jsonl`.
pub fn to_json_line(timed: &TimedEvent) -> anyhow::Result<String> {
    Ok(output::escape_json(serde_json::to_string(timed)?) + "\n")
}

/// The answer as text. A terminal gets printable characters only; other outputs keep the letters of every script, and
/// the joiners that some need. Characters that make a terminal act, reverse a line or are invisible are always escaped:
/// files are shown on terminals too, and copied into prompts.
pub fn printable_answer(answer: &str, is_terminal: bool) -> String {
    let mut text = String::with_capacity(answer.len() + 1);
    let mut before = None;
    for letter in answer.replace("\r\n", "\n").chars() {
        let stays = match letter {
            '\n' | '\t' => true,
            // Variation selectors make a symbol an emoji; after anything else they would be invisible.
            '\u{fe0e}' | '\u{fe0f}' if is_terminal => before.is_some_and(is_symbol),
            _ if is_terminal => is_visible(letter),
            _ => is_prose(letter),
        };
        match stays {
            true => text.push(letter),
            false => text.extend(letter.escape_default()),
        }
        before = Some(letter);
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Whether a variation selector may follow: not a letter of any script, and not ASCII.
fn is_symbol(letter: char) -> bool {
    !letter.is_ascii() && !letter.is_alphanumeric() && is_visible(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_makes_no_terminal_act() {
        let answer = "a\tb\r\nfamily \u{1f469}\u{200d}\u{1f467}\u{1b}[2J\u{9b}1m\u{202e}x";
        assert_eq!(
            printable_answer(answer, true),
            "a\tb\nfamily \u{1f469}\\u{200d}\u{1f467}\\u{1b}[2J\\u{9b}1m\\u{202e}x\n"
        );
        assert_eq!(
            printable_answer(answer, false),
            "a\tb\nfamily \u{1f469}\u{200d}\u{1f467}\\u{1b}[2J\\u{9b}1m\\u{202e}x\n"
        );
        let symbols = "\u{26a0}\u{fe0f} a\u{fe0f} ä\u{fe0f} \u{3164}";
        assert_eq!(printable_answer(symbols, true), "\u{26a0}\u{fe0f} a\\u{fe0f} ä\\u{fe0f} \\u{3164}\n");
        // Characters that are invisible to people, but not to a model.
        let tags = "a\u{e0041}\u{e0042}\u{200b}\u{3164}b";
        for is_terminal in [true, false] {
            assert_eq!(printable_answer(tags, is_terminal), "a\\u{e0041}\\u{e0042}\\u{200b}\\u{3164}b\n");
        }
        assert_eq!(printable_answer("done\n", true), "done\n");
        assert_eq!(printable_answer("", false), "\n");
    }
}
