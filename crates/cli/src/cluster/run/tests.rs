use std::future::{pending, ready};

use clap::Parser as _;

use super::*;
use crate::arguments::{Arguments, Command};

fn failure() -> HintedError {
    HintedError::new(anyhow!("no"), "try")
}

/// Lets spawned tasks run to completion.
async fn settle() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_word_that_was_not_heard_is_given_again() {
    let mut cancelling = Cancellation::NotRequested;
    assert_eq!(cancelling.request(ready(Err(failure()))), CancelState::Pending);
    settle().await;
    // The second request succeeds, and the third adds nothing.
    assert_eq!(cancelling.request(ready(Ok(()))), CancelState::Pending);
    settle().await;
    assert_eq!(cancelling.request(async { panic!("it was told twice") }), CancelState::Accepted);
    let heard = cancelling.finish(CANCEL_TIMEOUT).await;
    assert!(matches!(heard, Some(Ok(()))), "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_is_told_that_nobody_heard() {
    let mut cancelling = Cancellation::NotRequested;
    cancelling.request(ready(Err(failure())));
    let heard = cancelling.finish(CANCEL_TIMEOUT).await;
    assert!(matches!(heard, Some(Err(_))), "{heard:?}");
    // A request that never completes times out.
    let mut cancelling = Cancellation::NotRequested;
    cancelling.request(pending());
    assert_eq!(cancelling.request(ready(Ok(()))), CancelState::Pending);
    let heard = cancelling.finish(CANCEL_TIMEOUT).await;
    assert!(heard.is_none(), "{heard:?}");
    // No cancellation was requested.
    let heard = Cancellation::NotRequested.finish(CANCEL_TIMEOUT).await;
    assert!(matches!(heard, Some(Ok(()))), "{heard:?}");
}

#[test]
fn a_run_that_was_to_end_before_it_was_there_is_not_left_to_itself() {
    let arguments = |typed: &[&str]| {
        let all = ["sympozium", "run", "--cluster", "task"];
        let all = all.iter().chain(typed);
        let Command::Run(arguments) = Arguments::try_parse_from(all).unwrap().command else {
            panic!("another command");
        };
        arguments
    };
    let (here, away) = (arguments(&[]), arguments(&["--detach"]));
    for (wanted, followed, detached) in [
        (StopLevel::None, AfterCreate::Follow, AfterCreate::Detach),
        (StopLevel::Gently, AfterCreate::Follow, AfterCreate::Cancel),
        (StopLevel::Now, AfterCreate::Follow, AfterCreate::Cancel),
    ] {
        assert_eq!(after_create(wanted, &here), followed);
        assert_eq!(after_create(wanted, &away), detached);
    }
}
