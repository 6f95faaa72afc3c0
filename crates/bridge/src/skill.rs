//! The bridge's end of one skill's `/ipc`: writes requests, waits for results, and believes nothing that is on the volume.

mod driver;
mod events;
mod findings;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use sympozium_ipc::requester::{SubmitError, Withdrawn};
use sympozium_ipc::{ExecRequest, ExecResult, RequestId, RequestKey, ResultProblem, Volume, VolumeError, WatchMode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::floor::IsolationFloor;
use driver::Driver;
use findings::Findings;
pub use findings::{Finding, Notice, Verification};

/// Orders that wait for the one who drives a volume; the pace of calls keeps them below that.
const ORDERS: usize = 64;

/// A skill, as the bridge sees it.
#[derive(Debug, Clone)]
pub struct Skill {
    volume: Volume,
    orders: mpsc::Sender<Order>,
    leaving: Arc<AtomicBool>,
}

/// Why a skill's volume cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// There is no randomness for a key.
    #[error("no key can be made for its executor")]
    Random(#[source] std::io::Error),
}

/// What came of a command.
#[derive(Debug)]
pub enum Executed {
    /// The skill answered. It may lie about its own commands, never about another's.
    Answered(Box<ExecResult>),
    /// What it answered is not to be believed.
    Unbelievable(ResultProblem),
    /// The request could not be written. Nothing was run.
    NotAsked(SubmitError),
    /// Somebody told the skill to leave, and it was not the bridge. Whether the command was begun is not known.
    Left {
        /// Whether somebody had claimed it.
        claimed: bool,
    },
    /// Its executor was started again, and does not know of the request any more. It may have been run in part.
    Restarted,
    /// No answer in time.
    Silent {
        /// Whether somebody had claimed it: it may have been run.
        claimed: bool,
    },
    /// Nobody wants it any more, and nobody had begun it.
    TakenBack,
}

enum Order {
    Submit {
        request: Box<ExecRequest>,
        /// When nobody waits for it any more.
        expires: SystemTime,
        answer: oneshot::Sender<Answer>,
    },
    /// Takes a request back; whoever waits for the rest of a command that was begun still does.
    Withdraw { id: RequestId, found: oneshot::Sender<Withdrawn> },
    /// The same, and nobody waits any more: what still comes is cleared away.
    GiveUp { id: RequestId, found: oneshot::Sender<Withdrawn> },
}

enum Answer {
    Result(Result<ExecResult, ResultProblem>),
    NotAsked(SubmitError),
    Left,
    Restarted,
}

impl Skill {
    /// Opens the volume of a pack. To be called within a runtime, which from then on looks after it. What is found there that
    /// the bridge did not write, and a start below `floor`, are told to `notices`.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used, or there is no randomness for a key.
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
        let (orders, taken) = mpsc::channel(ORDERS);
        let leaving = Arc::new(AtomicBool::new(false));
        let findings = Findings::new(pack, verification, notices);
        let driver = Driver::new(&volume, Arc::clone(&leaving), key, floor.clone(), findings, WatchMode::default());
        tokio::spawn(driver.drive(taken));
        Ok(Self { volume, orders, leaving })
    }

    /// Has a command run, once or never. `unwanted` ends the waiting early where nobody has begun the command yet; one that was
    /// begun is waited for, because what it does still happens.
    pub async fn execute(
        &self,
        request: ExecRequest,
        patience: Duration,
        unwanted: impl Future<Output = ()>,
    ) -> Executed {
        let id = request.id.clone();
        let deadline = Instant::now() + patience;
        let (answer, answered) = oneshot::channel();
        let order = Order::Submit { request: Box::new(request), expires: SystemTime::now() + patience, answer };
        if self.orders.send(order).await.is_err() {
            return Executed::Silent { claimed: false };
        }
        tokio::pin!(answered, unwanted);
        let mut wanted = true;
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return match answer {
                    Ok(Answer::Result(Ok(result))) => Executed::Answered(Box::new(result)),
                    Ok(Answer::Result(Err(problem))) => Executed::Unbelievable(problem),
                    Ok(Answer::NotAsked(error)) => Executed::NotAsked(error),
                    Ok(Answer::Restarted) => Executed::Restarted,
                    Ok(Answer::Left) => Executed::Left { claimed: self.give_up(id).await },
                    Err(_) => Executed::Silent { claimed: true },
                },
                () = sleep_until(deadline) => {
                    return Executed::Silent { claimed: self.give_up(id).await };
                }
                () = &mut unwanted, if wanted => {
                    wanted = false;
                    if !self.withdraw(id.clone()).await {
                        return Executed::TakenBack;
                    }
                }
            }
        }
    }

    /// Takes a request back. Says whether somebody has claimed it.
    async fn withdraw(&self, id: RequestId) -> bool {
        self.take_back(|found| Order::Withdraw { id, found }).await
    }

    /// Takes a request back for good. Says whether somebody has claimed it.
    async fn give_up(&self, id: RequestId) -> bool {
        self.take_back(|found| Order::GiveUp { id, found }).await
    }

    async fn take_back(&self, order: impl FnOnce(oneshot::Sender<Withdrawn>) -> Order) -> bool {
        let (found, withdrawn) = oneshot::channel();
        let sent = self.orders.send(order(found)).await;
        // Whoever cannot be asked may have begun.
        sent.is_err() || !matches!(withdrawn.await, Ok(Withdrawn::NotStarted))
    }

    /// Tells the skill that the run is over. Commands that go on are ended by it, and their results still come.
    ///
    /// # Errors
    ///
    /// When that cannot be written.
    pub fn write_done(&self) -> Result<(), VolumeError> {
        self.leaving.store(true, Ordering::Relaxed);
        self.volume.write_done()
    }
}
