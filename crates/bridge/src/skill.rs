//! The bridge's end of one skill's `/ipc`: writes requests, waits for results, and believes nothing that is on the volume.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sympozium_ipc::requester::{Arrived, SubmitError, Withdrawn};
use sympozium_ipc::volume::Done;
use sympozium_ipc::{ExecRequest, ExecResult, RequestId, Requester, ResultProblem, Volume, VolumeError, WatchMode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// Orders that wait for the one who drives a volume; the pace of calls keeps them below that.
const ORDERS: usize = 64;
/// How long after a request to look at the directory without being told that something came; each further time after
/// twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(200);
/// How often to look at least, while somebody waits for a result.
const MAX_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// News that are taken before others have their turn: a skill can make them up faster than they are read.
const NEWS_AT_ONCE: usize = 64;
/// Commands that were given up after somebody had begun them, whose results are still cleared away. The oldest are forgotten
/// first: what they leave lies on the skill's own volume.
const MAX_LATE: usize = 256;

/// A skill, as the bridge sees it.
#[derive(Debug, Clone)]
pub struct Skill {
    volume: Volume,
    orders: mpsc::Sender<Order>,
    leaving: Arc<AtomicBool>,
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
        answer: oneshot::Sender<Answer>,
    },
    /// Takes a request back; whoever waits for the rest of a command that was begun still does.
    Withdraw {
        id: RequestId,
        found: oneshot::Sender<Withdrawn>,
    },
    /// The same, and nobody waits any more: what still comes is cleared away.
    GiveUp {
        id: RequestId,
        found: oneshot::Sender<Withdrawn>,
    },
}

enum Answer {
    Result(Result<ExecResult, ResultProblem>),
    NotAsked(SubmitError),
    Left,
}

impl Skill {
    /// Opens a skill's volume. To be called within a runtime, which from then on looks after it.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used.
    pub fn open(directory: &Path) -> Result<Self, VolumeError> {
        let volume = Volume::open(directory)?;
        let requester = Requester::open(&volume, WatchMode::default());
        let (orders, taken) = mpsc::channel(ORDERS);
        let leaving = Arc::new(AtomicBool::new(false));
        let driver = Driver {
            volume: volume.clone(),
            leaving: Arc::clone(&leaving),
            events: Events::of(&requester),
            requester,
            waiting: HashMap::new(),
            late: VecDeque::new(),
            more: false,
            pause: FIRST_LOOK,
        };
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
        let request = Box::new(request);
        if self.orders.send(Order::Submit { request, answer }).await.is_err() {
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

/// Owns the requester of one volume. Asleep unless somebody waits for a result.
struct Driver {
    volume: Volume,
    /// Whether it was us who told the skill to leave.
    leaving: Arc<AtomicBool>,
    events: Option<Events>,
    requester: Requester,
    waiting: HashMap<RequestId, oneshot::Sender<Answer>>,
    /// Given up, and perhaps answered some time.
    late: VecDeque<RequestId>,
    /// Whether there were more news than were taken.
    more: bool,
    /// How long until the next look that nobody asked for.
    pause: Duration,
}

impl Driver {
    async fn drive(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            let idle = self.waiting.is_empty();
            let look_at = Instant::from_std(self.requester.wake_at());
            let look_at = look_at.min(Instant::now() + self.pause);
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
                () = tokio::task::yield_now(), if self.more => self.look(),
                () = Events::readable(&self.events), if !idle || !self.late.is_empty() => self.look(),
                () = sleep_until(look_at), if !idle => self.look_unasked(),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Submit { request, answer } => {
                // A skill that was told to leave never answers.
                if matches!(self.volume.done(), Ok(Done::Yes)) {
                    let _ = answer.send(Answer::Left);
                    return;
                }
                match self.requester.submit(&request) {
                    Ok(()) => {
                        self.waiting.insert(request.id, answer);
                        self.pause = FIRST_LOOK;
                    }
                    Err(error) => {
                        let _ = answer.send(Answer::NotAsked(error));
                    }
                }
            }
            Order::Withdraw { id, found } => {
                let _ = found.send(self.requester.withdraw(&id));
            }
            Order::GiveUp { id, found } => {
                let withdrawn = self.requester.withdraw(&id);
                self.waiting.remove(&id);
                if withdrawn == Withdrawn::Started {
                    if self.late.len() == MAX_LATE {
                        self.late.pop_front();
                    }
                    self.late.push_back(id);
                }
                let _ = found.send(withdrawn);
            }
        }
    }

    /// Not every kernel tells what happens in a directory.
    fn look_unasked(&mut self) {
        self.pause = (2 * self.pause).min(MAX_LOOK_INTERVAL);
        let waiting = self.waiting.len();
        self.look();
        self.take_all();
        let found = self.waiting.len() < waiting && self.requester.polling().is_none();
        // An event may have come just now.
        if found && !matches!(self.requester.arrived(), Arrived::Result(_)) {
            self.requester.found_unannounced();
        }
    }

    fn take_all(&mut self) {
        let all: Vec<RequestId> = self.waiting.keys().chain(&self.late).cloned().collect();
        all.iter().for_each(|id| self.take(id));
        self.look_for_the_end();
    }

    /// Takes what has come. News about requests that nobody waits for is dropped: anybody in the skill can make it up.
    fn look(&mut self) {
        self.more = false;
        for _ in 0..NEWS_AT_ONCE {
            match self.requester.arrived() {
                Arrived::Result(id) => self.take(&id),
                Arrived::LookAtAll => {
                    self.take_all();
                    return;
                }
                Arrived::Nothing => return,
            }
        }
        self.more = true;
    }

    fn take(&mut self, id: &RequestId) {
        if let Some(index) = self.late.iter().position(|late| late == id) {
            // Whatever it says, it is for nobody.
            if !matches!(self.requester.take(id), Ok(None)) {
                self.late.remove(index);
            }
            return;
        }
        let Some(waits) = self.waiting.get(id) else {
            return;
        };
        if waits.is_closed() {
            self.waiting.remove(id);
            return;
        }
        let result = match self.requester.take(id) {
            Ok(None) => return,
            Ok(Some(result)) => Ok(result),
            Err(problem) => Err(problem),
        };
        if let Some(answer) = self.waiting.remove(id) {
            let _ = answer.send(Answer::Result(result));
        }
    }

    /// A command of the skill can tell its executor to leave; nobody will answer then.
    fn look_for_the_end(&mut self) {
        let by_us = self.leaving.load(Ordering::Relaxed);
        if !by_us && matches!(self.volume.done(), Ok(Done::Yes)) {
            for (_, answer) in self.waiting.drain() {
                let _ = answer.send(Answer::Left);
            }
        }
    }
}

/// The descriptor that is readable when something has come. Where there is none, the directory is looked at now and then.
struct Events(AsyncFd<OwnedFd>);

impl Events {
    #[expect(
        deprecated,
        reason = "its successor is unsafe because of types that give out another descriptor each time; this one does not"
    )]
    fn of(requester: &Requester) -> Option<Self> {
        let own = requester.descriptor()?.try_clone_to_owned().ok()?;
        AsyncFd::with_interest(own, Interest::READABLE).ok().map(Self)
    }

    async fn readable(events: &Option<Self>) {
        match events {
            None => std::future::pending().await,
            Some(events) => {
                if let Ok(mut ready) = events.0.readable().await {
                    // What comes after this is told again: the descriptor is read after it.
                    ready.clear_ready();
                }
            }
        }
    }
}
