//! Findings: files on a skill's volume that neither the bridge nor an honest executor wrote.

use std::collections::{HashMap, HashSet};

use sympozium_ipc::receipt::ForeignKind;
use tokio::sync::mpsc;

/// Maximum number of reported findings of one kind in one pack. A skill can create any number of them.
const MAX_PER_KIND: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// It serves only requests that the bridge has signed.
    Verifies,
    /// It serves every file in its directory. Foreign requests can be detected, but not prevented.
    Unverified,
}

/// What the driver of a volume reports to the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Foreign(Finding),
    /// The executor started below the isolation floor of the run, and got no key.
    BelowFloor(String),
}

/// A foreign file on the volume of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub pack: String,
    pub kind: ForeignKind,
    /// The name of the file.
    pub name: String,
    /// Why the run must end; `None` if it can continue.
    pub ends_run: Option<String>,
}

/// Sends each finding once, up to a bound.
#[derive(Debug)]
pub(super) struct Findings {
    pack: String,
    verification: Verification,
    reported: HashMap<ForeignKind, HashSet<String>>,
    reported_below_floor: bool,
    reported_ending: bool,
    sender: mpsc::UnboundedSender<Notice>,
}

impl Findings {
    pub(super) fn new(pack: &str, verification: Verification, sender: mpsc::UnboundedSender<Notice>) -> Self {
        Self {
            pack: pack.to_owned(),
            verification,
            reported: HashMap::new(),
            reported_below_floor: false,
            reported_ending: false,
            sender,
        }
    }

    pub(super) fn pack(&self) -> &str {
        &self.pack
    }

    pub(super) fn report_below_floor(&mut self, why: String) {
        if !std::mem::replace(&mut self.reported_below_floor, true) {
            let _ = self.sender.send(Notice::BelowFloor(why));
        }
    }

    /// Reports a foreign file.
    pub(super) fn report(&mut self, what: ForeignKind, name: &str) {
        self.send(what, name, self.end_reason(what, name));
    }

    /// Tells of a request of ours that came again, and was answered or withdrawn.
    pub(super) fn report_restored(&mut self, name: &str) {
        let pack = &self.pack;
        let why = format!(
            "skill pack `{pack}`: {name} came into its /ipc again, and the bridge did not write it a second time: a command may have run twice, after it was cancelled, or without being allowed"
        );
        self.send(ForeignKind::Request, name, Some(why));
    }

    /// Tells that there may have been requests that the bridge could not see, and why.
    pub(super) fn report_unseen(&mut self, why: &str) {
        let pack = &self.pack;
        let ends_run = (self.verification == Verification::Unverified).then(|| {
            format!(
                "skill pack `{pack}`: {why}: requests that the bridge did not write may have been in its /ipc, and commands that no rule allows may have run"
            )
        });
        self.send(ForeignKind::Request, &format!("exec-request-*.json (possibly: {why})"), ends_run);
    }

    fn send(&mut self, what: ForeignKind, name: &str, ends_run: Option<String>) {
        // Harmless findings must not use up the room of the first one that ends the run.
        let is_first_ending = ends_run.is_some() && !std::mem::replace(&mut self.reported_ending, true);
        let names = self.reported.entry(what).or_default();
        let is_known = names.len() >= MAX_PER_KIND || !names.insert(name.to_owned());
        if is_known && !is_first_ending {
            return;
        }
        let finding = Finding { pack: self.pack.clone(), kind: what, name: name.to_owned(), ends_run };
        tracing::warn!(
            pack = finding.pack,
            ?what,
            name,
            ends_run = finding.ends_run.is_some(),
            "something is in the skill's /ipc that the bridge did not write"
        );
        // The receiver is gone once the run has ended.
        let _ = self.sender.send(Notice::Foreign(finding));
    }

    /// Why the run must end after this finding. A claim, a result or a `done` affects the pack's own calls only.
    fn end_reason(&self, what: ForeignKind, name: &str) -> Option<String> {
        let pack = &self.pack;
        match (what, self.verification) {
            (ForeignKind::Request, Verification::Unverified) => Some(format!(
                "skill pack `{pack}`: {name} is in its /ipc, which the bridge did not write: a command that was not allowed may have run"
            )),
            (ForeignKind::Start, _) => Some(format!(
                "the executor of skill pack `{pack}` was started again: it has no key for this run any more, and what it was doing may have been done in part"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_verifying_pack() -> (Findings, mpsc::UnboundedReceiver<Notice>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Findings::new("tools", Verification::Verifies, sender), receiver)
    }

    /// The names of the reported findings, and whether each ends the run.
    fn drain(receiver: &mut mpsc::UnboundedReceiver<Notice>) -> Vec<(String, bool)> {
        let notices = std::iter::from_fn(|| receiver.try_recv().ok());
        notices
            .map(|notice| match notice {
                Notice::Foreign(finding) => (finding.name, finding.ends_run.is_some()),
                Notice::BelowFloor(why) => panic!("{why}"),
            })
            .collect()
    }

    #[test]
    fn a_request_that_is_put_back_ends_the_run_however_many_others_were_found() {
        let (mut findings, mut receiver) = of_verifying_pack();
        for number in 0..2 * MAX_PER_KIND {
            findings.report(ForeignKind::Request, &format!("exec-request-{number}.json"));
        }
        assert_eq!(drain(&mut receiver).len(), MAX_PER_KIND);
        findings.report_restored("exec-request-ours.json");
        assert_eq!(drain(&mut receiver), [("exec-request-ours.json".to_owned(), true)]);
    }

    #[test]
    fn a_request_that_was_changed_and_then_put_back_ends_the_run() {
        let (mut findings, mut receiver) = of_verifying_pack();
        findings.report(ForeignKind::Request, "exec-request-ours.json");
        findings.report_restored("exec-request-ours.json");
        findings.report_restored("exec-request-ours.json");
        let name = || "exec-request-ours.json".to_owned();
        assert_eq!(drain(&mut receiver), [(name(), false), (name(), true)]);
    }
}
