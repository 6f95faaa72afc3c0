//! Reports the records of the run, one report after the other, until the last one was accepted.

use std::time::Duration;

use sympozium_ipc::run_api::{ApiRefusalCode, Noted, Usage, path};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::records::{Pressing, Records};
use crate::upward::{Unanswered, Upward};

/// Timeout for the gateway's answer to a report.
const REPORT_DEADLINE: Duration = Duration::from_secs(10);
/// How long receipts are collected for one report: a call does not wait for its report.
const RECEIPTS_TOGETHER: Duration = Duration::from_millis(20);
/// The same for transcript and progress, which the agent can send at any rate.
const WORDS_TOGETHER: Duration = Duration::from_secs(1);
/// The first pause after a failed report. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How long an unknown token is retried while no report was accepted: the gateway may not know a run that has just
/// started. After an accepted report the run is known, so an unknown token means that the run has ended.
const UNKNOWN_PATIENCE: Duration = Duration::from_secs(60);

/// How reporting ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Reported {
    /// Everything was reported, including the run end.
    Everything,
    /// The gateway refuses reports of this run. Nothing more may happen in it.
    Unwanted(String),
}

/// Sends reports until the run end was accepted.
pub async fn report(records: &Records, upward: &Upward, usage: impl Fn() -> Usage) -> Reported {
    let mut pause = FIRST_PAUSE;
    let mut standing = Standing::New;
    loop {
        due(records).await;
        let Some(report) = records.next_report(&usage) else {
            continue;
        };
        let answer = timeout(REPORT_DEADLINE, upward.post::<Noted>(path::REPORTS, &report)).await;
        let problem = match answer {
            Ok(Ok(_)) => {
                pause = FIRST_PAUSE;
                standing = Standing::Known;
                if records.taken() {
                    return Reported::Everything;
                }
                continue;
            }
            Ok(Err(Unanswered::Refused(refusal))) => match refusal.code {
                ApiRefusalCode::Busy | ApiRefusalCode::Failed => refusal.message,
                ApiRefusalCode::Token if standing.may_become_known() => refusal.message,
                // The same report would be refused again.
                _ => return Reported::Unwanted(refusal.message),
            },
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => {
                upward.forget().await;
                "the gateway does not answer".to_owned()
            }
        };
        tracing::warn!(problem, number = report.number, "a report was not taken; it is kept and sent again");
        sleep(pause).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

/// What the gateway has said about the run's token so far.
#[derive(Debug, Clone, Copy)]
enum Standing {
    /// Nothing.
    New,
    /// Only that it does not know the token, since this instant.
    Unknown(Instant),
    /// It has accepted a report.
    Known,
}

impl Standing {
    /// Called when the gateway does not know the token. Whether that may be because it does not know the run yet.
    fn may_become_known(&mut self) -> bool {
        match *self {
            Self::New => {
                *self = Self::Unknown(Instant::now());
                true
            }
            Self::Unknown(since) => since.elapsed() < UNKNOWN_PATIENCE,
            Self::Known => false,
        }
    }
}

/// Waits until there is something to report, and then for the batch to fill.
async fn due(records: &Records) {
    let mut since = None;
    loop {
        let together = match records.pressing() {
            None => {
                records.news().await;
                continue;
            }
            Some(Pressing::Now) => return,
            Some(Pressing::Soon) => RECEIPTS_TOGETHER,
            Some(Pressing::Later) => WORDS_TOGETHER,
        };
        let since = *since.get_or_insert_with(Instant::now);
        tokio::select! {
            () = sleep_until(since + together) => return,
            () = records.news() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_becomes_known_within_its_time_or_never() {
        let mut standing = Standing::New;
        assert!(standing.may_become_known());
        sleep(UNKNOWN_PATIENCE / 2).await;
        assert!(standing.may_become_known());
        sleep(UNKNOWN_PATIENCE / 2).await;
        assert!(!standing.may_become_known());
        assert!(!Standing::Known.may_become_known());
    }
}
