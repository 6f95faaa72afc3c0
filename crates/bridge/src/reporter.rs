//! Reports the records of the run, one report after the other, until the last one was accepted.

use std::time::Duration;

use sympozium_ipc::run_api::{ApiRefusalCode, ReportAck, Usage, path};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::records::{Records, Urgency};
use crate::run_api_client::{RunApiClient, RunApiError};

/// Timeout for the gateway's answer to a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long receipts are collected for one report: a call does not wait for its report.
const RECEIPT_BATCH_TIME: Duration = Duration::from_millis(20);
/// The same for transcript and progress, which the agent can send at any rate.
const TRANSCRIPT_BATCH_TIME: Duration = Duration::from_secs(1);
/// The first pause after a failed report. Each further one is twice as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// How long an unknown token is retried while no report was accepted: the gateway may not know a run that has just
/// started. After an accepted report the run is known, so an unknown token means that the run has ended.
const UNKNOWN_TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// How reporting ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    /// Everything was reported, including the run end.
    Complete,
    /// The gateway refuses reports of this run. Nothing more may happen in it.
    Refused(String),
}

/// Sends reports until the run end was accepted.
pub async fn report(records: &Records, upward: &RunApiClient, usage: impl Fn() -> Usage) -> ReportOutcome {
    let mut pause = FIRST_BACKOFF;
    let mut standing = TokenState::New;
    loop {
        wait_for_batch(records).await;
        let Some(report) = records.next_report(&usage) else {
            continue;
        };
        let answer = timeout(REPORT_TIMEOUT, upward.post::<ReportAck>(path::REPORTS, &report)).await;
        let problem = match answer {
            Ok(Ok(_)) => {
                pause = FIRST_BACKOFF;
                standing = TokenState::Known;
                if records.confirm_report() {
                    return ReportOutcome::Complete;
                }
                continue;
            }
            Ok(Err(RunApiError::Refused(refusal))) => match refusal.code {
                ApiRefusalCode::Busy | ApiRefusalCode::Failed => refusal.message,
                ApiRefusalCode::Token if standing.may_retry() => refusal.message,
                // The same report would be refused again.
                _ => return ReportOutcome::Refused(refusal.message),
            },
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => {
                upward.disconnect().await;
                "the gateway does not answer".to_owned()
            }
        };
        tracing::warn!(problem, number = report.number, "a report was not taken; it is kept and sent again");
        sleep(pause).await;
        pause = (2 * pause).min(MAX_BACKOFF);
    }
}

/// What the gateway has answered about the run's token so far.
#[derive(Debug, Clone, Copy)]
enum TokenState {
    /// Nothing.
    New,
    /// Only that it does not know the token, since this instant.
    Unknown(Instant),
    /// It has accepted a report.
    Known,
}

impl TokenState {
    /// Called when the gateway does not know the token. Whether that may be because it does not know the run yet.
    fn may_retry(&mut self) -> bool {
        match *self {
            Self::New => {
                *self = Self::Unknown(Instant::now());
                true
            }
            Self::Unknown(since) => since.elapsed() < UNKNOWN_TOKEN_TIMEOUT,
            Self::Known => false,
        }
    }
}

/// Waits until there is something to report, and then for the batch to fill.
async fn wait_for_batch(records: &Records) {
    let mut since = None;
    loop {
        let together = match records.urgency() {
            None => {
                records.wait_for_records().await;
                continue;
            }
            Some(Urgency::Now) => return,
            Some(Urgency::Soon) => RECEIPT_BATCH_TIME,
            Some(Urgency::Later) => TRANSCRIPT_BATCH_TIME,
        };
        let since = *since.get_or_insert_with(Instant::now);
        tokio::select! {
            () = sleep_until(since + together) => return,
            () = records.wait_for_records() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_becomes_known_within_its_time_or_never() {
        let mut standing = TokenState::New;
        assert!(standing.may_retry());
        sleep(UNKNOWN_TOKEN_TIMEOUT / 2).await;
        assert!(standing.may_retry());
        sleep(UNKNOWN_TOKEN_TIMEOUT / 2).await;
        assert!(!standing.may_retry());
        assert!(!TokenState::Known.may_retry());
    }
}
