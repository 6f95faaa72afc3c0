use super::*;

fn request() -> ApprovalRequest {
    ApprovalRequest {
        approval: "a".to_owned(),
        tool: "execute_command".to_owned(),
        pack: Some("cluster".to_owned()),
        action: Digest::new(format!("sha256:{}", "0".repeat(64))),
        shown: "shell: ls".to_owned(),
        wait_seconds: 9,
    }
}

fn yes() -> ApprovalAnswer {
    ApprovalAnswer {
        by: Some("user".to_owned()),
        for_the_run: true,
        ..build_answer(&request(), Decision::Approved, None)
    }
}

#[test]
fn a_question_is_the_same_however_long_it_waits_and_not_otherwise() {
    let same = question_digest(&request()).unwrap();
    let with = |change: fn(&mut ApprovalRequest)| {
        let mut request = request();
        change(&mut request);
        question_digest(&request).unwrap()
    };
    assert_eq!(with(|question| question.wait_seconds = 1), same);
    assert_ne!(with(|question| question.shown.push('x')), same);
    assert_ne!(with(|question| question.pack = None), same);
    assert_ne!(with(|question| question.tool.push('x')), same);
    assert_ne!(with(|question| question.action = Digest::new("sha256:11")), same);
}

#[test]
fn an_answer_counts_for_its_question_and_as_far_as_the_plan_permits() {
    let once = RunFacts::example(|plan| plan.approval.run_scope = false);
    let often = RunFacts::example(|plan| plan.approval.run_scope = true);
    assert_eq!(check_answer(&request(), &often, yes()), yes());
    let reduced = ApprovalAnswer { for_the_run: false, ..yes() };
    assert_eq!(check_answer(&request(), &once, yes()), reduced);
    let no = ApprovalAnswer { decision: Decision::Denied, ..yes() };
    assert!(!check_answer(&request(), &often, no).for_the_run);

    let refused = |given: ApprovalAnswer| {
        let answer = check_answer(&request(), &often, given);
        (answer.decision, answer.action == request().action, answer.for_the_run, answer.by)
    };
    let another = ApprovalAnswer { action: Digest::new("sha256:11"), ..yes() };
    assert_eq!(refused(another), (Decision::Denied, true, false, None));
    let another = ApprovalAnswer { approval: "b".to_owned(), ..yes() };
    assert_eq!(refused(another), (Decision::Denied, true, false, None));
}

#[test]
fn what_a_decider_says_is_bounded() {
    let facts = RunFacts::example(|_| {});
    let long = ApprovalAnswer { by: Some("x\u{1b}".repeat(9999)), reason: Some("é".repeat(9999)), ..yes() };
    let bounded = check_answer(&request(), &facts, long);
    assert_eq!(bounded.reason.map(|reason| reason.chars().count()), Some(SHORT_TEXT));
    let by = bounded.by.unwrap();
    assert!(by.chars().count() < 300 && !by.contains('\u{1b}'), "{by}");
}

#[tokio::test(start_paused = true)]
async fn a_question_without_a_waiter_is_cancelled() {
    let (sender, held) = watch::channel(None);
    let waits = held.clone();
    let began = Instant::now();
    let leave = async {
        sleep(4 * ABANDON_TIMEOUT).await;
        drop(waits);
    };
    tokio::join!(wait_abandoned(&sender), leave);
    let after = began.elapsed();
    assert!(after >= 5 * ABANDON_TIMEOUT, "{after:?}");
    assert!(after <= 6 * ABANDON_TIMEOUT, "{after:?}");
    drop(held);
}
