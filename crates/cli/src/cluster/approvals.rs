//! Questions of runs in a cluster: ToolApprovals. A vote is written to their status, as the user that the API server
//! authenticates.

use anyhow::{anyhow, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use sympozium_api::agent_run::AgentRunStatus;
use sympozium_api::labels::{annotation, field_manager};
use sympozium_api::names::Digest;
use sympozium_api::policy::ApproverKind;
use sympozium_api::run_plan::ApprovalPlan;
use sympozium_api::text::{printable, truncate};
use sympozium_api::tool_approval::{ApprovalDecision, ApprovalScope, ApprovalVote, ToolApprovalStatus};
use sympozium_api::{AgentRun, RunPlan, ToolApproval};
use sympozium_gateway::run_api::local::{Vote, VoteRefusal};

use super::call_error::{CallError, MAX_MESSAGE, Role};
use super::connection::CurrentUser;
use super::follow::read_plan;
use super::question::{self, to_question};
use super::records::run_selector as selector_of_run;
use super::{Cluster, Connection, FoundRun, PAGE_SIZE, list_runs, plan, view, warn_truncated};
use crate::output::print_stderr;
use sympozium_local::control::to_vote;
use sympozium_runs::HintedError;
use sympozium_runs::Question;
use sympozium_runs::time::now_ms;
use sympozium_runs::{PendingQuestion, VoteChoice, VoteResult};

/// The maximum number of ToolApprovals that are listed.
const MAX_APPROVALS: usize = 10_000;
/// The maximum number of groups that a vote names.
const MAX_GROUPS: usize = 16;
/// How often a vote is written again after a conflict with another approver's vote.
const MAX_ATTEMPTS: u32 = 5;

/// All open questions of the namespace, those of the newest run first.
///
/// # Errors
///
/// When they cannot be listed.
pub fn list_questions(cluster: &Cluster) -> Result<Vec<PendingQuestion>, HintedError> {
    let connection = &cluster.connection;
    cluster.block_on(async {
        let open = list_undecided(connection, None).await?;
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let with_questions = |run: AgentRun| {
            let has_question = view::run_end(&run).is_none() && open.iter().any(|it| belongs_to(it, &run));
            has_question.then(|| strip_status(run))
        };
        let (mut runs, has_more) = list_runs(connection, with_questions).await?;
        if has_more {
            warn_truncated();
        }
        runs.sort_by_key(|run| std::cmp::Reverse(view::to_view(run, &connection.target).0.started_ms));
        let mut pending = Vec::new();
        for run in runs {
            let of_run = open.iter().filter(|it| belongs_to(it, &run));
            let of_run: Vec<&ToolApproval> = of_run.collect();
            let plan = read_plan(connection, &run).await;
            let names = plan::object_names(&run);
            pending.extend(of_run.into_iter().map(|approval| PendingQuestion {
                run: run.name_any(),
                uid: run.uid().unwrap_or_default(),
                question: to_question(approval, &names, plan.as_deref()),
                key: approval.name_any(),
            }));
        }
        Ok(pending)
    })
}

/// Drops the run's status except for what is needed to find its plan.
fn strip_status(mut run: AgentRun) -> AgentRun {
    run.status =
        run.status.map(|status| AgentRunStatus { plan_digest: status.plan_digest, ..AgentRunStatus::default() });
    run
}

/// The open questions of one run.
///
/// # Errors
///
/// When they cannot be listed.
pub async fn run_questions(
    connection: &Connection,
    found: &FoundRun,
    plan: Option<&RunPlan>,
) -> Result<Vec<Question>, HintedError> {
    let open = list_undecided(connection, Some(&found.run)).await?;
    let names = plan::object_names(&found.run);
    let of_run = open.iter().filter(|it| belongs_to(it, &found.run));
    Ok(of_run.map(|it| to_question(it, &names, plan)).collect())
}

fn belongs_to(approval: &ToolApproval, run: &AgentRun) -> bool {
    run.metadata.uid.as_deref() == Some(approval.spec.run.uid.as_str())
}

/// Lists the requests that are undecided and not expired, page by page.
async fn list_undecided(connection: &Connection, run: Option<&AgentRun>) -> Result<Vec<ToolApproval>, HintedError> {
    let api = connection.approvals();
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    if let Some(run) = run {
        parameters = parameters.labels(&selector_of_run(run));
    }
    let (mut open, mut count) = (Vec::new(), 0);
    loop {
        let page = connection.call("list ToolApprovals", Role::Viewer, api.list(&parameters));
        let page = page.await?;
        count += page.items.len();
        let now = now_ms();
        open.extend(page.items.into_iter().filter(|it| question::is_open(it, now)));
        let next = page.metadata.continue_.filter(|it| !it.is_empty());
        match next {
            Some(next) if count < MAX_APPROVALS => {
                parameters = parameters.continue_token(&next);
            }
            Some(_) => {
                print_stderr(&format!(
                    "warning: there are more than {MAX_APPROVALS} ToolApprovals; the others were not read"
                ));
                break;
            }
            None => break,
        }
    }
    open.sort_by_key(|it| view::to_millis(&it.spec.requested_at));
    Ok(open)
}

/// `cast_vote` for synchronous commands, about a question that was shown to the approver.
///
/// # Errors
///
/// When it is unknown whether the vote counts.
pub fn cast_vote_blocking(
    cluster: &Cluster,
    question: &PendingQuestion,
    vote: VoteChoice,
    reason: Option<&str>,
) -> anyhow::Result<VoteResult> {
    let action = &question.question.action;
    cluster.block_on(cast_vote(&cluster.connection, &question.key, action, to_vote(vote), reason))
}

/// Why a vote does not count.
#[derive(Debug, thiserror::Error)]
enum VoteError {
    /// The rules of the run's plan forbid it.
    #[error(transparent)]
    Rule(#[from] VoteRefusal),
    /// Another approver was faster.
    #[error("the question is already decided: {0}")]
    AlreadyDecided(String),
    /// The API server rejected it.
    #[error("{0}")]
    Rejected(String),
    /// It is unknown whether it counts.
    #[error("{0}")]
    Unknown(String),
}

impl From<HintedError> for VoteError {
    fn from(failure: HintedError) -> Self {
        Self::Rejected(failure.summary())
    }
}

/// Casts a vote about one exact action.
///
/// The vote is written as the user that the API server authenticates. The approver whose vote is the last that is
/// needed also writes the decision, if they may read the plan, which has the required number. The gateway decides what
/// counts in the end, from the run's plan and all votes.
///
/// # Errors
///
/// When it is unknown whether the vote counts.
pub async fn cast_vote(
    connection: &Connection,
    name: &str,
    action: &Digest,
    vote: Vote,
    reason: Option<&str>,
) -> anyhow::Result<VoteResult> {
    match write_vote(connection, name, action, vote, reason).await {
        Ok(result) => Ok(result),
        Err(VoteError::Unknown(why)) => bail!("{why}"),
        Err(why) => Ok(VoteResult::Refused(why.to_string())),
    }
}

async fn write_vote(
    connection: &Connection,
    name: &str,
    action: &Digest,
    vote: Vote,
    reason: Option<&str>,
) -> Result<VoteResult, VoteError> {
    let me = connection.current_user().await?;
    let api = connection.approvals();
    let operation = "vote on the question (ToolApproval)";
    for _ in 0..MAX_ATTEMPTS {
        let found = connection.call("read the question (ToolApproval)", Role::Viewer, api.get_opt(name));
        let Some(approval) = found.await? else {
            return Err(VoteRefusal::Unknown.into());
        };
        if approval.spec.action_hash != *action {
            return Err(VoteRefusal::OtherAction.into());
        }
        let rules = load_rules(connection, &approval).await?;
        let now = Time(jiff::Timestamp::now());
        let (status, counted) = apply_vote(&approval, &rules, &me, vote, reason, now)?;
        let patch = json!({
            "metadata": {"resourceVersion": approval.metadata.resource_version},
            "status": status,
        });
        let parameters = PatchParams { field_manager: Some(field_manager::CLI.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(&patch);
        let written = connection.try_call(api.patch_status(name, &parameters, &patch));
        match written.await {
            Ok(_) => return Ok(counted),
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(vote_error(connection, operation, &error)),
        }
    }
    Err(VoteError::Rejected("other approvers voted at the same time; try again".to_owned()))
}

fn is_conflict(error: &CallError) -> bool {
    error.status().is_some_and(|it| it.is_conflict())
}

fn vote_error(connection: &Connection, operation: &str, error: &CallError) -> VoteError {
    match error.status() {
        // A rule of the CRD or of an admission policy of the installation.
        Some(status) if status.is_invalid() => {
            VoteError::Rejected(printable(truncate(status.message.trim(), MAX_MESSAGE)).into_owned())
        }
        Some(_) => connection.call_context(operation, Role::Approver).as_failure(error).into(),
        None => VoteError::Unknown(connection.call_context(operation, Role::Approver).as_failure(error).summary()),
    }
}

/// What decides whether a vote counts, as far as it is known here.
#[derive(Debug, Default)]
struct ApprovalRules {
    /// `None` when the plan cannot be read.
    plan: Option<ApprovalPlan>,
    /// Who created the run, if that is recorded.
    author: Option<String>,
}

async fn load_rules(connection: &Connection, approval: &ToolApproval) -> Result<ApprovalRules, VoteError> {
    let reference = &approval.spec.run;
    let api = connection.runs();
    let run =
        connection.call("read the run of the question (AgentRun)", Role::Viewer, api.get_opt(reference.name.as_str()));
    let run = run.await?;
    let Some(run) = run.filter(|it| belongs_to(approval, it) && view::run_end(it).is_none()) else {
        return Err(VoteError::Rejected("the run has ended".to_owned()));
    };
    let plan = read_plan(connection, &run).await.map(|it| it.approval);
    Ok(ApprovalRules { plan, author: author(&run) })
}

/// Who created a run, if that is recorded. An empty name counts as none.
fn author(run: &AgentRun) -> Option<String> {
    let author = run.annotations().get(annotation::CREATED_BY);
    author.filter(|it| !it.is_empty()).cloned()
}

/// The status with this user's vote in it, and the effect of the vote.
fn apply_vote(
    approval: &ToolApproval,
    rules: &ApprovalRules,
    me: &CurrentUser,
    vote: Vote,
    reason: Option<&str>,
    now: Time,
) -> Result<(ToolApprovalStatus, VoteResult), VoteError> {
    if let Some((decision, by)) = question::decision(approval) {
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        let decision = format!("{decision:?}").to_lowercase();
        return Err(VoteError::AlreadyDecided(format!("{decision}{by}")));
    }
    if view::to_millis(&approval.spec.expires_at) <= view::to_millis(&now) {
        return Err(VoteRefusal::Unknown.into());
    }
    check_vote(rules, me, vote)?;
    let (decision, scope) = match vote {
        Vote::Approve => (ApprovalDecision::Approved, None),
        Vote::ApproveForRun => (ApprovalDecision::Approved, Some(ApprovalScope::Run)),
        Vote::Deny => (ApprovalDecision::Denied, None),
    };
    let mut status = approval.status.clone().unwrap_or_default();
    let earlier = status.votes.iter().find(|it| it.by == me.name);
    match earlier.map(|it| it.decision) {
        Some(ApprovalDecision::Approved) if decision == ApprovalDecision::Approved => {
            return Err(VoteRefusal::Duplicate.into());
        }
        // Their vote stays as it is, and one denial is enough.
        Some(_) => {}
        None => status.votes.push(new_vote(rules, me, decision, scope, reason, &now)?),
    }
    let approvals = status.votes.iter().filter(|it| it.decision == ApprovalDecision::Approved);
    let approvals = u32::try_from(approvals.count()).unwrap_or(u32::MAX);
    match (vote, &rules.plan) {
        // One denial is enough, whatever the plan requires.
        (Vote::Deny, _) => {}
        // A decision is final, and it is not known here whether this is the last approval that is needed.
        (Vote::Approve | Vote::ApproveForRun, None) => return Ok((status, VoteResult::Recorded)),
        (Vote::Approve | Vote::ApproveForRun, Some(plan)) => {
            let more = plan.required.max(1).saturating_sub(approvals);
            if more > 0 {
                return Ok((status, VoteResult::MoreNeeded(more)));
            }
        }
    }
    status.decision = Some(decision);
    status.decided_by = Some(me.name.clone());
    status.decided_at = Some(now);
    status.reason = reason.map(str::to_owned);
    status.scope = scope;
    Ok((status, VoteResult::Decided))
}

/// A vote that names those of the user's groups that may matter.
fn new_vote(
    rules: &ApprovalRules,
    me: &CurrentUser,
    decision: ApprovalDecision,
    scope: Option<ApprovalScope>,
    reason: Option<&str>,
    now: &Time,
) -> Result<ApprovalVote, VoteError> {
    let approvers = rules.plan.as_ref().map(|it| it.approvers.as_deref());
    let is_wanted = |group: &&String| match approvers {
        Some(approvers) => {
            approvers.unwrap_or_default().iter().any(|it| it.kind == ApproverKind::Group && it.name == **group)
        }
        // It is not known which groups the plan names, but not the ones that every user is in.
        None => !group.starts_with("system:"),
    };
    let groups: Vec<&String> = me.groups.iter().filter(is_wanted).take(MAX_GROUPS).collect();
    // By way of JSON: a version of the kind without groups ignores them.
    let vote = json!({
        "by": me.name, "decision": decision, "at": now, "reason": reason, "scope": scope, "groups": groups,
    });
    serde_json::from_value(vote).map_err(|error| VoteError::Rejected(error.to_string()))
}

fn check_vote(rules: &ApprovalRules, me: &CurrentUser, vote: Vote) -> Result<(), VoteRefusal> {
    let Some(plan) = &rules.plan else {
        return Ok(());
    };
    if vote == Vote::ApproveForRun && !plan.run_scope {
        return Err(VoteRefusal::RunScope);
    }
    if let Some(approvers) = &plan.approvers {
        let is_me = |kind: ApproverKind, name: &str| match kind {
            ApproverKind::User => me.name == name,
            ApproverKind::Group => me.groups.iter().any(|it| it == name),
        };
        if !approvers.iter().any(|it| is_me(it.kind, &it.name)) {
            return Err(VoteRefusal::NotApprover);
        }
    }
    let is_author = rules.author.as_ref() == Some(&me.name);
    if is_author && !plan.run_author && vote != Vote::Deny {
        return Err(VoteRefusal::Author);
    }
    Ok(())
}

/// Asks the controller to end a run, by a merge patch of the only field of the spec that can be changed.
pub(super) async fn patch_cancel(connection: &Connection, found: &FoundRun) -> Result<(), HintedError> {
    let patch = json!({
        "metadata": {"uid": found.uid},
        "spec": {"cancel": true},
    });
    let parameters = PatchParams { field_manager: Some(field_manager::CLI.to_owned()), ..PatchParams::default() };
    let api = connection.runs();
    let patch = Patch::Merge(&patch);
    let patched = api.patch(&found.name, &parameters, &patch);
    let patched = connection.call("cancel the run", Role::Runner, patched).await;
    patched.map(drop).map_err(|failure| {
        // The UID is in the patch so that no other run of the same name is cancelled.
        HintedError::new(
            anyhow!("run {} was not cancelled: {}", found.name, failure.summary()),
            format!("`sympozium show {}{}` prints the state of the run", found.name, connection.target.as_str()),
        )
    })
}

#[cfg(test)]
mod tests {
    use sympozium_api::policy::Approver;

    use super::*;

    fn me(name: &str) -> CurrentUser {
        CurrentUser { name: name.to_owned(), groups: vec!["sre".to_owned()] }
    }

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn asked() -> ToolApproval {
        serde_json::from_value(json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "ToolApproval", "metadata": {"name": "run-q1"},
            "spec": {
                "run": {"name": "run", "uid": "uid"}, "tool": "execute_command",
                "actionHash": format!("sha256:{}", "0".repeat(64)), "summary": "shell: ls",
                "requestedAt": "1970-01-01T00:00:10Z", "expiresAt": "1970-01-01T00:01:00Z",
            },
        }))
        .unwrap()
    }

    fn rules(required: u32) -> ApprovalRules {
        ApprovalRules {
            plan: Some(ApprovalPlan { approvers: None, required, run_scope: false, run_author: false }),
            author: Some("ada".to_owned()),
        }
    }

    fn vote_as(
        approval: &ToolApproval,
        rules: &ApprovalRules,
        name: &str,
        vote: Vote,
    ) -> Result<(ToolApprovalStatus, VoteResult), String> {
        let voted = apply_vote(approval, rules, &me(name), vote, Some("because"), at(20));
        voted.map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_vote_that_is_needed_decides() {
        let mut approval = asked();
        let (status, counted) = vote_as(&approval, &rules(2), "bob", Vote::Approve).unwrap();
        assert_eq!(counted, VoteResult::MoreNeeded(1));
        assert_eq!((status.decision, status.votes.len()), (None, 1));
        approval.status = Some(status);
        let twice = vote_as(&approval, &rules(2), "bob", Vote::Approve).unwrap_err();
        assert_eq!(twice, VoteRefusal::Duplicate.to_string());
        let (status, counted) = vote_as(&approval, &rules(2), "eve", Vote::Approve).unwrap();
        assert_eq!(counted, VoteResult::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Approved));
        assert_eq!(status.decided_by.as_deref(), Some("eve"));
        assert_eq!(status.decided_at, Some(at(20)));
        let by: Vec<&str> = status.votes.iter().map(|it| it.by.as_str()).collect();
        assert_eq!(by, ["bob", "eve"]);
        // One denial is enough, also by an approver who has approved before.
        let (status, counted) = vote_as(&approval, &rules(2), "bob", Vote::Deny).unwrap();
        assert_eq!(counted, VoteResult::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Denied));
        assert_eq!(status.votes, approval.status.unwrap().votes);
    }

    #[test]
    fn a_refused_vote_has_a_reason() {
        let author = vote_as(&asked(), &rules(1), "ada", Vote::Approve).unwrap_err();
        assert_eq!(author, VoteRefusal::Author.to_string());
        assert!(vote_as(&asked(), &rules(1), "ada", Vote::Deny).is_ok());
        let scope = vote_as(&asked(), &rules(1), "bob", Vote::ApproveForRun).unwrap_err();
        assert_eq!(scope, VoteRefusal::RunScope.to_string());
        let approver = |kind, name: &str| Approver { kind, name: name.to_owned() };
        let mut only = rules(1);
        let among = |rules: &mut ApprovalRules, all: Vec<Approver>| {
            rules.plan.as_mut().unwrap().approvers = Some(all);
        };
        among(&mut only, vec![approver(ApproverKind::User, "eve")]);
        let other = vote_as(&asked(), &only, "bob", Vote::Approve).unwrap_err();
        assert_eq!(other, VoteRefusal::NotApprover.to_string());
        among(&mut only, vec![approver(ApproverKind::Group, "sre")]);
        assert!(vote_as(&asked(), &only, "bob", Vote::Approve).is_ok());
        among(&mut only, Vec::new());
        assert!(vote_as(&asked(), &only, "bob", Vote::Deny).is_err());
    }

    #[test]
    fn decided_and_expired_questions_take_no_vote() {
        let mut approval = asked();
        let (status, _) = vote_as(&approval, &rules(1), "bob", Vote::Deny).unwrap();
        approval.status = Some(status);
        let again = vote_as(&approval, &rules(1), "eve", Vote::Approve).unwrap_err();
        assert_eq!(again, "the question is already decided: denied by bob");
        let late = apply_vote(&asked(), &rules(1), &me("bob"), Vote::Approve, None, at(60)).unwrap_err();
        assert_eq!(late.to_string(), VoteRefusal::Unknown.to_string());
    }

    #[test]
    fn without_the_plan_an_approval_is_recorded_and_a_denial_decides() {
        let mut approval = asked();
        let unknown = ApprovalRules::default();
        for (name, votes) in [("bob", 1), ("eve", 2)] {
            let (status, counted) = vote_as(&approval, &unknown, name, Vote::Approve).unwrap();
            assert_eq!(counted, VoteResult::Recorded);
            assert_eq!((status.decision, status.votes.len()), (None, votes));
            approval.status = Some(status);
        }
        // An approver who may read the plan counts the votes of those who may not.
        let (status, counted) = vote_as(&approval, &rules(3), "joe", Vote::Approve).unwrap();
        assert_eq!(counted, VoteResult::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Approved));
        let (status, counted) = vote_as(&approval, &unknown, "joe", Vote::Deny).unwrap();
        assert_eq!(counted, VoteResult::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Denied));
    }

    #[test]
    fn an_empty_author_is_none() {
        let created_by = |name: &str| {
            let mut run = AgentRun::new("run", sympozium_api::AgentRunSpec::default());
            let annotations = [(annotation::CREATED_BY.to_owned(), name.to_owned())];
            run.metadata.annotations = Some(annotations.into());
            author(&run)
        };
        assert_eq!(created_by(""), None);
        assert_eq!(created_by("ada"), Some("ada".to_owned()));
    }
}
