//! Evaluates votes by the approval rule of the plan. Pure.
//!
//! The object does not say who wrote a vote: that `by` and `groups` are the writer's own is enforced by the API server,
//! with a ValidatingAdmissionPolicy that an installation includes. Here it is decided whose votes count.

use std::collections::BTreeSet;

use sympozium_api::policy::{Approver, ApproverKind};
use sympozium_api::run_plan::ApprovalPlan;
use sympozium_api::tool_approval::{ApprovalDecision, ApprovalScope, ToolApprovalStatus};

use crate::cluster::SERVICE_ACCOUNT_PREFIX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VoteResult {
    /// More votes are needed.
    Open,
    /// Enough approvers have approved.
    Approved {
        /// The approvers, sorted.
        by: Vec<String>,
        /// Whether all of them approve the identical action for the whole run.
        for_the_run: bool,
        reason: Option<String>,
    },
    /// An approver has denied it, or a final approval does not count and cannot be withdrawn.
    No { by: Option<String>, reason: Option<String> },
}

/// One vote, from anywhere in the status.
#[derive(Debug, Clone, Copy)]
struct Vote<'a> {
    by: &'a str,
    groups: &'a [String],
    decision: ApprovalDecision,
    reason: Option<&'a str>,
    scope: Option<ApprovalScope>,
    /// Whether it is the final decision, which cannot be changed.
    is_final: bool,
}

/// Why an approval does not count.
fn disqualification(rule: &ApprovalPlan, author: Option<&str>, word: &Vote<'_>) -> Option<String> {
    let is_named = |kind: ApproverKind, name: &str| match kind {
        ApproverKind::User => name == word.by,
        ApproverKind::Group => word.groups.iter().any(|group| group == name),
    };
    if let Some(named) = &rule.approvers
        && !named.iter().any(|approver| is_named(approver.kind, &approver.name))
    {
        return Some(format!("{} approved, but the policy of this run does not name them as an approver", word.by));
    }
    // A user who may create service accounts could create as many as votes are required: one counts only if the policy
    // names it.
    let named = rule.approvers.as_deref().unwrap_or_default();
    let is_it = |approver: &Approver| approver.kind == ApproverKind::User && approver.name == word.by;
    if word.by.starts_with(SERVICE_ACCOUNT_PREFIX) && !named.iter().any(is_it) {
        return Some(format!(
            "{} approved, but the policy of this run does not name that service account as an approver",
            word.by
        ));
    }
    if !rule.run_author && author.is_none_or(|author| author == word.by) {
        return Some(format!(
            "{} approved, but the policy of this run does not let its author approve what it does",
            word.by
        ));
    }
    None
}

/// Whether the rule can be applied: an author who may not approve must be known.
pub(super) fn is_decidable(rule: &ApprovalPlan, author: Option<&str>) -> bool {
    rule.run_author || author.is_some()
}

/// Evaluates the votes of a status.
pub(super) fn evaluate(rule: &ApprovalPlan, author: Option<&str>, status: &ToolApprovalStatus) -> VoteResult {
    let words: Vec<Vote<'_>> = votes(status);
    // One denial is enough, by any writer: it permits nothing.
    if let Some(no) = words.iter().find(|word| word.decision == ApprovalDecision::Denied) {
        return VoteResult::No { by: Some(no.by.to_owned()), reason: no.reason.map(str::to_owned) };
    }
    let mut by = BTreeSet::new();
    let (mut for_the_run, mut reason) = (true, None);
    for word in &words {
        if let Some(why) = disqualification(rule, author, word) {
            // The object shows an approval that cannot be withdrawn: a denial at once is better than a timeout.
            if word.is_final {
                return VoteResult::No { by: None, reason: Some(why) };
            }
            continue;
        }
        by.insert(word.by.to_owned());
        for_the_run &= word.scope == Some(ApprovalScope::Run);
        reason = word.reason.or(reason);
    }
    let enough = usize::try_from(rule.required.max(1)).unwrap_or(usize::MAX);
    if by.len() < enough {
        return VoteResult::Open;
    }
    VoteResult::Approved {
        by: by.into_iter().collect(),
        for_the_run: for_the_run && rule.run_scope,
        reason: reason.map(str::to_owned),
    }
}

fn votes(status: &ToolApprovalStatus) -> Vec<Vote<'_>> {
    let mut words: Vec<Vote<'_>> = status
        .votes
        .iter()
        .map(|vote| Vote {
            by: &vote.by,
            groups: &vote.groups,
            decision: vote.decision,
            reason: vote.reason.as_deref(),
            scope: vote.scope,
            is_final: false,
        })
        .collect();
    if let (Some(decision), Some(by)) = (status.decision, &status.decided_by) {
        // The vote of the same user has the groups.
        let vote = status.votes.iter().find(|vote| vote.by == *by);
        words.push(Vote {
            by,
            groups: vote.map_or(&[], |vote| &vote.groups),
            decision,
            reason: status.reason.as_deref(),
            scope: status.scope,
            is_final: true,
        });
    }
    words
}

#[cfg(test)]
mod tests;
