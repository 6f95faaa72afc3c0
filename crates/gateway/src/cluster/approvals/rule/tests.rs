use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use sympozium_api::policy::Approver;
use sympozium_api::tool_approval::ApprovalVote;

use super::*;

fn rule() -> ApprovalPlan {
    ApprovalPlan { approvers: None, required: 1, run_scope: false, run_author: true }
}

fn named(kind: ApproverKind, name: &str) -> Option<Vec<Approver>> {
    let name = name.to_owned();
    Some(vec![Approver { kind, name }])
}

fn vote(by: &str, decision: ApprovalDecision, groups: &[&str]) -> ApprovalVote {
    ApprovalVote {
        by: by.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        decision,
        at: Time(Timestamp::UNIX_EPOCH),
        reason: None,
        scope: None,
    }
}

fn votes(votes: &[ApprovalVote]) -> ToolApprovalStatus {
    ToolApprovalStatus { votes: votes.to_vec(), ..ToolApprovalStatus::default() }
}

fn decided(by: &str, decision: ApprovalDecision) -> ToolApprovalStatus {
    ToolApprovalStatus {
        decision: Some(decision),
        decided_by: Some(by.to_owned()),
        decided_at: Some(Time(Timestamp::UNIX_EPOCH)),
        ..ToolApprovalStatus::default()
    }
}

fn yes(by: &[&str]) -> VoteResult {
    VoteResult::Approved { by: by.iter().map(|name| (*name).to_owned()).collect(), for_the_run: false, reason: None }
}

use ApprovalDecision::{Approved, Denied};

#[test]
fn nothing_is_no_answer() {
    assert_eq!(evaluate(&rule(), None, &ToolApprovalStatus::default()), VoteResult::Open);
}

#[test]
fn everyone_decides_where_no_approver_is_named() {
    assert_eq!(evaluate(&rule(), None, &decided("jo", Approved)), yes(&["jo"]));
    assert_eq!(evaluate(&rule(), None, &votes(&[vote("jo", Approved, &[])])), yes(&["jo"]));
}

#[test]
fn one_denial_of_any_voter_is_enough() {
    let rule = ApprovalPlan { approvers: named(ApproverKind::User, "jo"), run_author: false, ..rule() };
    let no = |by: &str| VoteResult::No { by: Some(by.to_owned()), reason: None };
    assert_eq!(evaluate(&rule, Some("me"), &decided("me", Denied)), no("me"));
    let split = votes(&[vote("jo", Approved, &[]), vote("x", Denied, &[])]);
    assert_eq!(evaluate(&rule, Some("me"), &split), no("x"));
}

#[test]
fn two_are_two_people() {
    let rule = ApprovalPlan { required: 2, ..rule() };
    let one = votes(&[vote("jo", Approved, &[])]);
    assert_eq!(evaluate(&rule, None, &one), VoteResult::Open);
    let mut same = decided("jo", Approved);
    same.votes = one.votes.clone();
    assert_eq!(evaluate(&rule, None, &same), VoteResult::Open);
    let mut two = decided("al", Approved);
    two.votes = one.votes;
    assert_eq!(evaluate(&rule, None, &two), yes(&["al", "jo"]));
    let two = votes(&[vote("jo", Approved, &[]), vote("al", Approved, &[])]);
    assert_eq!(evaluate(&rule, None, &two), yes(&["al", "jo"]));
}

#[test]
fn an_approval_of_another_user_does_not_count_and_as_a_decision_is_a_denial() {
    let rule = ApprovalPlan { approvers: named(ApproverKind::User, "jo"), ..rule() };
    assert_eq!(evaluate(&rule, None, &votes(&[vote("x", Approved, &[])])), VoteResult::Open);
    let reason = "x approved, but the policy of this run does not name them as an approver";
    let no = VoteResult::No { by: None, reason: Some(reason.to_owned()) };
    assert_eq!(evaluate(&rule, None, &decided("x", Approved)), no);
    assert_eq!(evaluate(&rule, None, &decided("jo", Approved)), yes(&["jo"]));
}

#[test]
fn a_group_is_one_that_the_vote_is_given_in() {
    let rule = ApprovalPlan { approvers: named(ApproverKind::Group, "sre"), ..rule() };
    let with = |groups: &[&str]| votes(&[vote("jo", Approved, groups)]);
    assert_eq!(evaluate(&rule, None, &with(&["dev", "sre"])), yes(&["jo"]));
    assert_eq!(evaluate(&rule, None, &with(&["dev"])), VoteResult::Open);
    // The name of a user is not that of a group.
    assert_eq!(evaluate(&rule, None, &votes(&[vote("sre", Approved, &[])])), VoteResult::Open);
    // A decision has no groups, unless the vote beside it has.
    assert!(matches!(evaluate(&rule, None, &decided("jo", Approved)), VoteResult::No { .. }));
    let mut both = decided("jo", Approved);
    both.votes = with(&["sre"]).votes;
    assert_eq!(evaluate(&rule, None, &both), yes(&["jo"]));
    both.votes = vec![vote("al", Approved, &["sre"])];
    assert!(matches!(evaluate(&rule, None, &both), VoteResult::No { .. }));
}

/// A user who may create service accounts and bind roles could be any number of voters.
#[test]
fn an_account_says_yes_where_it_is_named_and_no_everywhere() {
    let bot = "system:serviceaccount:team:bot";
    let two = ApprovalPlan { required: 2, ..rule() };
    let both = votes(&[vote("jo", Approved, &[]), vote(bot, Approved, &["sre"])]);
    assert_eq!(evaluate(&two, None, &both), VoteResult::Open);
    let with = |approvers| ApprovalPlan { approvers, ..rule() };
    let alone = votes(&[vote(bot, Approved, &["sre"])]);
    // That its group is named is not enough: every account of a namespace is in the namespace's group.
    let group = with(named(ApproverKind::Group, "sre"));
    assert_eq!(evaluate(&group, None, &alone), VoteResult::Open);
    assert_eq!(evaluate(&rule(), None, &alone), VoteResult::Open);
    let user = with(named(ApproverKind::User, bot));
    assert_eq!(evaluate(&user, None, &alone), yes(&[bot]));
    let reason =
        format!("{bot} approved, but the policy of this run does not name that service account as an approver");
    let no = VoteResult::No { by: None, reason: Some(reason) };
    assert_eq!(evaluate(&rule(), None, &decided(bot, Approved)), no);
    let no = VoteResult::No { by: Some(bot.to_owned()), reason: None };
    let denies = votes(&[vote(bot, Denied, &[])]);
    assert_eq!(evaluate(&rule(), None, &denies), no);
}

#[test]
fn an_author_who_may_not_is_known_and_left_out() {
    let rule = ApprovalPlan { run_author: false, ..rule() };
    let by = |name: &str| votes(&[vote(name, Approved, &[])]);
    assert_eq!(evaluate(&rule, Some("me"), &by("me")), VoteResult::Open);
    assert_eq!(evaluate(&rule, Some("me"), &by("jo")), yes(&["jo"]));
    // Any unknown user might be the author.
    assert_eq!(evaluate(&rule, None, &by("jo")), VoteResult::Open);
    assert!(!is_decidable(&rule, None));
    assert!(is_decidable(&rule, Some("me")));
}

#[test]
fn a_yes_for_the_run_is_everybodys_and_the_plans() {
    let scoped = |scopes: &[Option<ApprovalScope>], run_scope| {
        let people = ["a", "b"];
        let votes =
            scopes.iter().zip(people).map(|(scope, by)| ApprovalVote { scope: *scope, ..vote(by, Approved, &[]) });
        let status = ToolApprovalStatus { votes: votes.collect(), ..ToolApprovalStatus::default() };
        let rule = ApprovalPlan { run_scope, required: 2, ..rule() };
        matches!(evaluate(&rule, None, &status), VoteResult::Approved { for_the_run: true, .. })
    };
    let (run, once) = (Some(ApprovalScope::Run), Some(ApprovalScope::Once));
    assert!(scoped(&[run, run], true));
    assert!(!scoped(&[run, run], false));
    assert!(!scoped(&[run, once], true));
    assert!(!scoped(&[run, None], true));
}
