//! Follows a run until its end: events to the screen and stdout, questions to the user, votes back to the run.

mod follower;
mod questions;
mod stdout;

use std::os::fd::OwnedFd;
use std::time::Duration;

use clap::ColorChoice;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::{Vote, VoteOutcome};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::arguments::RunFormat;
use super::prompt::Terminal;
use super::screen::TerminalEnv;
use super::signals::{SignalRequest, Signals};
use follower::{Follower, SignalAction};
use questions::{OpenQuestion, TypedVote};
use sympozium_local::realise::RunHandle;
use sympozium_runs::ApprovalMode;
use sympozium_runs::Question;
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;
use sympozium_runs::TargetFlags;
use sympozium_runs::VoteResult;
use sympozium_runs::{EventLog, EventReader};

/// Interval of updates of the status line.
const FRAME_INTERVAL: Duration = Duration::from_millis(120);

/// What the user may do with a run.
pub trait RunControl {
    /// Votes on one exact action. After an error it is unknown whether the vote counts.
    async fn vote(
        &self,
        approval: &str,
        action: &Digest,
        vote: Vote,
        reason: Option<&str>,
    ) -> anyhow::Result<VoteResult>;

    /// Asks the run to end. Returns what to tell the user.
    fn stop(&self, level: StopLevel) -> StopNotice;
}

/// What to tell the user after a request to end the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopNotice {
    pub text: &'static str,
    /// Whether to stop following without waiting for the run's end.
    pub detaches: bool,
}

impl RunControl for RunHandle {
    async fn vote(
        &self,
        approval: &str,
        action: &Digest,
        vote: Vote,
        reason: Option<&str>,
    ) -> anyhow::Result<VoteResult> {
        Ok(match Self::vote(self, approval, action, vote, reason) {
            Ok(VoteOutcome::Decided) => VoteResult::Decided,
            Ok(VoteOutcome::Pending(more)) => VoteResult::MoreNeeded(more),
            Err(refusal) => VoteResult::Refused(refusal.to_string()),
        })
    }

    fn stop(&self, level: StopLevel) -> StopNotice {
        Self::stop(self, level);
        let text = match level {
            StopLevel::Gently | StopLevel::None => "ending the run; press Ctrl-C again to kill it",
            StopLevel::Now => "killing the run",
        };
        StopNotice { text, detaches: false }
    }
}

#[derive(Debug, Clone)]
pub struct FollowOptions {
    pub target: TargetFlags,
    pub output: RunFormat,
    pub approve: ApprovalMode,
    pub color: ColorChoice,
    pub environment: TerminalEnv,
}

#[derive(Debug)]
pub struct Streams {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// The user's terminal, if there is one.
    pub terminal: Option<Terminal>,
}

/// How following ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowEnd {
    /// The run has ended.
    RunEnded(RunEnd),
    /// The user has detached; the run may go on.
    Detached,
    /// No more events will come, although the run goes on.
    Lost,
}

/// Follows a run until its end, until the user detaches, or until `lost` completes, which means that no more events
/// will come. An error, such as an unusable stream, does not end the run.
pub async fn follow<C: RunControl>(
    events: &EventLog,
    mut reader: EventReader,
    control: &C,
    options: FollowOptions,
    streams: Streams,
    signals: &mut Signals,
    lost: impl Future<Output = ()>,
) -> anyhow::Result<FollowEnd> {
    tokio::pin!(lost);
    // Votes in flight. In a cluster they take time; everything else continues meanwhile.
    let mut votes = FuturesUnordered::new();
    let mut follower = Follower::new(control, options, streams, events)?;
    let mut frames = interval(FRAME_INTERVAL);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let outcome = loop {
        follower.ask_next_question();
        let wait = follower.next_wakeup();
        tokio::select! {
            // Signals first; then events before anything that adds more, because the log drops old ones.
            biased;
            request = signals.next() => if follower.handle_signal(request) == SignalAction::Detach {
                follower.detach().await;
                return Ok(FollowEnd::Detached);
            },
            timed = reader.next() => {
                if let Some(outcome) = follower.handle_event(&timed) {
                    break outcome;
                }
            }
            () = wait_until_shown(&mut follower.asking) => follower.mark_shown(),
            line = read_typed(&mut follower.terminal), if follower.is_shown() => {
                if let Some(typed) = follower.handle_input(line) {
                    votes.push(send_vote(control, typed));
                }
            }
            Some(result) = votes.next() => follower.handle_vote_result(&result),
            () = &mut lost => {
                // Print the events from before.
                let rest = std::iter::from_fn(|| reader.next().now_or_never());
                if let Some(outcome) = rest.filter_map(|timed| follower.handle_event(&timed)).next() {
                    break outcome;
                }
                follower.close_open_question("the run is not followed any more");
                follower.detach().await;
                return Ok(FollowEnd::Lost);
            }
            _ = frames.tick(), if follower.screen.has_status_line() => follower.tick(),
            () = sleep_optional(wait) => follower.tick(),
        }
    };
    {
        let finishing = follower.finish(&outcome);
        tokio::pin!(finishing);
        loop {
            tokio::select! {
                finished = &mut finishing => break finished?,
                // A blocked reader must not keep the process from exiting.
                request = signals.next() => if request != SignalRequest::Resized { break },
            }
        }
    }
    Ok(FollowEnd::RunEnded(outcome))
}
/// Sends a vote to the run.
async fn send_vote<C: RunControl>(control: &C, typed: TypedVote) -> anyhow::Result<VoteResult> {
    let Question { approval, action, .. } = &typed.question;
    control.vote(approval, action, typed.vote, typed.reason.as_deref()).await
}

async fn wait_until_shown(asking: &mut Option<OpenQuestion>) {
    match asking.as_mut().and_then(|it| it.shown.as_mut()) {
        // If the writer is gone, it has shown what it could.
        Some(mark) => drop(mark.await),
        None => std::future::pending().await,
    }
}

async fn read_typed(terminal: &mut Option<Terminal>) -> Option<String> {
    match terminal {
        Some(terminal) => terminal.read_line().await,
        None => None,
    }
}

async fn sleep_optional(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}
