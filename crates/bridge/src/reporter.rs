//! Carries records out of the run, one report after the other, until the last has been taken.

use std::time::Duration;

use sympozium_ipc::run_api::{ApiRefusalCode, Noted, Usage, path};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::records::{Pressing, Records};
use crate::upward::{Unanswered, Upward};

/// How long the gateway may take to take a report.
const REPORT_DEADLINE: Duration = Duration::from_secs(10);
/// How long receipts are gathered for one report: who waits for a call's answer does not wait for its report.
const RECEIPTS_TOGETHER: Duration = Duration::from_millis(20);
/// The same, of what is nothing but the agent's words, which come as fast as it likes.
const WORDS_TOGETHER: Duration = Duration::from_secs(1);
/// The first pause after a report that was not taken; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// How reporting came to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Reported {
    /// Everything has left, the end of the run with it.
    Everything,
    /// The gateway does not take reports of this run. Nothing more may happen in it.
    Unwanted(String),
}

/// Reports whatever there is to report, until the run's end has been taken.
pub async fn report(records: &Records, upward: &Upward, usage: impl Fn() -> Usage) -> Reported {
    let mut pause = FIRST_PAUSE;
    loop {
        due(records).await;
        let Some(report) = records.next_report(&usage) else {
            continue;
        };
        let answer = timeout(
            REPORT_DEADLINE,
            upward.post::<Noted>(path::REPORTS, &report),
        )
        .await;
        let problem = match answer {
            Ok(Ok(_)) => {
                pause = FIRST_PAUSE;
                if records.taken() {
                    return Reported::Everything;
                }
                continue;
            }
            Ok(Err(Unanswered::Refused(refusal))) => match refusal.code {
                ApiRefusalCode::Busy | ApiRefusalCode::Failed => refusal.message,
                // The same report would be refused again.
                _ => return Reported::Unwanted(refusal.message),
            },
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => {
                upward.forget().await;
                "the gateway does not answer".to_owned()
            }
        };
        tracing::warn!(
            problem,
            number = report.number,
            "a report was not taken; it is kept and sent again"
        );
        sleep(pause).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

/// Waits until there is something to report, and then as long as others may join it.
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
