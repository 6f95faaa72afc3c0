use std::time::Duration;

use sympozium_api::RunPlan;
use tokio::task::JoinHandle;

use super::*;

fn hash(digit: &str) -> Digest {
    Digest::new(format!("sha256:{}", digit.repeat(64)))
}

fn question(name: &str, change: impl FnOnce(&mut RunPlan)) -> Question {
    let run = RunFacts::example(|plan| {
        plan.approval.approvers = None;
        change(plan);
    });
    Question {
        run,
        request: ApprovalRequest {
            approval: name.to_owned(),
            tool: "execute_command".to_owned(),
            pack: Some("cluster".to_owned()),
            action: hash("0"),
            shown: "shell: ls".to_owned(),
            wait_seconds: 60,
        },
        deadline: Instant::now() + Duration::from_secs(60),
    }
}

fn person(name: &str) -> Voter {
    Voter { name: name.to_owned(), groups: vec![format!("group-of-{name}")], is_author: false }
}

/// A pending question, and its future answer.
struct Asked {
    desk: ApprovalQueue,
    run: String,
    waits: JoinHandle<Result<ApprovalAnswer, HandlerError>>,
}

impl Asked {
    async fn new(change: impl FnOnce(&mut RunPlan)) -> Self {
        let desk = ApprovalQueue::new();
        let mut changes = desk.changes();
        let question = question("a", change);
        let run = question.run.uid().to_owned();
        let asked = desk.clone();
        let waits = tokio::spawn(async move { QuestionHandler::ask(&asked, question).await });
        changes.changed().await.unwrap();
        Self { desk, run, waits }
    }

    fn decide(&self, says: Vote, by: &Voter) -> Result<VoteOutcome, VoteRefusal> {
        self.about(&hash("0"), "a", says, by)
    }

    fn about(&self, action: &Digest, approval: &str, says: Vote, by: &Voter) -> Result<VoteOutcome, VoteRefusal> {
        self.desk.vote(&VoteRequest { run: &self.run, approval, action, vote: says, by, reason: Some("because") })
    }

    async fn answer(self) -> (Decision, Option<String>, bool) {
        let answer = self.waits.await.unwrap().unwrap();
        assert_eq!((answer.approval.as_str(), answer.action), ("a", hash("0")));
        (answer.decision, answer.by, answer.for_the_run)
    }
}

#[tokio::test]
async fn a_question_is_answered_once_and_about_its_action() {
    let asked = Asked::new(|_| {}).await;
    let one = person("one");
    assert_eq!(asked.desk.pending().len(), 1);
    assert_eq!(asked.about(&hash("1"), "a", Vote::Approve, &one), Err(VoteRefusal::OtherAction));
    assert_eq!(asked.about(&hash("0"), "b", Vote::Approve, &one), Err(VoteRefusal::Unknown));
    assert_eq!(asked.decide(Vote::Approve, &one), Ok(VoteOutcome::Decided));
    assert_eq!(asked.decide(Vote::Approve, &one), Err(VoteRefusal::Unknown));
    assert_eq!(asked.decide(Vote::Deny, &one), Err(VoteRefusal::Unknown));
    assert_eq!(asked.desk.pending().len(), 0);
    let by = Some("one".to_owned());
    assert_eq!(asked.answer().await, (Decision::Approved, by, false));
}

#[tokio::test]
async fn the_rule_about_approvers_is_kept() {
    let approver = |kind, name: &str| Approver { kind, name: name.to_owned() };
    let named = vec![approver(ApproverKind::User, "one"), approver(ApproverKind::Group, "group-of-two")];
    let asked = Asked::new(|plan| {
        plan.approval.approvers = Some(named);
        plan.approval.required = 2;
        plan.approval.run_author = false;
        plan.approval.run_scope = true;
    })
    .await;
    let (one, two, three) = (person("one"), person("two"), person("three"));
    let author = Voter { is_author: true, ..one.clone() };
    // The name of a group is not that of a person.
    let posing = person("group-of-two");
    let no = |why| Err(why);
    assert_eq!(asked.decide(Vote::Approve, &three), no(VoteRefusal::NotApprover));
    assert_eq!(asked.decide(Vote::Deny, &three), no(VoteRefusal::NotApprover));
    assert_eq!(asked.decide(Vote::Approve, &posing), no(VoteRefusal::NotApprover));
    assert_eq!(asked.decide(Vote::Approve, &author), no(VoteRefusal::Author));
    assert_eq!(asked.decide(Vote::ApproveForRun, &one), Ok(VoteOutcome::Pending(1)));
    assert_eq!(asked.decide(Vote::Approve, &one), no(VoteRefusal::Duplicate));
    assert_eq!(asked.decide(Vote::Approve, &two), Ok(VoteOutcome::Decided));
    let by = Some("one, two".to_owned());
    // Not all of them approved for the whole run.
    assert_eq!(asked.answer().await, (Decision::Approved, by, false));
}

#[tokio::test]
async fn one_no_is_enough_and_a_yes_for_the_run_needs_the_plan() {
    let asked = Asked::new(|plan| plan.approval.required = 2).await;
    let (one, two) = (person("one"), person("two"));
    assert_eq!(asked.decide(Vote::ApproveForRun, &one), Err(VoteRefusal::RunScope));
    assert_eq!(asked.decide(Vote::Approve, &one), Ok(VoteOutcome::Pending(1)));
    assert_eq!(asked.decide(Vote::Deny, &two), Ok(VoteOutcome::Decided));
    let by = Some("two".to_owned());
    assert_eq!(asked.answer().await, (Decision::Denied, by, false));

    let asked = Asked::new(|plan| plan.approval.run_scope = true).await;
    assert_eq!(asked.decide(Vote::ApproveForRun, &one), Ok(VoteOutcome::Decided));
    let by = Some("one".to_owned());
    assert_eq!(asked.answer().await, (Decision::Approved, by, true));
}

#[tokio::test(start_paused = true)]
async fn expired_questions_and_those_without_a_waiter_are_removed() {
    let asked = Asked::new(|_| {}).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(asked.decide(Vote::Approve, &person("one")), Err(VoteRefusal::Unknown));
    let mut changes = asked.desk.changes();
    asked.waits.abort();
    changes.changed().await.unwrap();
    assert_eq!(asked.desk.pending().len(), 0);
}

#[tokio::test]
async fn a_desk_has_room_for_so_many() {
    let desk = ApprovalQueue::new();
    let mut waiting = Vec::new();
    let first = question("0", |_| {});
    for number in 0..MAX_PENDING {
        let mut question = first.clone();
        question.request.approval = number.to_string();
        let mut asked = Box::pin(QuestionHandler::ask(&desk, question));
        let pending = std::future::poll_fn(|context| std::task::Poll::Ready(asked.as_mut().poll(context).is_pending()));
        assert!(pending.await);
        waiting.push(asked);
    }
    assert_eq!(desk.pending().len(), MAX_PENDING);
    let full = QuestionHandler::ask(&desk, question("one more", |_| {})).await;
    assert!(matches!(full, Err(HandlerError::Busy(_))), "{full:?}");
    waiting.pop();
    assert_eq!(desk.pending().len(), MAX_PENDING - 1);
}
