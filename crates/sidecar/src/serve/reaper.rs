//! Throws away what has expired, for as long as the server runs.

use std::convert::Infallible;

use tokio::time::{Instant, sleep};

use super::idempotency::Keys;
use super::tasks::{REAPER_PERIOD, Tasks};

/// Looks at everything once in a period, and never ends.
pub async fn run(tasks: &Tasks, keys: &Keys) -> Infallible {
    loop {
        sleep(REAPER_PERIOD).await;
        // The clock of the runtime, which a test can set.
        let now = Instant::now().into_std();
        let (tasks, keys) = (tasks.reap(now), keys.reap(now));
        tracing::debug!(tasks, keys, "what had expired was thrown away");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::StatusCode;
    use tokio::time::timeout;

    use super::*;
    use crate::serve::answer::Finished;
    use crate::serve::idempotency::Claim;
    use crate::serve::tasks::KEPT;
    use crate::serve::tokens::Tokens;

    #[tokio::test(start_paused = true)]
    async fn what_is_finished_is_thrown_away_within_a_period_of_its_end_and_what_runs_is_not() {
        let token = "token-0123456789abcdef";
        let tokens = Tokens::load(Some(token), None).unwrap();
        let caller = tokens.caller(token.as_bytes()).unwrap();
        let (tasks, keys) = (Tasks::default(), Keys::default());
        let reaping = run(&tasks, &keys);
        tokio::pin!(reaping);
        let now = || Instant::now().into_std();
        let finish = || {
            let (id, _) = tasks.begin(caller, 10, now()).unwrap();
            tasks.finish(id, Finished::Failed("x".to_owned()), now());
        };
        let mut pass = async |time: Duration| {
            let ended = timeout(time, &mut reaping).await;
            assert!(ended.is_err(), "it never ends");
        };

        let (running, _) = tasks.begin(caller, 10, now()).unwrap();
        finish();
        let Claim::First(first) = keys.claim(caller, "key", "gh", b"", now()) else {
            panic!("it is the first");
        };
        keys.finish(first, Ok((StatusCode::OK, "x".into())), now());
        // Half a period later, so that each is seen by a look of its own.
        pass(REAPER_PERIOD / 2).await;
        finish();
        assert_eq!(tasks.counts(), (1, 2));

        pass(KEPT - REAPER_PERIOD).await;
        assert_eq!(tasks.counts(), (1, 2));
        pass(REAPER_PERIOD).await;
        assert_eq!(tasks.counts(), (1, 1));
        assert_eq!(keys.reap(now()), 0, "it is gone already");
        pass(REAPER_PERIOD).await;
        assert_eq!(tasks.counts(), (1, 0));

        // And so on, for as long as the server runs.
        for _ in 0..3 {
            finish();
            pass(KEPT + REAPER_PERIOD).await;
            assert_eq!(tasks.counts(), (1, 0));
        }
        assert!(tasks.find(caller, running, now()).is_some());
    }
}
