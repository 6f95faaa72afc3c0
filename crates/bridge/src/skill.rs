//! The bridge's end of one skill's `/ipc`: writes requests, waits for results, and trusts nothing on the volume.

mod driver;
mod events;
mod findings;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use sympozium_ipc::requester::{SubmitError, Withdrawal};
use sympozium_ipc::{ExecRequest, ExecResult, RequestId, RequestKey, ResultError, Volume, VolumeError, WatchMode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::floor::IsolationFloor;
use driver::Driver;
use findings::Findings;
pub use findings::{Finding, Notice, Verification};

/// Maximum number of queued orders for the driver of a volume. The rate limits of calls keep the queue shorter.
const MAX_QUEUED_ORDERS: usize = 64;

#[derive(Debug, Clone)]
pub struct Skill {
    volume: Volume,
    orders: mpsc::Sender<Order>,
    done_written: Arc<AtomicBool>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("no key can be made for its executor")]
    Random(#[source] std::io::Error),
}

#[derive(Debug)]
pub enum Execution {
    /// The skill answered. It may lie about its own commands, but not about another skill's.
    Answered(Box<ExecResult>),
    /// The result cannot be used.
    Invalid(ResultError),
    /// The request could not be written. Nothing was run.
    NotSubmitted(SubmitError),
    /// `done` was written by something other than the bridge. Whether the command was started is unknown.
    StoppedByOther {
        /// Whether an executor had claimed it.
        claimed: bool,
    },
    /// The executor was restarted and no longer knows the request. The command may have run in part.
    Restarted,
    /// No result in time.
    NoAnswer {
        /// Whether an executor had claimed it: then it may have been run.
        claimed: bool,
    },
    /// The call was cancelled before an executor had claimed the command.
    Cancelled,
}

enum Order {
    Submit {
        request: Box<ExecRequest>,
        /// When the call stops waiting.
        expires: SystemTime,
        answer: oneshot::Sender<OrderReply>,
    },
    /// Withdraws a request. If it was started already, the call still waits for its result.
    Withdraw { id: RequestId, found: oneshot::Sender<Withdrawal> },
    /// The same, but the call no longer waits: a late result is deleted.
    Abandon { id: RequestId, found: oneshot::Sender<Withdrawal> },
}

enum OrderReply {
    Result(Result<ExecResult, ResultError>),
    NotSubmitted(SubmitError),
    StoppedByOther,
    Restarted,
}

impl Skill {
    /// Opens the volume of a pack and starts its driver. Must be called within a Tokio runtime. Files that the bridge
    /// did not write, and an executor that starts below `floor`, are sent to `notices`.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be used, or if there is no randomness for a key.
    pub fn open(
        directory: &Path,
        pack: &str,
        verification: Verification,
        floor: &IsolationFloor,
        notices: mpsc::UnboundedSender<Notice>,
    ) -> Result<Self, OpenError> {
        let volume = Volume::open(directory)?;
        let key = match verification {
            Verification::Verifies => Some(RequestKey::generate().map_err(OpenError::Random)?),
            Verification::Unverified => None,
        };
        let (orders, taken) = mpsc::channel(MAX_QUEUED_ORDERS);
        let leaving = Arc::new(AtomicBool::new(false));
        let findings = Findings::new(pack, verification, notices);
        let driver = Driver::new(&volume, Arc::clone(&leaving), key, floor.clone(), findings, WatchMode::default());
        tokio::spawn(driver.run(taken));
        Ok(Self { volume, orders, done_written: leaving })
    }

    /// Has a command run at most once. `unwanted` cancels it only while no executor has claimed it. A command that was
    /// started is waited for, because its effects happen anyway.
    pub async fn execute(
        &self,
        request: ExecRequest,
        patience: Duration,
        unwanted: impl Future<Output = ()>,
    ) -> Execution {
        let id = request.id.clone();
        let deadline = Instant::now() + patience;
        let (answer, answered) = oneshot::channel();
        let order = Order::Submit { request: Box::new(request), expires: SystemTime::now() + patience, answer };
        if self.orders.send(order).await.is_err() {
            return Execution::NoAnswer { claimed: false };
        }
        tokio::pin!(answered, unwanted);
        let mut wanted = true;
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return match answer {
                    Ok(OrderReply::Result(Ok(result))) => Execution::Answered(Box::new(result)),
                    Ok(OrderReply::Result(Err(problem))) => Execution::Invalid(problem),
                    Ok(OrderReply::NotSubmitted(error)) => Execution::NotSubmitted(error),
                    Ok(OrderReply::Restarted) => Execution::Restarted,
                    Ok(OrderReply::StoppedByOther) => Execution::StoppedByOther { claimed: self.abandon(id).await },
                    Err(_) => Execution::NoAnswer { claimed: true },
                },
                () = sleep_until(deadline) => {
                    return Execution::NoAnswer { claimed: self.abandon(id).await };
                }
                () = &mut unwanted, if wanted => {
                    wanted = false;
                    if !self.withdraw(id.clone()).await {
                        return Execution::Cancelled;
                    }
                }
            }
        }
    }

    /// Withdraws a request. Returns whether an executor has claimed it.
    async fn withdraw(&self, id: RequestId) -> bool {
        self.send_withdrawal(|found| Order::Withdraw { id, found }).await
    }

    /// Withdraws a request and stops waiting for its result. Returns whether an executor has claimed it.
    async fn abandon(&self, id: RequestId) -> bool {
        self.send_withdrawal(|found| Order::Abandon { id, found }).await
    }

    async fn send_withdrawal(&self, order: impl FnOnce(oneshot::Sender<Withdrawal>) -> Order) -> bool {
        let (found, withdrawn) = oneshot::channel();
        let sent = self.orders.send(order(found)).await;
        // If the driver is gone, the command may have been started.
        sent.is_err() || !matches!(withdrawn.await, Ok(Withdrawal::NotStarted))
    }

    /// Tells the skill that the run has ended. The executor ends its commands, and their results still arrive.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub fn write_done(&self) -> Result<(), VolumeError> {
        self.done_written.store(true, Ordering::Relaxed);
        self.volume.write_done()
    }
}
