//! Removes expired tasks and idempotency keys periodically.

use std::convert::Infallible;

use tokio::time::{Instant, sleep};

use super::idempotency::IdempotencyKeys;
use super::tasks::{REAPER_PERIOD, Tasks};

/// Never returns.
pub async fn run(tasks: &Tasks, keys: &IdempotencyKeys) -> Infallible {
    loop {
        sleep(REAPER_PERIOD).await;
        // The clock of the runtime, which tests control.
        let now = Instant::now().into_std();
        let (tasks, keys) = (tasks.remove_expired(now), keys.remove_expired(now));
        tracing::debug!(tasks, keys, "removed expired entries");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::StatusCode;
    use tokio::time::timeout;

    use super::*;
    use crate::serve::idempotency::Claim;
    use crate::serve::response::CallResult;
    use crate::serve::tasks::RETENTION;
    use crate::serve::tokens::Tokens;

    #[tokio::test(start_paused = true)]
    async fn finished_tasks_are_removed_within_a_period_of_their_expiry_and_running_ones_are_not() {
        let token = "token-0123456789abcdef";
        let tokens = Tokens::load(Some(token), None).unwrap();
        let caller = tokens.authenticate(token.as_bytes()).unwrap();
        let (tasks, keys) = (Tasks::default(), IdempotencyKeys::default());
        let reaping = run(&tasks, &keys);
        tokio::pin!(reaping);
        let now = || Instant::now().into_std();
        let finish = || {
            let (id, _) = tasks.create(caller, 10, now()).unwrap();
            tasks.finish(id, CallResult::Failed("x".to_owned()), now());
        };
        let mut pass = async |time: Duration| {
            let ended = timeout(time, &mut reaping).await;
            assert!(ended.is_err(), "it never ends");
        };

        let (running, _) = tasks.create(caller, 10, now()).unwrap();
        finish();
        let Claim::First(publisher) = keys.claim(caller, "key", "gh", b"", now()) else {
            panic!("it is the first request");
        };
        keys.publish(publisher, Ok((StatusCode::OK, "x".into())), now());
        // Half a period later, so that each is removed in another period.
        pass(REAPER_PERIOD / 2).await;
        finish();
        assert_eq!(tasks.counts(), (1, 2));

        pass(RETENTION - REAPER_PERIOD).await;
        assert_eq!(tasks.counts(), (1, 2));
        pass(REAPER_PERIOD).await;
        assert_eq!(tasks.counts(), (1, 1));
        assert_eq!(keys.remove_expired(now()), 0, "it has been removed");
        pass(REAPER_PERIOD).await;
        assert_eq!(tasks.counts(), (1, 0));

        // The same in every further period.
        for _ in 0..3 {
            finish();
            pass(RETENTION + REAPER_PERIOD).await;
            assert_eq!(tasks.counts(), (1, 0));
        }
        assert!(tasks.find(caller, running, now()).is_some());
    }
}
