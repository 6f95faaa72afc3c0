//! A case: a directory with manifests and what is expected. `README.md` says it field by field.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use sympozium_api::guarantee::Guarantee;

use crate::grants::Grants;
use crate::receipts::ReceiptsExpected;
use crate::text::Expected;

/// The file with the objects of a case.
pub const MANIFESTS: &str = "manifests.yaml";
/// The file with what is expected.
pub const CASE: &str = "case.yaml";

/// The part that writes receipts.
const BRIDGE: &str = "ipc-bridge";
/// Stands in manifests for the host of the server with the suite's pages, as the backend reaches it.
pub const PAGES_HOST: &str = "$(PAGES_HOST)";
/// Stands in manifests for its port.
pub const PAGES_PORT: &str = "$(PAGES_PORT)";

/// A case.
#[derive(Debug)]
pub struct Case {
    /// The name of its directory.
    pub name: String,
    /// Where it is.
    pub directory: PathBuf,
    /// What is written about it.
    pub spec: CaseSpec,
}

/// What is written in `case.yaml`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaseSpec {
    /// What must hold, in a sentence.
    pub about: String,
    /// The backends that it is for, where the subject is something that only they have or lack.
    #[serde(default)]
    pub only_on: Option<OnlyOn>,
    /// Answers to questions, in the order of the questions.
    #[serde(default)]
    pub decisions: Vec<DecisionToGive>,
    /// What is done to the run from outside while it goes on.
    #[serde(default)]
    pub meanwhile: Option<Meanwhile>,
    /// What must come of it.
    pub expect: Expectation,
}

/// The backends that a case is for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnlyOn {
    /// Their names.
    pub backends: Vec<String>,
    /// Why not for all.
    pub because: String,
}

/// An answer to a question.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DecisionToGive {
    /// The tool that the question must be about.
    pub tool: String,
    /// What the person says.
    pub says: PersonSays,
    /// Their reason.
    #[serde(default)]
    pub reason: Option<String>,
    /// What the person must be shown.
    #[serde(default)]
    pub shown: Option<Expected>,
}

/// What a person says to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PersonSays {
    /// Yes, this once.
    Approve,
    /// Yes, as often as the run does the same.
    ApproveForRun,
    /// No.
    Deny,
    /// Nothing, until it is too late.
    Nothing,
}

/// What is done to a run from outside.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Meanwhile {
    /// At which moment.
    pub when: Moment,
    /// What.
    pub act: Intervention,
}

/// A moment of a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Moment {
    /// The agent works: it has asked the model, or is about to.
    Working,
    /// A person is asked.
    Asked,
    /// This file is in the workspace, with something in it: a command made it, and goes on.
    File(String),
}

impl Meanwhile {
    /// Whether the bridge is killed while a call goes on. The call is in the receipts then, which the bridge sends out
    /// beside the work: it must not be killed before that receipt has left it.
    pub fn kills_bridge_in_call(&self) -> bool {
        matches!(&self.act, Intervention::Kill(part) if part == BRIDGE) && matches!(self.when, Moment::File(_))
    }
}

/// What is done to a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Intervention {
    /// A person ends it.
    Cancel,
    /// A part is killed, with SIGKILL.
    Kill(String),
}

/// What must come of a case.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expectation {
    /// How it ends.
    pub outcome: OutcomeKind,
    /// The answer, of a run that succeeded.
    #[serde(default)]
    pub answer: Option<Expected>,
    /// Why, of one that failed or was refused.
    #[serde(default)]
    pub why: Option<Expected>,
    /// The rules by which a run is denied: these and no others.
    #[serde(default)]
    pub rules: Vec<String>,
    /// What the model was told of each of its calls: of all of them, by id.
    #[serde(default)]
    pub results: Option<BTreeMap<String, ResultExpected>>,
    /// The receipts, in words.
    #[serde(default)]
    pub receipts: Option<ReceiptsExpected>,
    /// What the plan gives.
    #[serde(default)]
    pub grants: Option<Grants>,
    /// Files of the workspace afterwards; with nothing, one that must not be there.
    #[serde(default)]
    pub files: BTreeMap<String, Option<Expected>>,
    /// What must be enforced around each command of a skill, by backend, where it is not what the backend always promises.
    #[serde(default)]
    pub isolation: BTreeMap<String, Vec<Guarantee>>,
}

/// How a case ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OutcomeKind {
    /// With an answer.
    Succeeded,
    /// Without one, and with a reason.
    Failed,
    /// Because its time was up.
    TimedOut,
    /// Because a person ended it.
    Cancelled,
    /// It is denied: nothing of it was ever there.
    Denied,
    /// It is allowed, and the backend cannot realise it as it is: nothing of it was ever there.
    Refused,
}

/// What the model is told of a call.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResultExpected {
    /// Whether it failed.
    #[serde(default)]
    pub failed: bool,
    /// The text.
    pub text: Expected,
}

/// Every case below `directory`, by name.
///
/// # Errors
///
/// When one cannot be read, or is not what a case must be.
pub fn load_all(directory: &Path) -> anyhow::Result<Vec<Case>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut cases = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            cases.push(load(&path).with_context(|| format!("{}", path.display()))?);
        }
    }
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(cases)
}

fn load(directory: &Path) -> anyhow::Result<Case> {
    let name = directory.file_name().and_then(|name| name.to_str());
    let name = name.context("a name that is no text")?.to_owned();
    let text = fs::read_to_string(directory.join(CASE)).context("cannot read case.yaml")?;
    let spec: CaseSpec = serde_saphyr::from_str(&text).context("case.yaml is not a case")?;
    if !directory.join(MANIFESTS).is_file() {
        bail!("there is no {MANIFESTS}");
    }
    spec.check()?;
    Ok(Case { name, directory: directory.to_owned(), spec })
}

impl Case {
    /// Its objects, with the address of the suite's pages in the place of [`PAGES_HOST`] and [`PAGES_PORT`].
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub fn text(&self, pages: SocketAddr) -> anyhow::Result<String> {
        let path = self.directory.join(MANIFESTS);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let host = pages.ip().to_string();
        let port = pages.port().to_string();
        Ok(text.replace(PAGES_HOST, &host).replace(PAGES_PORT, &port))
    }

    /// Whether it is for this backend.
    pub fn is_for(&self, backend: &str) -> bool {
        let only = self.spec.only_on.as_ref();
        only.is_none_or(|only| only.backends.iter().any(|name| name == backend))
    }
}

impl CaseSpec {
    /// Whether most of its time is spent waiting.
    pub fn waits(&self) -> bool {
        let nothing = |decision: &DecisionToGive| decision.says == PersonSays::Nothing;
        self.meanwhile.is_some() || self.decisions.iter().any(nothing) || self.expect.outcome == OutcomeKind::TimedOut
    }

    /// Whether it makes sense: what is written for one outcome is not written for another.
    ///
    /// # Errors
    ///
    /// When it does not.
    fn check(&self) -> anyhow::Result<()> {
        let expect = &self.expect;
        let texts = expect.answer.iter().chain(&expect.why);
        let results = expect.results.iter().flatten().map(|(_, it)| &it.text);
        let files = expect.files.values().flatten();
        let shown = self.decisions.iter().filter_map(|it| it.shown.as_ref());
        for text in texts.chain(results).chain(files).chain(shown) {
            text.check()?;
        }
        let never_began = matches!(expect.outcome, OutcomeKind::Denied | OutcomeKind::Refused);
        if never_began {
            if expect.receipts.is_some() || expect.results.is_some() || !expect.files.is_empty() {
                bail!("a run that never began has no receipts, results or files");
            }
            if !self.decisions.is_empty() || self.meanwhile.is_some() {
                bail!("nothing is done to a run that never began");
            }
        } else if expect.receipts.is_none() {
            bail!("a run has receipts: say which");
        }
        if (expect.outcome == OutcomeKind::Denied) == expect.rules.is_empty() {
            bail!("`rules` goes with `outcome: denied`, and only with it");
        }
        if (expect.outcome == OutcomeKind::Succeeded) != expect.answer.is_some() {
            bail!("`answer` goes with `outcome: succeeded`, and only with it");
        }
        let has_reason = matches!(expect.outcome, OutcomeKind::Failed | OutcomeKind::Refused);
        if has_reason != expect.why.is_some() {
            bail!("`why` goes with `outcome: failed` and `refused`, and only with them");
        }
        if let Some(only) = &self.only_on
            && (only.backends.is_empty() || only.because.is_empty())
        {
            bail!("`onlyOn` names backends, and says why");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(yaml: &str) -> anyhow::Result<CaseSpec> {
        let spec: CaseSpec = serde_saphyr::from_str(yaml)?;
        spec.check()?;
        Ok(spec)
    }

    #[test]
    fn a_case_that_makes_no_sense_is_refused() {
        let good =
            "{about: x, expect: {outcome: succeeded, answer: good, receipts: {calls: [], model: [], ended: done}}}";
        assert!(of(good).is_ok(), "{:?}", of(good));
        for bad in [
            "{about: x, expect: {outcome: succeeded, receipts: {calls: [], model: [], ended: done}}}",
            "{about: x, expect: {outcome: succeeded, answer: good}}",
            "{about: x, expect: {outcome: denied}}",
            "{about: x, expect: {outcome: denied, rules: [some-rule], results: {}}}",
            "{about: x, expect: {outcome: timedOut, rules: [some-rule], receipts: {calls: [], model: [], ended: timedOut}}}",
            "{about: x, expect: {outcome: refused}}",
            "{about: x, expect: {outcome: refused, why: reason}, meanwhile: {when: asked, act: cancel}}",
            "{about: x, onlyOn: {backends: [], because: reason}, expect: {outcome: refused, why: reason}}",
            "{about: x, expect: {outcome: refused, why: {contains: []}}}",
            "{about: x, expects: {}}",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
